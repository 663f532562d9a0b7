"""The figures that the paper and the authors of models print (`paper.yaml`), by model, benchmark, group and method."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from sira_cli.errors import SettingsError
from sira_cli.models import presets

PAPER = Path(__file__).parent / "paper.yaml"
MARK = "is"  # the key of a row's mark in the paper's figures


@functools.cache
def results() -> dict[str, dict[str, Any]]:
    """Return the figures, by model, benchmark, group, method and name; and `notes`, the meaning of every mark."""
    content: dict[str, dict[str, Any]] = yaml.safe_load(PAPER.read_text(encoding="utf-8"))
    return content


def printed(preset_or_model: str, benchmark: str, group: str, method: str) -> dict[str, Any]:
    """Return the fields `paper`, `paper_mark` and `published` of a row of a report; figures are None if unknown."""
    model = paper_models().get(preset_or_model, preset_or_model)
    paper = _row("models", model, benchmark, group, method)
    published = _row("published", model, benchmark, group, method)
    mark = paper.pop(MARK, "")
    return {"paper": paper or None, "paper_mark": mark, "published": published or None}


def _row(*place: str) -> dict[str, Any]:
    """Return the figures at a place, which may have no figures: table, model, benchmark, group and method."""
    found: Any = results()
    for part in place:
        found = found.get(part, {})
    return dict(found)


@functools.cache
def decimals(benchmark: str, figure: str) -> int:
    """Return the number of decimals of a figure in the paper: two for the POPE figures it reports, else one."""
    for model in results()["models"].values():
        for group in model.get(benchmark, {}).values():
            for row in group.values():
                if figure in row and round(row[figure], 1) != row[figure]:
                    return 2
    return 1


@functools.cache
def paper_models() -> dict[str, str]:
    """Return the paper's models: the name of each one's preset, by its Hugging Face id."""
    return {presets.read(presets.SHIPPED / f"{name}.yaml").model: name for name in results()["models"]}


def known_model(names: Sequence[str]) -> str:
    """Return the paper's model for one of some names, a preset's name or a Hugging Face id; empty: none has it."""
    models = paper_models()
    for name in names:
        model = models.get(name, name)
        if model in models.values():
            return model
    return ""


def find_model(names: Sequence[str]) -> str:
    """Return the paper's model for one of some names: a preset's name or a Hugging Face id."""
    model = known_model(names)
    if model:
        return model
    known = ", ".join(paper_models().values())
    raise SettingsError(f"`paper=`: the paper has no figures for {names[0] or names[1]}, only for {known} (-p)")
