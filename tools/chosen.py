"""The settings of each method on drawn scenes, and the candidates: `compared/settings.yaml`.

`tools/choose.py` writes them. No test scene took part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sira_cli.analysis.sweep import CAPTIONS_RULE
from sira_cli.methods import find
from sira_cli.methods.base import Method

FOLDER = Path(__file__).parent / "compared"
FILE = FOLDER / "settings.yaml"


@dataclass(frozen=True)
class Tried:
    """A setting and its figures on validation scenes; without questions, no figures of answers."""

    settings: dict[str, Any]
    figures: dict[str, float]


@dataclass(frozen=True)
class Chosen:
    """The choice for a method.

    Attributes:
        settings: the settings that were varied.
        fulfils: whether they fulfil the rule; if not, they are the method's defaults.
        scenes: number of validation scenes.
        greedy: figures of greedy decoding on the same scenes.
        tried: all settings that were measured, the defaults first.
    """

    settings: dict[str, Any]
    fulfils: bool
    scenes: int
    greedy: dict[str, float]
    tried: tuple[Tried, ...]


def read_chosen(path: Path = FILE) -> dict[str, Chosen]:
    """Return the choices, by method; empty without the file."""
    if not path.is_file():
        return {}
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {
        name: Chosen(**row | {"tried": tuple(Tried(**tried) for tried in row["tried"])})
        for name, row in content["methods"].items()
    }


def write_chosen(chosen: Mapping[str, Chosen], path: Path = FILE) -> None:
    """Write the file that `read_chosen` reads."""
    rows = {
        name: dataclasses.asdict(row) | {"tried": list(map(dataclasses.asdict, row.tried))}
        for name, row in chosen.items()
    }
    content = yaml.safe_dump({"rule": CAPTIONS_RULE, "methods": rows}, sort_keys=False, width=120)
    path.parent.mkdir(exist_ok=True)
    path.write_text(content, encoding="utf-8")


def method_of(name: str, chosen: Mapping[str, Chosen]) -> Method:
    """Return a method with the settings that were chosen for it; its defaults if none were."""
    return find(name).with_values(**chosen[name].settings) if name in chosen else find(name)
