"""Settings of methods, each declared once: its type, default, limits and meaning.

The checks of values, `--set NAME=VALUE`, the help, records and presets all derive from the declaration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from sira_cli.errors import SettingsError


@dataclass(frozen=True)
class Setting:
    """A setting of a method.

    Attributes:
        kind: `int`, `float` or `str`.
        meaning: its description in the help.
        low, high: smallest and largest value of a number.
        above_low: whether `low` itself is not allowed.
        choices: the values of a text; none: any text.
        optional: whether None (on the command line `none`) is a value.
    """

    kind: type
    meaning: str
    low: float = -math.inf
    high: float = math.inf
    above_low: bool = False
    choices: tuple[str, ...] = ()
    optional: bool = False

    @property
    def values(self) -> str:
        """The valid values in words: `a whole number from 0 to 999`."""
        if self.kind is str:
            words = " or ".join(filter(None, (", ".join(self.choices[:-1]), *self.choices[-1:]))) or "a text"
        else:
            words = "a whole number" if self.kind is int else "a number"
            if self.low > -math.inf:
                words += f" {'above' if self.above_low else 'from'} {self.low:g}"
            if self.high < math.inf:
                words += f" to {self.high:g}"
        return f"{words}, or none" if self.optional else words

    def parse(self, name: str, text: str, shown: str = "") -> Any:
        """Convert the text of `--set NAME=TEXT` to a value; `shown` names another option."""
        if self.optional and text.strip().lower() == "none":
            return None
        try:
            value = text if self.kind is str else self.kind(text.strip())
            self.check(name, value)
        except ValueError:
            raise SettingsError(f"{shown or f'--set {name}={text}'}: expected {self.values}") from None
        return value

    def check(self, name: str, value: Any) -> None:
        """Check the type and the range of a value."""
        if value is None and self.optional:
            return
        if self.kind is float:
            fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9  # nor NaN
            fits = fits and self.low <= value <= self.high and not (self.above_low and value == self.low)
        elif self.kind is int:
            fits = isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high
        else:
            fits = isinstance(value, str) and (not self.choices or value in self.choices)
        if not fits:
            raise SettingsError(f"{name}: expected {self.values}, got {value!r}")


def setting(default: Any, meaning: str, **limits: Any) -> Any:
    """Declare a field of a method's dataclass as a setting.

    Args:
        default: default value.
        meaning: its description in the help.
        **limits: as in `Setting`; `kind` defaults to the type of the default.
    """
    kind = limits.pop("kind", type(default))
    return field(default=default, metadata={"setting": Setting(kind, meaning, **limits)})


# The settings of the fork, which live in the preset's `sira` part; `SiraConfig` checks them.
FORK_SETTINGS = {
    "k": Setting(int, "layers after the fork, K", low=1),
    "k_fraction": Setting(float, "K as a share of all layers", low=0, high=1, above_low=True),
    "alpha": Setting(float, "contrast strength", low=0),
    "beta": Setting(float, "plausibility cut-off", low=0, high=1, above_low=True, optional=True),
}
