"""The objects that a text names, each with its support, and the question about one, wherever it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sira_cli.language import things
from sira_cli.language.things import Thing
from sira_cli.models.records import Answer

YES = ("Yes", "yes", "YES")
NO = ("No", "no", "NO", "Not", "not")


@dataclass(frozen=True)
class Claim:
    """An object that a text names, and its support by the picture.

    Attributes:
        thing: in the singular.
        spans: start and end of every mention, in characters of the text.
        support: probability of yes against no, 0 to 1.
        neither: probability of an answer that is neither.
        image: of several pictures, the number (from 1) of the one that supports it best.
    """

    thing: str
    spans: tuple[tuple[int, int], ...]
    support: float
    neither: float
    image: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        values = {**asdict(self), "spans": [list(span) for span in self.spans]}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Check:
    """A text, object by object.

    Attributes:
        text: the checked text.
        objects: the objects that it names, in order; empty if none was recognised.
        words: the word list for recognising objects.
    """

    text: str
    objects: tuple[Claim, ...]
    words: str

    @property
    def support(self) -> float:
        """The lowest support of an object; 1 without objects."""
        return min((claim.support for claim in self.objects), default=1.0)

    def below(self, line: float) -> list[Claim]:
        """Return the objects whose support is below a line."""
        return [claim for claim in self.objects if claim.support < line]

    def added_to(self, answer: Answer, settings: dict[str, Any]) -> Answer:
        """Return an answer with the objects and the settings of the look (`Verify.settings`), for its record."""
        return replace(answer, objects=[claim.to_json() for claim in self.objects], verify=settings)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "objects": [claim.to_json() for claim in self.objects]}


def question_about(wording: str, thing: Thing) -> str:
    """Return the question about an object; `wording` is a preset's `prompts.verify`."""
    return wording.replace("{thing}", things.with_article(thing.name))


def best_of(pictures: Sequence[Sequence[Claim]]) -> list[Claim]:
    """Return each object's claim by the picture that supports it best: a group shows what one of its pictures shows.

    Args:
        pictures: of P pictures that are shown together, the claims about the same N objects.
    """
    if len(pictures) == 1:
        return [*pictures[0]]
    numbered = ([replace(claim, image=number) for claim in each] for number, each in enumerate(pictures, start=1))
    return [max(claims, key=lambda claim: claim.support) for claims in zip(*numbered, strict=True)]
