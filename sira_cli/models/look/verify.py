"""`Verify`: whether and how texts get a second look, and the settings that allow it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sira_cli.errors import SettingsError
from sira_cli.language import things
from sira_cli.language.things import Words
from sira_cli.methods.base import Method
from sira_cli.models.preset import Preset

MODES = ("flag", "rewrite")
ROUNDS = 3
MOST_ROUNDS = 20  # a round decodes a text again


@dataclass(frozen=True)
class Verify:
    """A second look at every text of a run.

    Attributes:
        min_support: objects below it are not supported; None: the preset's.
        words: the objects to recognise; None: the bundled list.
        mode: `flag` marks unsupported objects, `rewrite` also decodes texts again without them.
        rounds: maximum number of times that a text is decoded again.

    Raises:
        SettingsError: the mode is not valid, or `rounds` is not from 1 to 20.
    """

    min_support: float | None = None
    words: Words | None = None
    mode: str = "flag"
    rounds: int = ROUNDS

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise SettingsError(f"`verify=` {self.mode!r}: expected {', '.join(MODES)}")
        if not 1 <= self.rounds <= MOST_ROUNDS:
            raise SettingsError(f"`rounds=` must be from 1 to {MOST_ROUNDS}; got {self.rounds}")

    @classmethod
    def of(cls, given: str | Verify | None) -> Verify | None:
        """Return the second look for a mode, or the given one."""
        return cls(mode=given) if isinstance(given, str) else given

    @property
    def rewrites(self) -> bool:
        """Whether texts are decoded again."""
        return self.mode == "rewrite"

    def line(self, preset: Preset) -> float:
        """Return the support below which an object is not supported."""
        return preset.verify.min_support if self.min_support is None else self.min_support

    def check(self, method: Method, num_beams: int, *, words: bool, choices: bool, compiled: bool) -> None:
        """Check that it fits the method and the settings of a run.

        Raises:
            SettingsError: the second look does not fit them.
        """
        if choices:
            raise SettingsError("`verify=` checks texts, but `choices=` writes none: leave out one of them")
        if not self.rewrites:
            return
        instead = "leave it out, or use `verify=` flag"
        if method.own_search:
            raise SettingsError(f"`verify=` rewrite continues after single tokens, but method {method.name} cannot")
        if num_beams > 1:
            raise SettingsError(f"`verify=` rewrite follows one text per picture, not `num_beams=`: {instead}")
        if words:
            raise SettingsError(
                f"`words=` scores a text as it was decoded, but `verify=` rewrite changes it: {instead}"
            )
        if compiled:
            raise SettingsError(f"`verify=` rewrite cannot go back in compiled steps (`compile=`): {instead}")

    def settings(self, preset: Preset) -> dict[str, Any]:
        """Return the settings of the look, as in records."""
        return {
            "mode": self.mode,
            "words": (self.words or things.shipped()).name,
            "question": preset.prompts.verify,
            "min_support": self.line(preset),
            **({"rounds": self.rounds} if self.rewrites else {}),
        }
