"""The objects of a text that a second look asks about, and the question about each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sira_cli.language.listed import Asked
from sira_cli.language.things import Thing, with_article
from sira_cli.models.loading.preset import Preset
from sira_cli.models.look.claims import Check, Claim
from sira_cli.models.look.verify import Verify


class ObjectFinder:
    """Finds the objects of texts, and words the questions about them.

    Attributes:
        words: finds the objects.
        asks: whether the model is asked for the objects of a text.
    """

    def __init__(self, verify: Verify, preset: Preset) -> None:
        """Choose the finder and the question."""
        self.words = verify.finder(preset)
        self.asks = isinstance(self.words, Asked)
        self._question, self._around = preset.prompts.verify, preset.text

    def named(self, text: str, ask: Callable[[str], str]) -> list[Thing]:
        """Return the objects of a text, without those of the preset's prefix and suffix."""
        first, last = self._around.written(text)
        found = []
        for thing in self._named(text, ask):
            spans = tuple(span for span in thing.spans if first <= span[0] and span[1] <= last)
            if spans or not thing.spans:
                found.append(replace(thing, spans=spans))
        return found

    def alone(self, string: str) -> list[Thing]:
        """Return the objects of a string by itself; where the model is asked for objects, the string is one."""
        return self._named(string, lambda prompt: string)

    def question(self, thing: Thing) -> str:
        """Return the question about an object."""
        return self._question.replace("{thing}", with_article(thing.name)).replace("{name}", thing.name)

    def check(
        self,
        text: str,
        named: Sequence[Thing],
        known: dict[str, Claim],
        ask: Callable[[Sequence[Thing]], Sequence[Claim]],
    ) -> Check:
        """Return the check of a text; what an earlier text about the picture named is not asked about again."""
        new = [thing for thing in named if thing.name not in known]
        known |= {claim.thing: claim for claim in ask(new)}
        return Check(text, tuple(replace(known[each.name], spans=each.spans) for each in named), self.words.name)

    def _named(self, text: str, ask: Callable[[str], str]) -> list[Thing]:
        if isinstance(self.words, Asked):
            return self.words.found(ask(self.words.request(text)), text)
        return self.words.things(text)
