"""The paper's figures, printed next to measured ones: POPE with its decomposition, CHAIR and AMBER.

POPE's precision, recall, FPR and yes-rate add nothing to accuracy and F1: every row of the paper has the values that
the printed accuracy and F1 imply for equally many yes- and no-questions (recall = F1 (1 - accuracy) / (1 - F1)).
Rounding makes recall uncertain by up to 0.12 points, and few values are shares of POPE's 1,500 questions.

Rows that do not compare with greedy decoding of their model have a mark.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from sira_cli.errors import SettingsError
from sira_cli.models import presets

RESULTS = Path(__file__).parent / "paper.yaml"

MARK = "is"  # the key of a row's mark
AUTHORS = "by its authors"


def paper_row(preset_or_model: str, benchmark: str, group: str, method: str) -> dict[str, float] | None:
    """Return the paper's figures in percent; None if it has none."""
    figures = _row(_results()["models"], preset_or_model, benchmark, group, method)
    return None if figures is None else {name: value for name, value in figures.items() if name != MARK}


def paper_mark(preset_or_model: str, benchmark: str, group: str, method: str) -> str:
    """Return the mark of a row that does not compare with greedy decoding of the model; empty for rows that do.

    Such rows are sampled results of another paper, of another model, or probably a slip: see `notes`.
    """
    figures = _row(_results()["models"], preset_or_model, benchmark, group, method) or {}
    return str(figures.get(MARK, ""))


def published_row(preset_or_model: str, benchmark: str, group: str, method: str) -> dict[str, float] | None:
    """Return the figures in percent that the model's authors print; None if none are known. Arguments as above."""
    figures = _row(_results()["published"], preset_or_model, benchmark, group, method)
    return None if figures is None else dict(figures)


def notes() -> dict[str, str]:
    """Return the meaning of every mark, and the source of `published_row` under its name AUTHORS."""
    return dict(_results()["notes"])


def _row(results: dict[str, Any], preset_or_model: str, *keys: str) -> dict[str, Any] | None:
    found: Any = results.get(paper_models().get(preset_or_model, preset_or_model))
    for key in keys:
        found = (found or {}).get(key)
    return found or None


def paper_groups(model: str, benchmark: str) -> dict[str, tuple[str, ...]]:
    """Return the groups of which the paper has figures, each with its methods."""
    return {group: tuple(methods) for group, methods in _results()["models"].get(model, {}).get(benchmark, {}).items()}


@functools.cache
def decimals(benchmark: str, figure: str) -> int:
    """Return the number of decimals of a figure in the paper: two for the POPE figures it reports, else one."""
    values = [
        methods[method][figure]
        for benchmarks in _results()["models"].values()
        for methods in benchmarks.get(benchmark, {}).values()
        for method in methods
        if figure in methods[method]
    ]
    return 2 if any(round(value, 1) != value for value in values) else 1


@functools.cache
def paper_models() -> dict[str, str]:
    """Return the paper's models: the name of each one's preset, by its Hugging Face id."""
    return {presets.read(presets.SHIPPED / f"{name}.yaml").model: name for name in _results()["models"]}


def find_model(names: Sequence[str]) -> str:
    """Return the paper's model for one of some names: a preset's name or a Hugging Face id."""
    models = paper_models()
    for name in names:
        if (found := models.get(name, name)) in models.values():
            return found
    known = ", ".join(models.values())
    raise SettingsError(f"`paper=`: the paper has no figures for {names[0] or names[1]}, only for {known} (-p)")


def pope_group(stem: str) -> str:
    """Return the paper's name for the split of a question file, from the file name without its ending.

    `coco_pope_random` is `coco random`; other names stay as they are.
    """
    dataset, _, split = stem.partition("_pope_")
    return f"{dataset} {split}" if dataset and split else stem


@functools.cache
def _results() -> dict[str, dict[str, Any]]:
    """Read the figures, by model, benchmark, group, method and name; and the notes."""
    results: dict[str, dict[str, Any]] = yaml.safe_load(RESULTS.read_text(encoding="utf-8"))
    return results
