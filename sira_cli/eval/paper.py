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


def printed(preset_or_model: str, benchmark: str, group: str, method: str) -> dict[str, Any]:
    """Return the fields of a row of a report: `paper` and `published` are in percent, None if unknown.

    `paper_mark` is set if the paper's row does not compare with greedy decoding of the model, because it is a sampled
    result of another paper, or of another model, or probably a slip: see `notes`. `published` has the figures that the
    model's authors print.
    """
    model = paper_models().get(preset_or_model, preset_or_model)
    paper, published = (
        dict(results()[table].get(model, {}).get(benchmark, {}).get(group, {}).get(method, {}))
        for table in ("models", "published")
    )
    mark = paper.pop(MARK, "")
    return {"paper": paper or None, "paper_mark": mark, "published": published or None}


def paper_groups(model: str, benchmark: str) -> dict[str, tuple[str, ...]]:
    """Return the groups of which the paper has figures, each with its methods."""
    return {group: tuple(methods) for group, methods in results()["models"].get(model, {}).get(benchmark, {}).items()}


@functools.cache
def decimals(benchmark: str, figure: str) -> int:
    """Return the number of decimals of a figure in the paper: two for the POPE figures it reports, else one."""
    values = [
        methods[method][figure]
        for benchmarks in results()["models"].values()
        for methods in benchmarks.get(benchmark, {}).values()
        for method in methods
        if figure in methods[method]
    ]
    return 2 if any(round(value, 1) != value for value in values) else 1


@functools.cache
def paper_models() -> dict[str, str]:
    """Return the paper's models: the name of each one's preset, by its Hugging Face id."""
    return {presets.read(presets.SHIPPED / f"{name}.yaml").model: name for name in results()["models"]}


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
def results() -> dict[str, dict[str, Any]]:
    """Return the figures, by model, benchmark, group, method and name; and `notes`, the meaning of every mark."""
    content: dict[str, dict[str, Any]] = yaml.safe_load(RESULTS.read_text(encoding="utf-8"))
    return content
