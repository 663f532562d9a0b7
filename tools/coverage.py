"""How often 95 % intervals hold the true value, in simulations.

Answers and captions are drawn with a known accuracy, and their figures and intervals are made as those of `sira eval`.
A picture's answers are alike: each picture has its own chances (Dirichlet), so that two answers about it correlate.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np

from sira_cli.eval import figures
from sira_cli.eval.statistics import Estimate, Figure, estimates

MENTIONS = 4  # mean per caption: one, and a Poisson number of others
DROPPED = 0.25  # share of the hallucinated mentions that the second method leaves out
CELLS = ("TP", "FP", "TN", "FN", "unanswered yes", "unanswered no", "neither", "words")
COUNTS = ("captions", "hallucinated captions", "mentions", "hallucinated mentions", "objects", "recalled objects")

Rng = np.random.Generator


@dataclass(frozen=True)
class Case:
    """Pictures that are drawn repeatedly.

    Attributes:
        figure: figure with the interval; `- accuracy` and `- CHAIRi` are differences of two methods.
        pictures: their number.
        questions: per picture; 0 for captions.
        correlation: of two answers about a picture, or two mentions in a caption.
        right: the chance that an answer, or a mention, of the first method is right.
        only_first, only_second: the chances that only that method's answer is right.
    """

    figure: str
    pictures: int
    questions: int
    correlation: float
    right: float
    only_first: float = 0.0
    only_second: float = 0.0

    @property
    def truth(self) -> float:
        """The true value, in percent."""
        wrong = 1 - self.right
        left = wrong * (1 - DROPPED) / (1 - wrong * DROPPED)
        return (
            100
            * {
                "accuracy": self.right,
                "F1": 2 * self.right * self.yes / (self.right * self.yes + wrong * (1 - self.yes) + self.yes),
                "CHAIRi": wrong,
                "- accuracy": self.only_second - self.only_first,
                "- CHAIRi": left - wrong,
            }[self.figure]
        )

    @property
    def yes(self) -> float:
        """The share of questions whose true answer is yes."""
        return 0.5 if self.questions <= 1 else self.questions // 2 / self.questions

    def interval(self, rng: Rng) -> Figure:
        """Draw the pictures once, and return the figure with its interval."""
        first, second = (_captions if self.figure.endswith("CHAIRi") else _answers)(self, rng)
        name = self.figure.removeprefix("- ")
        return second[name].minus(first[name]) if self.figure.startswith("- ") else first[name].figure()


def coverage(case: Case, runs: int) -> float:
    """Return the share of intervals that hold the true value."""
    rng = np.random.default_rng([*json.dumps(asdict(case)).encode()])
    found = [case.interval(rng) for _ in range(runs)]
    return sum(each.low - 1e-9 <= case.truth <= each.high + 1e-9 for each in found) / runs


def _answers(case: Case, rng: Rng) -> tuple[dict[str, Estimate], dict[str, Estimate]]:
    """Draw the answers of two methods to the same questions."""
    both, neither = case.right - case.only_first, 1 - case.right - case.only_second
    chances = _chances(np.array([both, case.only_first, case.only_second, neither]), case, rng)
    yes = rng.binomial(1, 0.5, case.pictures) if case.questions == 1 else np.full(case.pictures, case.questions // 2)
    of_yes, of_no = (rng.multinomial(size, chances) for size in (yes, case.questions - yes))
    none = np.zeros(case.pictures)
    found = []
    for right, wrong in (((0, 1), (2, 3)), ((0, 2), (1, 3))):
        (tp, fn), (tn, fp) = ([of[:, of_kind].sum(axis=1) for of_kind in (right, wrong)] for of in (of_yes, of_no))
        counts = np.stack([tp, fp, tn, fn, none, none, none, none], axis=1).astype(float)
        found.append(estimates(CELLS, counts, figures.pope_figures, figures.POPE_DENOMINATORS))
    return found[0], found[1]


def _captions(case: Case, rng: Rng) -> tuple[dict[str, Estimate], dict[str, Estimate]]:
    """Draw captions of two methods; the longer a caption is, the more of its mentions are hallucinated."""
    mentions = 1 + rng.poisson(MENTIONS - 1, case.pictures)
    square = MENTIONS**2 + MENTIONS - 1  # mean of the squared number of mentions
    share = np.minimum((1 - case.right) * mentions * MENTIONS / square, 1)
    wrong = rng.binomial(mentions, _chances(np.stack([share, 1 - share], axis=1), case, rng)[:, 0])
    left = rng.binomial(wrong, 1 - DROPPED)
    found = []
    for said, bad in ((mentions, wrong), (mentions - wrong + left, left)):
        one = np.ones(case.pictures)
        counts = np.stack([one, bad > 0, said, bad, one, one], axis=1).astype(float)
        found.append(estimates(COUNTS, counts, figures.chair_figures, figures.CHAIR_DENOMINATORS))
    return found[0], found[1]


def _chances(mean: np.ndarray, case: Case, rng: Rng) -> np.ndarray:
    """Return each picture's own chances of the outcomes, `[pictures, outcomes]`, with these means."""
    mean = np.broadcast_to(np.maximum(mean, 0), (case.pictures, mean.shape[-1]))
    if not case.correlation:
        return mean
    drawn = rng.gamma(mean * (1 - case.correlation) / case.correlation) + 1e-300
    chances: np.ndarray = drawn / drawn.sum(axis=1, keepdims=True)
    return chances
