"""Figures of captions and of yes/no answers together: `CHAIRi`, `random accuracy`, `mean accuracy`."""

from __future__ import annotations

from collections.abc import Mapping

from sira_cli.eval.stats import chair, pope
from sira_cli.eval.stats.chair import chair_figures
from sira_cli.eval.stats.compared import MethodFigures
from sira_cli.eval.stats.intervals import Figure
from sira_cli.eval.stats.pope import FIGURES, pope_figures
from sira_cli.eval.stats.tally import Tally, ratio

CAPTION_DENOMINATORS = {{"recall": "coverage"}.get(name, name): of for name, of in chair.DENOMINATORS.items()}
ANSWER_DENOMINATORS = {name: pope.DENOMINATORS[name] for name in FIGURES}


def caption_figures(total: Mapping[str, float]) -> dict[str, float]:
    """Return CHAIRs, CHAIRi and coverage (CHAIR's recall) in percent, and the mean number of words."""
    figures = chair_figures(total)
    figures["coverage"] = figures.pop("recall")
    return figures | {"words": ratio(total["words"], total["captions"])}


def answer_figures(total: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of yes/no answers that tables show (`FIGURES`)."""
    figures = pope_figures(total)
    return {name: figures[name] for name in FIGURES}


def compare_captions(tallies: Mapping[str, Tally]) -> MethodFigures:
    """Compare methods by their captions."""
    return MethodFigures.of(tallies, caption_figures, CAPTION_DENOMINATORS)


def compare_answers(tallies: Mapping[str, Tally]) -> MethodFigures:
    """Compare methods by their yes/no answers."""
    return MethodFigures.of(tallies, answer_figures, ANSWER_DENOMINATORS)


def named_figures(groups: Mapping[str, MethodFigures], method: str) -> dict[str, Figure]:
    """Combine a method's figures of all groups in one mapping; figure names begin with the group's name."""
    return {f"{group}{name}": each for group, it in groups.items() for name, each in it.figures(method).items()}


def named_differences(groups: Mapping[str, MethodFigures], method: str, first: str) -> dict[str, Figure]:
    """Combine the differences to the first method's figures, as `named_figures` does."""
    return {
        f"{group}{name}": each for group, it in groups.items() for name, each in it.differences(method, first).items()
    }
