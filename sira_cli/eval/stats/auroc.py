"""How well a score tells true words from wrong ones: the area under the ROC curve, with an interval over pictures."""

from __future__ import annotations

import numpy as np

from sira_cli.eval.stats.bootstrap import RESAMPLES, Figure


def auroc(positive: np.ndarray, score: np.ndarray) -> float:
    """Return the probability that a positive scores above a negative, ties counted half; NaN without both kinds.

    Args:
        positive: `[N]` bool.
        score: `[N]`.
    """
    _, rank, count = np.unique(score, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    average = last - (count - 1) / 2  # the mean of the ranks that equal scores share
    ups, downs = int(positive.sum()), int((~positive).sum())
    if not ups or not downs:
        return float("nan")
    return float((average[rank][positive].sum() - ups * (ups + 1) / 2) / (ups * downs))


def auroc_interval(pictures: np.ndarray, positive: np.ndarray, score: np.ndarray, size: int) -> Figure | None:
    """Return the AUROC in percent with its 95 % interval; None without both kinds. The bootstrap draws pictures.

    Args:
        pictures: `[N]` the number of each word's picture, 0 to `size` - 1.
        positive, score: as for `auroc`.
        size: number of pictures.
    """
    if positive.all() or not positive.any():
        return None
    rng = np.random.default_rng(0)
    words = [np.flatnonzero(pictures == picture) for picture in range(size)]
    drawn = []
    for _ in range(RESAMPLES):
        picked = np.concatenate([words[picture] for picture in rng.integers(size, size=size)])
        drawn.append(auroc(positive[picked], score[picked]))
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return Figure(100 * auroc(positive, score), 100 * float(low), 100 * float(high))
