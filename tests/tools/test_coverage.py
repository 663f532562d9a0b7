"""How often 95 % intervals hold the true value, in simulations where those of a percentile bootstrap fail.

A picture's answers are alike: each picture has its own chances (Dirichlet), so that two answers about it correlate.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from sira_cli.eval import figures
from sira_cli.eval.statistics import auroc_interval, estimates, student

RUNS = 400
CELLS = (*figures.CELLS, "neither", "words")


@pytest.mark.parametrize(
    ("pictures", "questions", "correlation", "outcomes"),  # the last: both methods are right, only one is, none is
    [
        (50, 1, 0.0, (0.89, 0.08, 0.0, 0.03)),  # the percentile bootstrap's holds the accuracy in 0.79 of the runs
        (10, 6, 0.3, (0.87, 0.1, 0.0, 0.03)),  # 0.64
        (50, 6, 0.3, (0.89, 0.01, 0.0, 0.1)),  # the difference in 0.8
        (50, 1, 0.0, (0.89, 0.01, 0.0, 0.1)),  # 0.39
        (500, 6, 0.0, (0.85, 0.05, 0.05, 0.05)),
    ],
)
def test_intervals_hold_the_true_value(pictures, questions, correlation, outcomes):
    rng, held, (both, first, second, _) = np.random.default_rng([pictures, questions]), Counter(), outcomes
    for _ in range(RUNS):
        own = np.tile(outcomes, (pictures, 1))
        if correlation:
            own = rng.gamma(own * (1 - correlation) / correlation) + 1e-300
            own /= own.sum(axis=1, keepdims=True)
        asked = rng.binomial(1, 0.5, pictures) if questions == 1 else np.full(pictures, questions // 2)
        of_yes, of_no = (rng.multinomial(size, own) for size in (asked, questions - asked))
        found = []
        for right, wrong in (([0, 1], [2, 3]), ([0, 2], [1, 3])):
            cells = of_yes[:, right], of_no[:, wrong], of_no[:, right], of_yes[:, wrong]  # TP, FP, TN, FN
            counts = np.pad(np.stack([cell.sum(axis=1) for cell in cells], axis=1), ((0, 0), (0, 4))).astype(float)
            found.append(estimates(CELLS, counts, figures.pope_figures, figures.POPE_DENOMINATORS))
        # As many questions have yes as no, and both are answered alike, so that F1 is the accuracy.
        intervals = {name: (found[0][name].figure(), both + first) for name in ("accuracy", "F1")}
        intervals["difference"] = found[1]["accuracy"].minus(found[0]["accuracy"]), second - first
        held += Counter(
            {name: each.low - 1e-9 <= 100 * truth <= each.high + 1e-9 for name, (each, truth) in intervals.items()}
        )
    shares = [held[name] / RUNS for name in ("accuracy", "F1", "difference")]
    assert min(shares) > 0.92  # 0.95 less three standard errors
    if pictures == 500:
        assert max(shares) < 0.98  # and they are no wider than they must be


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 49])
def test_student_is_scipys(freedom):
    assert student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-3)


def test_influence_is_the_jackknifes():
    """A picture's influence is about how much the figure moves when it is left out."""
    counts = np.random.default_rng(0).integers(0, 4, size=(400, len(CELLS))).astype(float)
    found = estimates(CELLS, counts, figures.pope_figures, figures.POPE_DENOMINATORS)
    rest = [figures.pope_figures(dict(zip(CELLS, counts.sum(axis=0) - row, strict=True))) for row in counts]
    for name, estimate in found.items():
        left = np.array([each[name] for each in rest])
        assert estimate.influence == pytest.approx(left.mean() - left, abs=0.02 * np.abs(estimate.influence).max())


def test_the_interval_of_an_auroc_is_as_wide_as_the_jackknifes():
    """Which leaves out picture by picture; the AUROC itself is the share of pairs in order, a tie half."""
    rng = np.random.default_rng(7)
    pictures, positive = np.arange(900) // 3, rng.random(900) < 0.7
    score = rng.integers(5, size=900) + 2 * positive + np.repeat(rng.integers(6, size=300), 3)
    found = auroc_interval(pictures, positive, score, 300)
    ahead = score[positive][:, None] - score[~positive]
    assert found.value == pytest.approx(100 * np.mean((ahead > 0) + (ahead == 0) / 2))
    rest = [pictures != out for out in range(300)]
    left = [auroc_interval(pictures[each], positive[each], score[each], 300).value for each in rest]
    assert found.half == pytest.approx(1.96 * np.sqrt(299 * np.var(left)), rel=0.05)
