"""The objects that a text names, each with its support by the picture; doubtful words, in one scale.

A word is to doubt if its grounding is below `DOUBTED`, or its support in a second look below that look's threshold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sira_cli.language import function_words
from sira_cli.models.texts import Answer

DOUBTED = 0.4  # a grounding below: an object word of the bundled model is absent more often than one on the whole
_SHADES = (1.0, 0.75, 0.5, 0.25)  # below each of these parts of a threshold is one more degree of doubt
STEPS = tuple(DOUBTED * shade for shade in _SHADES)  # of a grounding
_EDGES = re.compile(r"^[\W_]+|[\W_]+$")


@dataclass(frozen=True)
class Claim:
    """An object that a text names, and its support by the picture."""

    thing: str  # in the singular
    spans: tuple[tuple[int, int], ...]  # start and end of every mention, in characters of the text
    support: float  # probability of yes against no, 0 to 1
    neither: float  # probability of an answer that is neither
    image: int | None = None  # number (from 1) of the picture that supports the claim best, if there are several

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        claim = {"thing": self.thing, "spans": [list(span) for span in self.spans]}
        own = {} if self.image is None else {"image": self.image}
        return {**claim, "support": self.support, "neither": self.neither, **own}


@dataclass(frozen=True)
class Check:
    """A text, object by object."""

    text: str
    objects: tuple[Claim, ...]  # in order; empty if none was recognised
    words: str  # the name of the word list

    @property
    def support(self) -> float:
        """The lowest support of an object; 1 without objects."""
        return min((claim.support for claim in self.objects), default=1.0)

    def added_to(self, answer: Answer, settings: dict[str, Any]) -> Answer:
        """Return an answer with the objects and the settings of the look (`Verify.settings`), for its record."""
        return replace(answer, objects=[claim.to_json() for claim in self.objects], verify=settings)


def unsupported(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the objects of a record whose support is below its threshold; none without a second look."""
    verify = record.get("verify")
    return [one for one in record.get("objects") or () if one["support"] < verify["min_support"]] if verify else []


def best_of(pictures: Sequence[Sequence[Claim]]) -> list[Claim]:
    """Return each object's claim by the picture that supports it best: a group shows what one of its pictures shows."""
    if len(pictures) == 1:
        return [*pictures[0]]
    numbered = ([replace(claim, image=number) for claim in each] for number, each in enumerate(pictures, start=1))
    return [max(claims, key=lambda claim: claim.support) for claims in zip(*numbered, strict=True)]


def without_places(claims: Iterable[Claim]) -> list[dict[str, Any]]:
    """Return claims as JSON values, for a text that does not have them."""
    return [{"thing": claim.thing, "support": claim.support} for claim in claims]


def doubt(score: float, threshold: float = DOUBTED) -> int:
    """Return the degree of doubt, 0 (none) to 4, for a word's grounding, or for a support and its threshold."""
    return sum(score < threshold * shade for shade in _SHADES)


def bare(word: str) -> str:
    """Return a word without the punctuation around it."""
    return _EDGES.sub("", word)


def says_something(word: str) -> bool:
    """Return whether a word can be true or false of a picture: English function words and bare punctuation cannot."""
    core = bare(word).lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return core != "" and core not in function_words()
