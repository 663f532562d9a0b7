"""`Verify`: whether and how texts get a second look, and the settings that allow it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sira_cli.errors import SettingsError
from sira_cli.language import things
from sira_cli.language.listed import Asked
from sira_cli.language.things import Words
from sira_cli.models.loading.preset import Preset

MODES = ("flag", "guide")


@dataclass(frozen=True)
class Verify:
    """A second look at every text of a run.

    Attributes:
        min_support: objects below it are not supported; None: the preset's.
        words: finds the objects; None: the bundled list.
        mode: `flag` marks unsupported objects, `guide` looks first, and then decodes texts that name supported objects
            only.
    """

    min_support: float | None = None
    words: Words | None = None
    mode: str = "flag"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise SettingsError(f"`verify=` {self.mode!r}: expected {', '.join(MODES)}")

    @classmethod
    def of(cls, given: str | Verify | None) -> Verify | None:
        """Return the second look for a mode, or the given one."""
        return cls(mode=given) if isinstance(given, str) else given

    @property
    def guides(self) -> bool:
        """Whether texts are decoded after the look, and name supported objects only."""
        return self.mode == "guide"

    def threshold(self, preset: Preset) -> float:
        """Return the support below which an object is not supported."""
        if self.min_support is not None:
            return self.min_support
        return (
            preset.guide.threshold if self.guides and preset.guide.threshold is not None else preset.verify.min_support
        )

    def finder(self, preset: Preset) -> Words:
        """Return the finder of the objects that a text names."""
        words = self.words or things.shipped()
        if self.guides and isinstance(words, Asked):
            raise SettingsError(
                f"`verify=` {self.mode} has to know the objects while it decodes, but the model is asked for them: "
                "give `objects=` a list"
            )
        return words

    def settings(self, preset: Preset) -> dict[str, Any]:
        """Return the settings of the look, as in records."""
        own = preset.verify
        return {
            "mode": self.mode,
            "words": self.finder(preset).name,
            "question": preset.prompts.verify,
            "min_support": self.threshold(preset),
            **(preset.guide.model_dump(exclude={"threshold"}) if self.guides else {}),
            **({} if own.answers == type(own)().answers else {"yes": own.yes, "no": own.no}),
        }
