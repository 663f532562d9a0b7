"""Settings that only some benchmarks have: `--option NAME=VALUE` of `sira eval`."""

from __future__ import annotations

from dataclasses import dataclass

from sira_cli.errors import SettingsError


@dataclass(frozen=True)
class Option:
    """A setting of one benchmark, or of several.

    Attributes:
        name: as in `--option NAME=VALUE`.
        help: its meaning, in one line.
        choices: the values that it takes; empty: any text.
        default: the value without it, as it is shown.
        asks: whether it changes the questions, so that it cannot apply to answers in files.
    """

    name: str
    help: str
    choices: tuple[str, ...] = ()
    default: str = ""
    asks: bool = False

    def check(self, value: str) -> None:
        """Check a value.

        Raises:
            SettingsError: the value is not among the choices.
        """
        if self.choices and value not in self.choices:
            raise SettingsError(f"`{self.name}=` {value}: expected {', '.join(self.choices)}")
