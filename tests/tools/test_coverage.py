"""How often intervals hold the true value, on cases where those of a percentile bootstrap fail."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sira_cli.eval.figures import POPE_DENOMINATORS, pope_figures
from sira_cli.eval.statistics import estimates, student
from tools.coverage import CELLS, Case, coverage

RUNS = 400
HARD = (  # and the percentile bootstrap's coverage
    Case("accuracy", 50, 1, 0.0, 0.97),  # 0.79
    Case("accuracy", 10, 6, 0.3, 0.97),  # 0.64
    Case("F1", 10, 6, 0.3, 0.97),
    Case("CHAIRi", 10, 0, 0.3, 0.97),
    Case("- accuracy", 50, 6, 0.3, 0.9, 0.01, 0.0),  # 0.8
    Case("- accuracy", 50, 1, 0.0, 0.9, 0.01, 0.0),  # 0.39
    Case("- CHAIRi", 20, 0, 0.3, 0.97),
)
EASY = (Case("accuracy", 500, 9, 0.3, 0.8), Case("- accuracy", 500, 6, 0.0, 0.9, 0.05, 0.05))


@pytest.mark.parametrize("case", [*HARD, *EASY], ids=str)
def test_intervals_hold_the_true_value(case):
    held = coverage(case, RUNS)
    assert held > 0.92  # 0.95 less three standard errors
    if case in EASY:
        assert held < 0.98  # and they are no wider than they must be


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 49])
def test_student_is_scipys(freedom):
    assert student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-3)


def test_influence_is_the_jackknifes():
    """A picture's influence is about how much the figure moves when it is left out."""
    counts = np.random.default_rng(0).integers(0, 4, size=(400, len(CELLS))).astype(float)
    found = estimates(CELLS, counts, pope_figures, POPE_DENOMINATORS)
    rest = [pope_figures(dict(zip(CELLS, counts.sum(axis=0) - row, strict=True))) for row in counts]
    for name, estimate in found.items():
        left = np.array([each[name] for each in rest])
        assert estimate.influence == pytest.approx(left.mean() - left, abs=0.02 * np.abs(estimate.influence).max())
