"""Settings of methods, each declared once: its type, default, limits and meaning.

The checks of values, `--set NAME=VALUE`, the help, records and presets all derive from the declaration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from sira_cli.core.config import check_range
from sira_cli.errors import SettingsError

_KEY = "setting"


@dataclass(frozen=True)
class Setting:
    """A setting of a method.

    Attributes:
        kind: `int`, `float` or `str`.
        meaning: what it does, as the help says it.
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

    def parse(self, name: str, text: str) -> Any:
        """Turn the text of `--set NAME=TEXT` into a value of the right type; `check` looks at its range.

        Raises:
            SettingsError: the text is none.
        """
        if self.optional and text.strip().lower() == "none":
            return None
        try:
            return text if self.kind is str else self.kind(text.strip())
        except ValueError:
            wanted = "a whole number" if self.kind is int else "a number"
            raise SettingsError(f"--set {name}={text}: expected {wanted}{' or none' * self.optional}") from None

    def check(self, name: str, value: Any) -> None:
        """Check the type and the range of a value.

        Raises:
            SettingsError: it has another type or is out of range.
        """
        if value is None and self.optional:
            return
        if self.kind is float:
            check_range(name, value, self.low, self.high)
            if self.above_low and value == self.low:
                raise SettingsError(f"{name} must be above {self.low:g}; got {value!r}")
        elif self.kind is int:
            if not isinstance(value, int) or isinstance(value, bool) or not self.low <= value <= self.high:
                to = "" if self.high == math.inf else f" to {self.high:g}"
                raise SettingsError(f"{name} must be a whole number from {self.low:g}{to or ' on'}; got {value!r}")
        elif not isinstance(value, str) or (self.choices and value not in self.choices):
            raise SettingsError(f"{name} must be {' or '.join(self.choices) or 'a text'}; got {value!r}")


def setting(default: Any, meaning: str, **limits: Any) -> Any:
    """Declare a field of a method's dataclass as a setting.

    Args:
        default: its value unless another is given.
        meaning: what it does, as the help says it.
        **limits: as in `Setting`; `kind` is that of the default unless given.
    """
    kind = limits.pop("kind", type(default))
    return field(default=default, metadata={_KEY: Setting(kind, meaning, **limits)})


def setting_of(declared: Any) -> Setting:
    """Return the declaration of a dataclass field that `setting` made."""
    found: Setting = declared.metadata[_KEY]
    return found


# The settings of the fork, which live in the preset's `sira` part; `SiraConfig` checks them.
FORK_SETTINGS = {
    "k": Setting(int, "layers after the fork, K"),
    "k_fraction": Setting(float, "K as a share of all layers"),
    "alpha": Setting(float, "contrast strength"),
    "beta": Setting(float, "plausibility cut-off", optional=True),
}
