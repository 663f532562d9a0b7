"""Whether two methods differ, on the same questions: McNemar's test; and bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sira_cli.demo.figures import RESAMPLES, Figure, draws
from sira_cli.eval.base import Counts

Figures = dict[str, float]


def mcnemar(only_first: int, only_second: int) -> float:
    """McNemar's exact test, two-sided: how likely so unequal a split of the discordant answers is by chance.

    Args:
        only_first: answers that only the first method has right.
        only_second: those that only the second has right.
    """
    discordant = only_first + only_second
    tail = sum(math.comb(discordant, count) for count in range(min(only_first, only_second) + 1))
    share: float = 2 * tail / 2**discordant
    return min(1.0, share)


def resample(rows: Sequence[Counts], figures: Callable[[Mapping[str, float]], Figures]) -> dict[str, np.ndarray]:
    """Each figure of RESAMPLES draws of N pictures with replacement, the same at every call: `[RESAMPLES]` each.

    Args:
        rows: counts of N pictures.
        figures: from sums of counts.
    """
    names = list(rows[0])
    counts = np.array([[row[name] for name in names] for row in rows], dtype=float)  # [N, counts]
    totals = (draws(len(rows)) @ counts).tolist()  # [RESAMPLES, counts]
    drawn = [figures(dict(zip(names, total, strict=True))) for total in totals]
    assert len(drawn) == RESAMPLES
    return {name: np.array([one[name] for one in drawn]) for name in drawn[0]}


def interval(value: float, drawn: np.ndarray) -> Figure:
    """A figure with its 95 % percentile interval."""
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Figure(value, float(low), float(high))
