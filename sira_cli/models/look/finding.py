"""The claims of a text that a second look asks about: their kinds, their words, the questions."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace

from sira_cli.language.listed import Asked
from sira_cli.language.scripts import composed
from sira_cli.language.things import OBJECTS, Thing, Words
from sira_cli.models.loading.preset import Preset
from sira_cli.models.look.claims import Check, Claim
from sira_cli.models.look.kinds import KINDS
from sira_cli.models.look.verify import Verify


class ClaimFinder(Words):
    """Finds the claims of texts; as `Words`, also for decoding without some of them.

    Attributes:
        name: of the vocabulary, for the record.
        wording: the questions and words of the language.
        objects: finds the objects.
        kinds: the kinds of claims that are asked about.
        asks: whether the model is asked for the objects of a text.
    """

    def __init__(self, verify: Verify, preset: Preset) -> None:
        """Choose the finder of objects, the kinds and the language.

        Args:
            verify: how to look.
            preset: the settings that `verify` leaves open.

        Raises:
            SettingsError: the language is not known, or has no question of a kind.
        """
        self.wording, self.objects = verify.wording(preset), verify.finder(preset)
        self.kinds = {name: KINDS[name] for name in verify.kinds(preset)}
        self.name, self.asks = self.objects.name, isinstance(self.objects, Asked)
        self._around = preset.text

    def group(self, name: str) -> str:
        """Return the head of an object's synonyms."""
        return self.objects.group(name)

    def things(self, text: str) -> list[Thing]:
        """Return the claims of a text, as far as the text alone tells."""
        return self._in(text, lambda plain: self._claims(plain, self.objects.things(plain)))

    def named(self, text: str, ask: Callable[[str], str]) -> list[Thing]:
        """Return the claims of a text, but not those of the preset's prefix and suffix, which the model did not write.

        Args:
            text: the text.
            ask: returns the model's answer to a prompt; called if the model is asked for the objects.
        """
        first, last = self._around.written(text)
        found = []
        for thing in self._named(text, ask):
            spans = tuple(span for span in thing.spans if first <= span[0] and span[1] <= last)
            if spans or not thing.spans:
                found.append(replace(thing, spans=spans))
        return found

    def alone(self, string: str) -> list[Thing]:
        """Return the claims of a string by itself; where the model is asked for objects, the string is one."""
        return self._named(string, lambda prompt: string)

    def question(self, thing: Thing) -> str:
        """Return the question about a claim."""
        return self.wording.question(thing)

    def check(
        self,
        text: str,
        named: Sequence[Thing],
        known: dict[str, Claim],
        ask: Callable[[Sequence[Thing]], Sequence[Claim]],
    ) -> Check:
        """Return the check of a text; what an earlier text about the picture claimed is not asked about again.

        Args:
            text: the text.
            named: its claims.
            known: the claims asked about before, by their keys; new ones are added.
            ask: asks about claims.
        """
        new = [thing for thing in named if thing.key not in known]
        known |= {claim.key: claim for claim in ask(new)}
        claims = [replace(known[thing.key], spans=thing.spans) for thing in named]
        objects = tuple(claim for claim in claims if claim.kind == OBJECTS)
        rest = tuple(claim for claim in claims if claim.kind != OBJECTS)
        return Check(text, objects, self.name, None if {*self.kinds} == {OBJECTS} else rest)

    def _named(self, text: str, ask: Callable[[str], str]) -> list[Thing]:
        if isinstance(self.objects, Asked):
            answer = unicodedata.normalize("NFC", ask(self.objects.request(text)))
            asked = self.objects
            return self._in(text, lambda plain: self._claims(plain, asked.found(answer, plain)))
        return self.things(text)

    def _in(self, text: str, find: Callable[[str], list[Thing]]) -> list[Thing]:
        """Return the claims that are found in a text once its letters are composed, with their places in it."""
        if unicodedata.is_normalized("NFC", text):
            return find(text)
        plain, places = composed(text)
        return [
            replace(thing, spans=tuple((places[start], places[end]) for start, end in thing.spans))
            for thing in find(plain)
        ]

    def _claims(self, text: str, objects: Sequence[Thing]) -> list[Thing]:
        return [thing for kind in self.kinds.values() for thing in kind.find(text, objects, self.wording)]
