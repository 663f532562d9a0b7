"""Choose every method's settings on validation scenes, by the rule that chose SIRA's: `python -m tools.choose`.

The choices and their candidates are in `compared/settings.yaml`; no test scene took part. Measurements are kept in
`--texts`, and the file keeps the entries of other methods, so a later method takes only its own time.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sira_cli.analysis.experiment import Units
from sira_cli.analysis.sweep import CAPTIONS_RULE, by_captions, captions_fit
from sira_cli.demo.measure import measure
from sira_cli.demo.questions import Questions, SceneQuestion, held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, Scene
from sira_cli.eval.statistics import Figure
from sira_cli.methods import METHODS, find
from sira_cli.methods.base import Method
from sira_cli.run.lvlm import load

FOLDER = Path(__file__).parent / "compared"
FILE = FOLDER / "settings.yaml"
SCENES = 160  # SIRA's K and alpha, by `sira sweep`: the first 640
FIGURES = ("CHAIRs", "CHAIRi", "coverage", "words", "adversarial accuracy")
# The values to try of each setting, in all combinations; the authors' own are always tried.
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "text-only": {"alpha": (0.25, 0.5, 1.0)},
    "vcd": {"alpha": (0.5, 1.0), "noise_step": (300, 500, 700)},
    "icd": {"alpha": (0.25, 0.5, 1.0)},
    "m3id": {"decay": (0.005, 0.01, 0.02, 0.05)},
    "flb": {"gamma": (0.1, 0.3, 0.6)},
    "resdec": {"weight": (0.1, 0.25, 0.5), "pool": (64, 128)},
    "sira+flb": {"gamma": (0.1, 0.3)},
    "sira+resdec": {"weight": (0.1, 0.25, 0.5)},
    "pai": {"raised": (0.1, 0.2, 0.5), "gamma": (1.1, 1.5)},
    "vaf": {"enhance": (1.05, 1.15, 1.5), "suppress": (0.95, 1.0)},
    "vista": {"strength": (None, 0.05, 0.1), "mix": (0.0, 0.3)},
    "sid": {"alpha": (0.5, 1.0), "visible": (6, 13, 25)},
    "dola": {"bucket": (None, "high"), "relative_top": (0.01, 0.1)},
    "deco": {"alpha": (0.1, 0.3, 0.6)},
    "opera": {"penalty": (0.5, 1.0), "damping": (1e-7, 1.0)},
    "ict": {"strength": (2.0, 4.0, 8.0), "slices": (None, 12)},
    "maskcd": {"alpha": (0.5, 1.0), "threshold": (None, 0.5, 1.0)},
    "vti": {"alpha_text": (0.3, 0.9, 2.0), "alpha_image": (0.0, None)},
}


@dataclass(frozen=True)
class Tried:
    """A setting and its figures on validation scenes; without questions, no figures of answers."""

    settings: dict[str, Any]
    figures: dict[str, float]


@dataclass(frozen=True)
class Chosen:
    """The choice for a method."""

    settings: dict[str, Any]  # those that were varied
    fulfils: bool  # whether they fulfil the rule; if not, they are the method's defaults
    scenes: int  # number of validation scenes
    greedy: dict[str, float]  # figures of greedy decoding on the same scenes
    tried: tuple[Tried, ...]  # all settings that were measured, the defaults first


def read_chosen(path: Path = FILE) -> dict[str, Chosen]:
    """Return the choices, by method; empty without the file."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))["methods"] if path.is_file() else {}
    tried = {name: {"tried": tuple(Tried(**each) for each in row["tried"])} for name, row in content.items()}
    return {name: Chosen(**row | tried[name]) for name, row in content.items()}


def write_chosen(chosen: Mapping[str, Chosen], path: Path = FILE) -> None:
    """Write the file that `read_chosen` reads."""
    rows = {name: dataclasses.asdict(row) for name, row in chosen.items()}
    rows = {name: row | {"tried": list(row["tried"])} for name, row in rows.items()}
    content = yaml.safe_dump({"rule": CAPTIONS_RULE, "methods": rows}, sort_keys=False, width=120)
    path.parent.mkdir(exist_ok=True)
    path.write_text(content, encoding="utf-8")


def method_of(name: str, chosen: Mapping[str, Chosen]) -> Method:
    """Return a method with the settings that were chosen for it; its defaults if none were."""
    return find(name).with_values(**chosen[name].settings) if name in chosen else find(name)


class Adversarial(Questions):
    """The questions that the rule uses."""

    def about(self, scene: Scene) -> list[SceneQuestion]:
        """Return the questions of POPE's adversarial split."""
        return [question for question in super().about(scene) if "adversarial" in question.splits]


def settings_to_try(method: str) -> list[dict[str, Any]]:
    """Return every setting of a method's grid, its authors' first."""
    grid, authors = GRIDS[method], METHODS[method].settings()
    cells = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    own = {name: authors[name] for name in grid}
    return [own, *(cell for cell in cells if cell != own)]


def choose(names: Sequence[str], scenes: int, units: Units[list[str]]) -> dict[str, Chosen]:
    """Measure the settings of these methods and choose; the fallback is the authors' settings.

    Questions are asked only under settings whose captions fulfil the rule; elsewhere no answer could change the choice.
    """
    greedy = load("demo", method="greedy")
    subjects = [held_out(seed) for seed in VALIDATION_SEEDS[:scenes]]
    found = {}
    for name in names:
        tried = settings_to_try(name)
        cells = {"greedy": greedy}
        cells |= {str(number): greedy.under(METHODS[name].with_values(**cell)) for number, cell in enumerate(tried)}
        rows = measure(cells, subjects, on_progress=_saying(f"{name}, captions", scenes), units=units).figures
        fit = {key for key in cells if key == "greedy" or captions_fit(rows[key], rows["greedy"])}
        hopeful = {key: lvlm for key, lvlm in cells.items() if key in fit}
        said = _saying(f"{name}, questions under {len(hopeful) - 1} of {len(tried)} settings", scenes)
        rows |= measure(hopeful, subjects, Adversarial(), said, units).figures
        best = by_captions({key: rows[key] for key in hopeful}, "greedy")
        found[name] = Chosen(
            settings=tried[int(best or 0)],
            fulfils=best is not None,
            scenes=scenes,
            greedy=_values(rows["greedy"]),
            tried=tuple(Tried(cell, _values(rows[str(number)])) for number, cell in enumerate(tried)),
        )
        print(f"{name}: {found[name].settings}" + " (the authors': none fulfils the rule)" * (best is None))
    return found


def _values(row: Mapping[str, Figure]) -> dict[str, float]:
    return {name: round(row[name].value, 4) for name in FIGURES if name in row}


def _saying(what: str, scenes: int) -> Callable[[int], None]:
    return lambda done: print(f"{what}: {done} of {scenes} scenes", flush=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.choose", description=__doc__)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="which ones (default: all that have a grid)")
    parser.add_argument("--scenes", type=int, default=SCENES, help="validation scenes")
    parser.add_argument("--texts", type=Path, metavar="FILE.jsonl", help="keep every text here, to go on")
    parser.add_argument("--output", type=Path, default=FILE, metavar="FILE.yaml", help="the chosen settings")
    given = parser.parse_args()
    with closing(Units[list[str]](given.texts)) as units:
        units.begin({"scenes": "drawn"})
        for name in given.methods or [name for name in GRIDS if name in METHODS]:
            found = read_chosen(given.output) | choose([name], given.scenes, units)
            write_chosen({name: found[name] for name in METHODS if name in found}, given.output)


if __name__ == "__main__":
    main()
