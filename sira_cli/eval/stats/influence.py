"""The influence of each picture on figures made from sums of counts, to first order (the delta method)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sira_cli.eval.stats.intervals import Estimate, Share
from sira_cli.eval.stats.tally import Denominators

Figures = Callable[[Mapping[str, float]], dict[str, float]]
STEP = 1e-4  # of a count, for central differences


def estimates(
    names: Sequence[str],
    counts: np.ndarray,
    figures: Figures,
    denominators: Denominators,
    smooth: Figures | None = None,
) -> dict[str, Estimate]:
    """Return the figures of N pictures, ready for intervals."""
    total = dict(zip(names, counts.sum(axis=0).tolist(), strict=True))
    values = figures(total)
    influence = counts @ _slopes(total, smooth or figures)  # [N, figures]
    influence -= influence.mean(axis=0)
    columns = {name: number for number, name in enumerate(names)}
    shares = {of: _share(counts[:, [columns[name] for name in of]]) for of in map(tuple, denominators.values())}
    return {
        name: Estimate(
            float(value),
            influence[:, number],
            shares[tuple(denominators[name])] if name in denominators else None,
        )
        for number, (name, value) in enumerate(values.items())
    }


def _slopes(total: Mapping[str, float], figures: Figures) -> np.ndarray:
    """Return the derivative of each figure with respect to each count, `[names, figures]`; 0 for a count that no
    picture has.
    """
    rows, none = [], np.zeros(len(figures(total)))
    for name, count in total.items():
        if not count:
            rows.append(none)
            continue
        more, fewer = (figures({**total, name: count * (1 + step)}) for step in (STEP, -STEP))
        rows.append((np.array([*more.values()]) - np.array([*fewer.values()])) / (2 * STEP * count))
    return np.array(rows)


def _share(counts: np.ndarray) -> Share:
    sizes = counts.sum(axis=1)
    answers = float(sizes.sum())
    return Share(answers, sizes / answers if answers else sizes)
