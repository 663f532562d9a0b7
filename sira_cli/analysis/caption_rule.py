"""The rule that picks the best setting by its captions, for SIRA and, in `tools.choose`, for every other method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from sira_cli.eval.statistics import Figure

COVERAGE_LOSS = 1.0  # points of coverage that a setting may cost
ADVERSARIAL = "adversarial accuracy"
CAPTIONS_RULE = (
    "of the settings whose coverage is at most one point below greedy's, whose adversarial accuracy is not shown to be "
    "below it (the paired 95 % interval of the change does not end below 0) and whose CHAIRi is below it, the one with "
    "the least CHAIRi; without such a setting the one that misses these limits by the fewest points in all"
)
Figures = Mapping[str, Figure]
T = TypeVar("T")


def by_captions(changes: Mapping[T, Figures]) -> tuple[T, bool]:
    """Return the setting of any method that CAPTIONS_RULE picks, and whether it fulfils the rule.

    Args:
        changes: figures of each setting minus greedy's, paired, in points. On a tie the first is picked.
    """
    fit = [setting for setting, change in changes.items() if fulfils(change)]
    if fit:
        return min(fit, key=lambda setting: changes[setting]["CHAIRi"].value), True
    return min(changes, key=lambda setting: missed_points(changes[setting])), False


def captions_fit(change: Figures) -> bool:
    """Return whether a setting fulfils the limits of CAPTIONS_RULE on captions, whatever its answers."""
    return change["coverage"].value >= -COVERAGE_LOSS and change["CHAIRi"].value < 0


def fulfils(change: Figures) -> bool:
    """Return whether a setting fulfils CAPTIONS_RULE."""
    return captions_fit(change) and change[ADVERSARIAL].high >= 0


def missed_points(change: Figures) -> float:
    """Return by how many points in all a setting misses the limits of CAPTIONS_RULE."""
    coverage = max(0.0, -COVERAGE_LOSS - change["coverage"].value)
    hallucination = max(0.0, change["CHAIRi"].value)
    accuracy = max(0.0, -change[ADVERSARIAL].high)
    return coverage + hallucination + accuracy
