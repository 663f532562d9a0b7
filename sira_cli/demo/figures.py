"""CHAIR's and POPE's figures from counts, with intervals, and how they are shown.

Intervals are 95 % percentile bootstrap intervals over scenes; differences to the first method are paired.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sira_cli.eval.stats.bootstrap import Figure, draws, interval

Split = Literal["random", "popular", "adversarial"]
SPLITS: tuple[Split, ...] = ("random", "popular", "adversarial")
CAPTION_FIGURES = ("CHAIRs", "CHAIRi", "coverage", "words")
ANSWER_FIGURES = ("accuracy", "F1", "precision", "recall", "FPR", "yes")

Counts = dict[str, np.ndarray]


@dataclass(frozen=True)
class Report:
    """What was measured.

    Attributes:
        scenes: how many.
        settings: per method, what decides the outcome: k, alpha, ...
        figures: per method, each figure; `mean accuracy` and the like are means over the splits.
        differences: per method but the first, each figure's difference to the first method's.
    """

    scenes: int
    settings: dict[str, dict[str, Any]]
    figures: dict[str, dict[str, Figure]]
    differences: dict[str, dict[str, Figure]]

    @classmethod
    def of(cls, counts: dict[str, Counts], settings: dict[str, dict[str, Any]]) -> Report:
        """From every method's counts on the same scenes, `[N]` each (see `evaluate.measure`)."""
        first = next(iter(counts))
        exact = {method: _figures(_totals(columns)) for method, columns in counts.items()}
        drawn = {method: _figures(_totals(columns, resample=True)) for method, columns in counts.items()}
        return cls(
            scenes=_size(counts[first]),
            settings=settings,
            figures={
                method: {name: interval(float(exact[method][name][0]), drawn[method][name]) for name in exact[method]}
                for method in counts
            },
            differences={
                method: {
                    name: interval(
                        float((exact[method][name] - exact[first][name])[0]), drawn[method][name] - drawn[first][name]
                    )
                    for name in exact[method]
                }
                for method in counts
                if method != first
            },
        )

    def to_json(self) -> dict[str, Any]:
        """For `json.dumps`; `from_json` reads it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Report:
        """The inverse of `to_json`."""
        figures, differences = (
            {method: {name: Figure(**figure) for name, figure in row.items()} for method, row in content[part].items()}
            for part in ("figures", "differences")
        )
        return cls(content["scenes"], content["settings"], figures, differences)

    def captions_table(self) -> str:
        """Markdown: CHAIRs, CHAIRi (lower is better), coverage, length."""
        return self._table([""], [[]], CAPTION_FIGURES, "")

    def answers_table(self) -> str:
        """Markdown: POPE's figures in its three splits."""
        return self._table(["split", ""], [[split] for split in SPLITS], ANSWER_FIGURES, "{} ")

    def _table(self, head: list[str], groups: list[list[str]], names: tuple[str, ...], prefix: str) -> str:
        rows = [[*head, *names]]
        for group in groups:
            start = prefix.format(*group)
            for method, row in self.figures.items():
                rows.append([*group, method, *(f"{row[start + name]}" for name in names)])
            for method, row in self.differences.items():
                changes = (row[start + name] for name in names)
                rows.append([*group, f"{method} - {next(iter(self.figures))}", *(f"{change:+}" for change in changes)])
        return markdown(rows)


def markdown(rows: list[list[str]]) -> str:
    """A table with columns of even width; the first row is its head."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _size(counts: Counts) -> int:
    return len(next(iter(counts.values())))


def _totals(counts: Counts, resample: bool = False) -> Counts:
    """Sums over scenes, or over as many scenes drawn with replacement, RESAMPLES times, the same at every call."""
    size = _size(counts)
    weights = draws(size) if resample else np.ones((1, size))
    return {name: weights @ column for name, column in counts.items()}


def _figures(total: Counts) -> Counts:
    """CHAIR's and POPE's figures from totals; shares in percent, a zero denominator gives 0."""
    figures = {}
    if "captions" in total:
        figures = {
            "CHAIRs": _percent(total["captions with a hallucination"], total["captions"]),
            "CHAIRi": _percent(total["hallucinated mentions"], total["mentions"]),
            "coverage": _percent(total["objects mentioned"], total["objects"]),
            "words": total["words"] / total["captions"],
        }
    splits = [name.removesuffix(" TP") for name in total if name.endswith(" TP")]
    for split in splits:
        tp, fp, tn, fn = (total[f"{split} {cell}"] for cell in ("TP", "FP", "TN", "FN"))
        figures |= {
            f"{split} accuracy": _percent(tp + tn, tp + fp + tn + fn),
            f"{split} F1": _percent(2 * tp, 2 * tp + fp + fn),
            f"{split} precision": _percent(tp, tp + fp),
            f"{split} recall": _percent(tp, tp + fn),
            f"{split} FPR": _percent(fp, fp + tn),
            f"{split} yes": _percent(tp + fp, tp + fp + tn + fn),
        }
    for name in ANSWER_FIGURES if splits else ():
        figures[f"mean {name}"] = np.mean([figures[f"{split} {name}"] for split in splits], axis=0)
    return figures


def _percent(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    share: np.ndarray = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
    return 100 * share
