"""Whether two methods differ, on the same questions: McNemar's test; and figures of resampled pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sira_cli.eval.base import Counts
from sira_cli.eval.stats.bootstrap import draws

Figures = dict[str, float]


def mcnemar(only_first: int, only_second: int) -> float:
    """McNemar's exact test, two-sided: how likely so unequal a split of the discordant answers is by chance.

    Args:
        only_first: answers that only the first method has right.
        only_second: those that only the second has right.
    """
    discordant = only_first + only_second
    tail = term = 1  # binomial coefficients, each from the one before
    for count in range(min(only_first, only_second)):
        term = term * (discordant - count) // (count + 1)
        tail += term
    share: float = 2 * tail / 2**discordant
    return min(1.0, share)


def resample(rows: Sequence[Counts], figures: Callable[[Mapping[str, float]], Figures]) -> dict[str, np.ndarray]:
    """Each figure of resampled pictures: `[RESAMPLES]` each.

    Args:
        rows: counts of N pictures.
        figures: from sums of counts.
    """
    names = list(rows[0])
    counts = np.array([[row[name] for name in names] for row in rows], dtype=float)  # [N, counts]
    totals = (draws(len(rows)) @ counts).tolist()  # [RESAMPLES, counts]
    drawn = [figures(dict(zip(names, total, strict=True))) for total in totals]
    return {name: np.array([one[name] for one in drawn]) for name in drawn[0]}
