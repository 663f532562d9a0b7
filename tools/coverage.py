"""Measure how often 95 % intervals hold the true value: `python -m tools.coverage -o docs/bench/coverage.json`.

Answers and captions are drawn with a known accuracy, and their figures and intervals are made as those of `sira eval`.
A picture's answers are alike: each picture has its own chances (Dirichlet), so that two answers about it correlate.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sira_cli.demo.scene_report import markdown
from sira_cli.eval.stats import chair, pope
from sira_cli.eval.stats.influence import estimates
from sira_cli.eval.stats.intervals import Estimate, Figure

RUNS = 4_000
PICTURES = (10, 20, 50, 500)
ALIKE = ((1, 0.0), (6, 0.0), (6, 0.3), (9, 0.3))  # questions per picture, and how much their answers correlate
ACCURACIES = (0.68, 0.8, 0.9, 0.97)
DIFFERING = (0.01, 0.03, 0.1)  # share of the answers that only one of two methods has right
ACCURACY = 0.9  # of the first of two methods
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


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for pictures in PICTURES:
        for questions, correlation in ALIKE:
            for figure in ("accuracy", "F1"):
                for right in ACCURACIES:
                    yield Case(figure, pictures, questions, correlation, right)
            for share in DIFFERING:
                yield Case("- accuracy", pictures, questions, correlation, ACCURACY, share / 2, share / 2)
                yield Case("- accuracy", pictures, questions, correlation, ACCURACY, share, 0)
        for correlation in (0.0, 0.3):
            for figure in ("CHAIRi", "- CHAIRi"):
                for right in ACCURACIES:
                    yield Case(figure, pictures, 0, correlation, right)


def coverage(case: Case, runs: int) -> tuple[float, float]:
    """Return the share of intervals that hold the true value, and the mean of half their width."""
    rng = np.random.default_rng([*json.dumps(asdict(case)).encode()])
    found = [case.interval(rng) for _ in range(runs)]
    held = sum(each.low - 1e-9 <= case.truth <= each.high + 1e-9 for each in found)
    return held / runs, float(np.mean([each.half for each in found]))


def measure(runs: int, on_case: Callable[[Case], None] = lambda case: None) -> dict[str, Any]:
    """Return the record of all cases."""
    rows = []
    for case in cases():
        held, half = coverage(case, runs)
        rows.append(asdict(case) | {"truth": round(case.truth, 4), "coverage": held, "half": round(half, 3)})
        on_case(case)
    return {"schema": "sira.coverage/1", "runs": runs, "rows": rows}


def table(record: dict[str, Any]) -> str:
    """Return the lowest and the highest coverage of each figure, by number of pictures, in Markdown."""
    titles = {"- accuracy": "difference of accuracy", "- CHAIRi": "difference of CHAIRi"}
    sizes = list(dict.fromkeys(row["pictures"] for row in record["rows"]))
    shown = [["coverage in percent", *(f"{size} pictures" for size in sizes)]]
    for figure in dict.fromkeys(row["figure"] for row in record["rows"]):
        cells = [titles.get(figure, figure)]
        for size in sizes:
            held = [row["coverage"] for row in record["rows"] if (row["figure"], row["pictures"]) == (figure, size)]
            cells.append(f"{100 * min(held):.1f} to {100 * max(held):.1f}")
        shown.append(cells)
    return markdown(shown)


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
        found.append(estimates(CELLS, counts, pope.pope_figures, pope.DENOMINATORS))
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
        found.append(estimates(COUNTS, counts, chair.chair_figures, chair.DENOMINATORS))
    return found[0], found[1]


def _chances(mean: np.ndarray, case: Case, rng: Rng) -> np.ndarray:
    """Return each picture's own chances of the outcomes, `[pictures, outcomes]`, with these means."""
    mean = np.broadcast_to(np.maximum(mean, 0), (case.pictures, mean.shape[-1]))
    if not case.correlation:
        return mean
    drawn = rng.gamma(mean * (1 - case.correlation) / case.correlation) + 1e-300
    chances: np.ndarray = drawn / drawn.sum(axis=1, keepdims=True)
    return chances


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.coverage", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help="times that each case is drawn")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json", help="write the measurements")
    given = parser.parse_args()
    if given.runs < 1:
        parser.error(f"--runs {given.runs}: expected a number from 1 on")
    record = measure(given.runs, lambda case: print(case, flush=True))
    if given.output is not None:
        given.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table(record))


if __name__ == "__main__":
    main()
