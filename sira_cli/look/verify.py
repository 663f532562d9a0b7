"""Whether and how texts get a second look: its settings, the objects that it asks about, and the questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sira_cli.errors import SettingsError
from sira_cli.look.claims import Check, Claim
from sira_cli.look.words import Asked, Thing, WordList, shipped, with_article
from sira_cli.models.preset import Preset

MODES = ("flag", "guide")
LIST_TOKENS = 256  # of an answer that lists the objects of a text


@dataclass(frozen=True)
class Verify:
    """A second look at every text of a run."""

    min_support: float | None = None  # objects below it are not supported; None: the preset's
    words: WordList | None = None  # finds the objects; None: the bundled list
    mode: str = "flag"  # marks unsupported objects; `guide` looks first, and then names supported ones only

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
        own = preset.guide.threshold if self.guides else None
        return preset.verify.min_support if own is None else own

    def settings(self, preset: Preset) -> dict[str, Any]:
        """Return the settings of the look, as in records."""
        own = preset.verify
        return {
            "mode": self.mode,
            "words": ObjectFinder(self, preset).words.name,
            "question": preset.prompts.verify,
            "min_support": self.threshold(preset),
            **(preset.guide.model_dump(exclude={"threshold"}) if self.guides else {}),
            **({} if own.answers == type(own)().answers else {"yes": own.yes, "no": own.no}),
        }


class ObjectFinder:
    """Finds the objects of texts by `words`, and words the questions about them."""

    def __init__(self, verify: Verify, preset: Preset) -> None:
        self.words = verify.words or shipped()
        self.asks = isinstance(self.words, Asked)  # whether the model is asked for the objects of a text
        self._question, self._around = preset.prompts.verify, preset.text
        if self.asks and verify.guides:
            raise SettingsError(
                f"`verify=` {verify.mode} has to know the objects while it decodes, but the model is asked for them: "
                "give `objects=` a list"
            )

    def things(self, text: str, ask: Callable[[str], str]) -> list[Thing]:
        """Return the objects of a text, whoever wrote it."""
        words = self.words
        return words.listed(ask(words.request(text)), text) if isinstance(words, Asked) else words.things(text)

    def question(self, thing: Thing) -> str:
        """Return the question about an object."""
        return self._question.replace("{thing}", with_article(thing.name)).replace("{name}", thing.name)

    def check(
        self,
        text: str,
        claims: Callable[[Sequence[Thing]], Sequence[Claim]],
        ask: Callable[[str], str],
        known: dict[str, Claim],
        named: Sequence[Thing] | None = None,
    ) -> Check:
        """Return the check of a text: the claims about its objects; `ask` returns the model's answer to a prompt.

        What an earlier text about the picture named is `known`, and not asked about again. Without `named`, its objects
        are found here, but for those of the preset's prefix and suffix, which no model wrote.
        """
        if named is None:
            first, last = self._around.written(text)
            found = self.things(text, ask)
            inside = [tuple(span for span in each.spans if first <= span[0] and span[1] <= last) for each in found]
            named = [replace(each, spans=own) for each, own in zip(found, inside, strict=True) if own or not each.spans]
        known |= {claim.thing: claim for claim in claims([each for each in named if each.name not in known])}
        return Check(text, tuple(replace(known[each.name], spans=each.spans) for each in named), self.words.name)
