"""The choice of the best setting: rules that were fixed before any measurement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from sira_cli.analysis.sweep.cells import GREEDY, Cell
from sira_cli.eval.statistics import Figure

CAPTIONS_RULE = (
    "of the settings whose coverage is at most one point below greedy's, whose adversarial accuracy is not below it "
    "and whose CHAIRi is, the one with the least CHAIRi; "
    "without such a setting the paper's K = L/2 and alpha = 0.5, if measured"
)
Figures = Mapping[Cell, Mapping[str, Figure]]
T = TypeVar("T")


def by_score(figures: Figures, name: str) -> Cell:
    """Return the setting with the highest figure of that name; on a tie the smaller K, then the smaller alpha."""
    cells = sorted(cell for cell in figures if cell != GREEDY)
    return max(cells, key=lambda cell: round(figures[cell][name].value, 9))  # the first on a tie


def by_captions(figures: Figures) -> Cell | None:
    """Return the setting that CAPTIONS_RULE picks; None if no setting fulfils it."""
    return by_captions_among({cell: figures[cell] for cell in sorted(figures) if cell != GREEDY}, figures[GREEDY])


def by_captions_among(figures: Mapping[T, Mapping[str, Figure]], greedy: Mapping[str, Figure]) -> T | None:
    """Return the setting of any method that CAPTIONS_RULE picks, the first on a tie; None if none fulfils it."""
    fit = [
        setting
        for setting, row in figures.items()
        if captions_fit(row, greedy) and row["adversarial accuracy"].value >= greedy["adversarial accuracy"].value
    ]
    return min(fit, key=lambda setting: figures[setting]["CHAIRi"].value, default=None)


def captions_fit(row: Mapping[str, Figure], greedy: Mapping[str, Figure]) -> bool:
    """Return whether a setting fulfils CAPTIONS_RULE for captions."""
    return row["coverage"].value >= greedy["coverage"].value - 1 and row["CHAIRi"].value < greedy["CHAIRi"].value


def paper(layers: int) -> Cell:
    """Return the paper's setting on both of its models, for a model of L layers."""
    return Cell(layers // 2, 0.5)


def verdict(difference: Figure) -> str:
    """Say in words what a difference to greedy means, given its 95 % interval."""
    said = f"{difference.value:+.1f} against greedy, 95 % interval {difference.low:+.1f} to {difference.high:+.1f}"
    if difference.low <= 0 <= difference.high:
        said += ", which holds 0: no difference to greedy is shown"
    return said


def rule(captions: bool, score: str) -> str:
    """Return the rule in words."""
    return CAPTIONS_RULE if captions else f"the highest mean {score} over the splits"
