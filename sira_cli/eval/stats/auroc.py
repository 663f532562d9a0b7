"""How well a score separates true words from wrong ones: the area under the ROC curve, with interval over pictures."""

from __future__ import annotations

import numpy as np

from sira_cli.eval.stats.intervals import Estimate, Figure, Share


def auroc(positive: np.ndarray, score: np.ndarray) -> float:
    """Return the probability that a positive scores above a negative, ties counted half; NaN without both kinds."""
    if positive.all() or not positive.any():
        return float("nan")
    return float(_ahead(positive, score)[positive].mean())


def auroc_interval(pictures: np.ndarray, positive: np.ndarray, score: np.ndarray, size: int) -> Figure | None:
    """Return the AUROC in percent with its 95 % interval over pictures (Obuchowski 1997); None without both kinds."""
    if positive.all() or not positive.any():
        return None
    ahead, numbers = _ahead(positive, score), pictures.astype(int)
    value = float(ahead[positive].mean())
    moved = (ahead - value) / np.where(positive, positive.sum(), (~positive).sum())
    rarer = positive if 2 * positive.sum() <= len(positive) else ~positive
    weight = np.bincount(numbers[rarer], minlength=size) / rarer.sum()
    influence = np.bincount(numbers, 100 * moved, minlength=size)
    return Estimate(100 * value, influence, Share(float(rarer.sum()), weight)).figure()


def _ahead(positive: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Return for each word the share of the other kind that it is ranked correctly against, ties half: `[N]`."""
    _, values = np.unique(score, return_inverse=True)
    ups, downs = (np.bincount(values[kind], minlength=values.max() + 1) for kind in (positive, ~positive))
    below = (downs.cumsum() - downs / 2) / downs.sum()
    above = 1 - (ups.cumsum() - ups / 2) / ups.sum()
    ahead: np.ndarray = np.where(positive, below[values], above[values])
    return ahead
