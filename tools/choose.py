"""Choose every method's settings on validation scenes, by the rule that chose SIRA's: `python -m tools.choose`.

Measurements are kept in `--texts`, and the shipped file keeps the entries of other methods, so a later method takes
only its own time.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from sira_cli.analysis.experiment import Units
from sira_cli.analysis.sweep import by_captions_among, captions_fit
from sira_cli.demo.measure import load_method, measure
from sira_cli.demo.questions import Questions, SceneQuestion, held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, Scene
from sira_cli.eval.statistics import Figure
from sira_cli.methods import METHODS
from tools.chosen import FILE, Chosen, Tried, read_chosen, write_chosen

SCENES = 160  # as many as chose SIRA's K and alpha
FIGURES = ("CHAIRs", "CHAIRi", "coverage", "words", "adversarial accuracy")
# The values to try of each setting, in all combinations; the authors' own are always tried.
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "text-only": {"alpha": (0.25, 0.5, 1.0)},
    "vcd": {"alpha": (0.5, 1.0), "noise_step": (300, 500, 700)},
    "icd": {"alpha": (0.25, 0.5, 1.0)},
    "m3id": {"decay": (0.005, 0.01, 0.02, 0.05)},
    "sid": {"alpha": (0.5, 1.0), "visible": (6, 13, 25)},
    "dola": {"bucket": (None, "high"), "relative_top": (0.01, 0.1)},
    "opera": {"penalty": (0.5, 1.0), "damping": (1e-7, 1.0)},
    "ict": {"strength": (2.0, 4.0, 8.0), "slices": (None, 12)},
    "maskcd": {"alpha": (0.5, 1.0), "threshold": (None, 0.5, 1.0)},
}


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
    greedy = load_method("greedy")
    subjects = [held_out(seed) for seed in VALIDATION_SEEDS[:scenes]]
    found = {}
    for name in names:
        tried = settings_to_try(name)
        cells = {"greedy": greedy}
        cells |= {str(number): greedy.under(METHODS[name].with_values(**cell)) for number, cell in enumerate(tried)}
        rows = measure(cells, subjects, on_progress=_saying(f"{name}, captions", scenes), units=units).figures
        hopeful = {
            key: lvlm for key, lvlm in cells.items() if lvlm is greedy or captions_fit(rows[key], rows["greedy"])
        }
        said = _saying(f"{name}, questions under {len(hopeful) - 1} of {len(tried)} settings", scenes)
        rows |= measure(hopeful, subjects, Adversarial(), said, units).figures
        best = by_captions_among({key: rows[key] for key in hopeful if key != "greedy"}, rows["greedy"])
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
