"""The objects that a text names, each with its support by the picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sira_cli.models.answering.answer import Answer

LIST_TOKENS = 256  # of an answer that lists the objects of a text


@dataclass(frozen=True)
class Claim:
    """An object that a text names, and its support by the picture.

    Attributes:
        thing: in the singular.
        spans: start and end of every mention, in characters of the text.
        support: probability of yes against no, 0 to 1.
        neither: probability of an answer that is neither.
        image: number (from 1) of the picture that supports the claim best, if there are several.
    """

    thing: str
    spans: tuple[tuple[int, int], ...]
    support: float
    neither: float
    image: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "thing": self.thing,
            "spans": [list(span) for span in self.spans],
            "support": self.support,
            "neither": self.neither,
            **({} if self.image is None else {"image": self.image}),
        }

    def removed(self) -> dict[str, Any]:
        """Return it as JSON values, for a text that does not have it."""
        return {"thing": self.thing, "support": self.support}


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

    def below(self, threshold: float) -> list[Claim]:
        """Return the objects whose support is below a threshold."""
        return [claim for claim in self.objects if claim.support < threshold]

    def added_to(self, answer: Answer, settings: dict[str, Any]) -> Answer:
        """Return an answer with the objects and the settings of the look (`Verify.settings`), for its record."""
        return replace(answer, objects=[claim.to_json() for claim in self.objects], verify=settings)


def unsupported(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the objects of a record whose support is below its threshold; none without a second look."""
    verify = record.get("verify")
    return [one for one in record.get("objects") or () if one["support"] < verify["min_support"]] if verify else []


def unsure(record: Mapping[str, Any]) -> list[str]:
    """Return the names of the objects of a record that its picture does not support."""
    return [str(one["thing"]) for one in unsupported(record)]


def best_of(pictures: Sequence[Sequence[Claim]]) -> list[Claim]:
    """Return each object's claim by the picture that supports it best: a group shows what one of its pictures shows."""
    if len(pictures) == 1:
        return [*pictures[0]]
    numbered = ([replace(claim, image=number) for claim in each] for number, each in enumerate(pictures, start=1))
    return [max(claims, key=lambda claim: claim.support) for claims in zip(*numbered, strict=True)]


def removed_of(claims: Iterable[Claim]) -> list[dict[str, Any]]:
    """Return claims as JSON values without places in a text, the best supported first."""
    return [claim.removed() for claim in sorted(claims, key=lambda claim: -claim.support)]
