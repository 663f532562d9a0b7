"""Counts by picture; figures are ratios of their sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Counts = dict[str, float]
Denominators = Mapping[str, Sequence[str]]  # by figure, the counts that add up to its denominator


@dataclass
class Tally:
    """One method's answers in one group, counted.

    Attributes:
        counts: by picture; every picture has the same keys.
        right: by ask, whether the answer is right, or a caption free of hallucinations: for paired tests.
    """

    counts: dict[str, Counts] = field(default_factory=dict)
    right: dict[str, bool] = field(default_factory=dict)

    def total(self) -> Counts:
        """Return sums over all pictures."""
        rows = list(self.counts.values())
        return {name: sum(row[name] for row in rows) for name in rows[0]} if rows else {}


def common(tallies: Mapping[str, Tally], pictures: Mapping[str, str]) -> dict[str, Tally]:
    """Leave out pictures that failed under any method, except methods without any answers."""
    found = {name: tally for name, tally in tallies.items() if tally.right}
    asked = {ask for tally in found.values() for ask in tally.right}
    failed = {pictures[ask] for tally in found.values() for ask in asked - tally.right.keys()}
    return {
        name: Tally(
            {picture: counts for picture, counts in tally.counts.items() if picture not in failed},
            {ask: right for ask, right in tally.right.items() if pictures[ask] not in failed},
        )
        for name, tally in found.items()
    }


def ratio(part: float, whole: float) -> float:
    """Return the quotient; 0 if `whole` is 0."""
    return part / whole if whole else 0.0
