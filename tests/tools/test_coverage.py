"""How often 95 % intervals hold the true value, in simulations where those of a percentile bootstrap fail.

A picture's answers are alike: each picture has its own chances (Dirichlet), so that two answers about it correlate.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np
import pytest
from scipy import stats

from sira_cli.eval import figures
from sira_cli.eval.statistics import estimates, student

RUNS = 400
MENTIONS = 4  # mean per caption: one, and a Poisson number of others
DROPPED = 0.25  # share of the hallucinated mentions that the second method leaves out
CELLS = ("TP", "FP", "TN", "FN", "unanswered yes", "unanswered no", "neither", "words")
COUNTS = ("captions", "hallucinated captions", "mentions", "hallucinated mentions", "objects", "recalled objects")


@dataclass(frozen=True)
class Case:
    """Pictures that are drawn repeatedly; `- accuracy` and `- CHAIRi` are differences of two methods."""

    figure: str
    pictures: int
    questions: int  # per picture; 0 for captions
    correlation: float  # of two answers about a picture, or two mentions in a caption
    right: float  # chance that an answer, or a mention, of the first method is right
    only_first: float = 0.0  # chance that only the first method's answer is right
    only_second: float = 0.0

    def truth(self) -> float:
        wrong, yes = 1 - self.right, 0.5 if self.questions <= 1 else self.questions // 2 / self.questions
        values = {
            "accuracy": self.right,
            "F1": 2 * self.right * yes / (self.right * yes + wrong * (1 - yes) + yes),
            "CHAIRi": wrong,
            "- accuracy": self.only_second - self.only_first,
            "- CHAIRi": wrong * (1 - DROPPED) / (1 - wrong * DROPPED) - wrong,
        }
        return 100 * values[self.figure]

    def interval(self, rng):
        """Draw the pictures once, and return the figure with its interval."""
        first, second = (self.captions if self.figure.endswith("CHAIRi") else self.answers)(rng)
        name = self.figure.removeprefix("- ")
        return second[name].minus(first[name]) if self.figure.startswith("- ") else first[name].figure()

    def answers(self, rng):
        """Draw the answers of two methods to the same questions."""
        both, neither = self.right - self.only_first, 1 - self.right - self.only_second
        chances = self.chances(np.array([both, self.only_first, self.only_second, neither]), rng)
        one = self.questions == 1
        yes = rng.binomial(1, 0.5, self.pictures) if one else np.full(self.pictures, self.questions // 2)
        of_yes, of_no = (rng.multinomial(size, chances) for size in (yes, self.questions - yes))
        none = np.zeros(self.pictures)
        for right, wrong in (((0, 1), (2, 3)), ((0, 2), (1, 3))):
            (tp, fn), (tn, fp) = ([of[:, of_kind].sum(axis=1) for of_kind in (right, wrong)] for of in (of_yes, of_no))
            counts = np.stack([tp, fp, tn, fn, none, none, none, none], axis=1).astype(float)
            yield estimates(CELLS, counts, figures.pope_figures, figures.POPE_DENOMINATORS)

    def captions(self, rng):
        """Draw captions of two methods; the longer a caption is, the more of its mentions are hallucinated."""
        mentions = 1 + rng.poisson(MENTIONS - 1, self.pictures)
        square = MENTIONS**2 + MENTIONS - 1  # mean of the squared number of mentions
        share = np.minimum((1 - self.right) * mentions * MENTIONS / square, 1)
        wrong = rng.binomial(mentions, self.chances(np.stack([share, 1 - share], axis=1), rng)[:, 0])
        left = rng.binomial(wrong, 1 - DROPPED)
        for named, bad in ((mentions, wrong), (mentions - wrong + left, left)):
            one = np.ones(self.pictures)
            counts = np.stack([one, bad > 0, named, bad, one, one], axis=1).astype(float)
            yield estimates(COUNTS, counts, figures.chair_figures, figures.CHAIR_DENOMINATORS)

    def chances(self, mean, rng):
        """Return each picture's own chances of the outcomes, `[pictures, outcomes]`, with these means."""
        mean = np.broadcast_to(np.maximum(mean, 0), (self.pictures, mean.shape[-1]))
        if not self.correlation:
            return mean
        drawn = rng.gamma(mean * (1 - self.correlation) / self.correlation) + 1e-300
        return drawn / drawn.sum(axis=1, keepdims=True)


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
    rng = np.random.default_rng([*json.dumps(asdict(case)).encode()])
    found = [case.interval(rng) for _ in range(RUNS)]
    held = sum(each.low - 1e-9 <= case.truth() <= each.high + 1e-9 for each in found) / RUNS
    assert held > 0.92  # 0.95 less three standard errors
    if case in EASY:
        assert held < 0.98  # and they are no wider than they must be


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
