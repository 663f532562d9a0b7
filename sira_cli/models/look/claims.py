"""The claims of a text about a picture, each with its support: the objects that it names, and their properties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sira_cli.data.records.record import Answer
from sira_cli.language.things import OBJECTS, key_of

YES = ("Yes", "yes", "YES")
NO = ("No", "no", "NO", "Not", "not")
LIST_TOKENS = 256  # of an answer that lists the objects of a text


@dataclass(frozen=True)
class Claim:
    """An object that a text names, or a property that it gives to one, and its support by the picture.

    Attributes:
        thing: in the singular.
        spans: start and end of every mention, in characters of the text; of a property, those of its words.
        support: probability of yes against no, 0 to 1; of a property, of its value against all values.
        neither: probability of an answer that is neither.
        kind: `objects`, or another of `kinds.KINDS`.
        value: the property, such as a colour; empty for `objects`.
        image: number (from 1) of the picture that supports the claim best, if there are several.
        answer: of a property, the likeliest value.
    """

    thing: str
    spans: tuple[tuple[int, int], ...]
    support: float
    neither: float
    kind: str = OBJECTS
    value: str = ""
    image: int | None = None
    answer: str = ""

    @property
    def key(self) -> str:
        """As `Thing.key`."""
        return key_of(self.thing, self.kind, self.value)

    @property
    def shown(self) -> str:
        """The claim for people: `dog`, or `car: red`."""
        return shown(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return self._named() | {
            "spans": [list(span) for span in self.spans],
            "support": self.support,
            "neither": self.neither,
            **({} if self.image is None else {"image": self.image}),
            **({"answer": self.answer} if self.answer else {}),
        }

    def removed(self) -> dict[str, Any]:
        """Return it as JSON values, for a text that no longer has it."""
        return self._named() | {"support": self.support}

    def _named(self) -> dict[str, Any]:
        if self.kind == OBJECTS:
            return {"thing": self.thing}
        return {"kind": self.kind, "thing": self.thing, "value": self.value}


def removed_of(claims: Iterable[Claim]) -> list[dict[str, Any]]:
    """Return claims as JSON values without places in a text, the best supported first."""
    return [claim.removed() for claim in sorted(claims, key=lambda claim: -claim.support)]


@dataclass(frozen=True)
class Check:
    """A text, claim by claim.

    Attributes:
        text: the checked text.
        objects: the objects that it names, in order; empty if none was recognised.
        words: the word list for recognising objects.
        claims: its claims of other kinds; None: they were not asked about.
    """

    text: str
    objects: tuple[Claim, ...]
    words: str
    claims: tuple[Claim, ...] | None = None

    @property
    def all(self) -> tuple[Claim, ...]:
        """Its objects and its other claims."""
        return self.objects + (self.claims or ())

    @property
    def support(self) -> float:
        """The lowest support of a claim; 1 without claims."""
        return min((claim.support for claim in self.all), default=1.0)

    def below(self, threshold: float | Mapping[str, float]) -> list[Claim]:
        """Return the claims whose support is below a threshold; a mapping has the threshold of each kind."""
        thresholds = (
            threshold
            if isinstance(threshold, Mapping)
            else dict.fromkeys({claim.kind for claim in self.all}, threshold)
        )
        return [claim for claim in self.all if claim.support < thresholds[claim.kind]]

    def added_to(self, answer: Answer, settings: dict[str, Any]) -> Answer:
        """Return an answer with the claims and the settings of the look (`Verify.settings`), for its record."""
        return replace(answer, **self.fields(), verify=settings)

    def fields(self) -> dict[str, Any]:
        """Return the claims as keys of a record."""
        parts = {"objects": self.objects} | ({} if self.claims is None else {"claims": self.claims})
        return {name: [claim.to_json() for claim in part] for name, part in parts.items()}


def shown(claim: Mapping[str, Any]) -> str:
    """Return a claim in a record as people read it: `dog`, `car: red`."""
    return f"{claim['thing']}: {claim['value']}" if claim.get("value") else str(claim["thing"])


def by_kind(record: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the claims of a record by their kind."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for claim in (*(record.get("objects") or ()), *(record.get("claims") or ())):
        found.setdefault(claim.get("kind", OBJECTS), []).append(claim)
    return found


def threshold_of(claim: Mapping[str, Any], verify: Mapping[str, Any]) -> float:
    """Return the support below which a claim in a record is not supported, from the record's `verify`."""
    kinds = verify.get("claims") or {}
    return float(kinds.get(claim.get("kind", OBJECTS), verify)["min_support"])


def unsupported(claims: Iterable[Mapping[str, Any]], verify: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the claims of a record below their thresholds; `verify` is the record's."""
    return [claim for claim in claims if claim["support"] < threshold_of(claim, verify)]


def unsure(record: Mapping[str, Any]) -> list[str]:
    """Return the claims of a record that its picture does not support, as people read them."""
    found = [*(record.get("objects") or ()), *(record.get("claims") or ())]
    return [shown(claim) for claim in unsupported(found, record.get("verify") or {})] if record.get("verify") else []


def unsure_text(record: Mapping[str, Any]) -> str:
    """Return the claims of a record that are not supported as a sentence, such as "Unsure: bird, cup."."""
    return f"Unsure: {', '.join(unsure(record)) or 'nothing'}."


def marked_text(record: Mapping[str, Any]) -> str:
    """Return the text of a record with brackets around the words that are not supported: `a [bird] on a tree`."""
    text, found = str(record["text"]), [*(record.get("objects") or ()), *(record.get("claims") or ())]
    low = unsupported(found, record.get("verify") or {}) if record.get("verify") else []
    for start, end in sorted({(start, end) for claim in low for start, end in claim["spans"]}, reverse=True):
        text = f"{text[:start]}[{text[start:end]}]{text[end:]}"
    return text


def best_of(pictures: Sequence[Sequence[Claim]]) -> list[Claim]:
    """Return each object's claim by the picture that supports it best: a group shows what one of its pictures shows.

    Args:
        pictures: the claims about the same N objects in each of P pictures that are shown together.
    """
    if len(pictures) == 1:
        return [*pictures[0]]
    numbered = ([replace(claim, image=number) for claim in each] for number, each in enumerate(pictures, start=1))
    return [max(claims, key=lambda claim: claim.support) for claims in zip(*numbered, strict=True)]
