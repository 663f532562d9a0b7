"""How well a score separates true words from wrong ones: the area under the ROC curve, with interval over pictures."""

from __future__ import annotations

import numpy as np

from sira_cli.eval.stats.bootstrap import RESAMPLES, Figure


def auroc(positive: np.ndarray, score: np.ndarray) -> float:
    """Return the probability that a positive scores above a negative, ties counted half; NaN without both kinds.

    Args:
        positive: `[N]` bool.
        score: `[N]`.
    """
    order = np.argsort(score)
    return _area(positive[order], _firsts(score[order]), np.ones(len(score)))


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
    order = np.argsort(score)
    pictures, sorted_positive, firsts = pictures[order].astype(int), positive[order], _firsts(score[order])
    drawn = []
    for _ in range(RESAMPLES):
        times = np.bincount(rng.integers(size, size=size), minlength=size)  # how often each picture is drawn
        drawn.append(_area(sorted_positive, firsts, times[pictures]))
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return Figure(100 * auroc(positive, score), 100 * float(low), 100 * float(high))


def _firsts(score: np.ndarray) -> np.ndarray:
    """Return where each value of sorted scores begins."""
    return np.unique(score, return_index=True)[1]


def _area(positive: np.ndarray, firsts: np.ndarray, times: np.ndarray) -> float:
    """Return the area for words sorted by score, each weighted by its count: `[N]`."""
    if not len(firsts):
        return float("nan")
    ups, downs = (np.add.reduceat(times * kind, firsts) for kind in (positive, ~positive))  # by value of the score
    pairs = ups.sum() * downs.sum()
    below = downs.cumsum() - downs / 2
    return float((ups * below).sum() / pairs) if pairs else float("nan")
