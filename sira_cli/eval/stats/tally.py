"""Counts by picture, of which figures are ratios of sums."""

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


def ratio(part: float, whole: float) -> float:
    """Return the quotient; 0 where the whole is 0."""
    return part / whole if whole else 0.0
