"""Choose every method's settings on validation scenes, by the rule that chose SIRA's: `python -m tools.choose`.

The choices and their candidates are in `compared/settings.yaml`; no test scene took part. Measurements are kept in
`--texts`, and the file keeps the entries of other methods, so a later method takes only its own time.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sira_cli.analysis.caption_rule import ADVERSARIAL, CAPTIONS_RULE, by_captions, captions_fit
from sira_cli.analysis.experiment import Units
from sira_cli.demo.measure import SceneReport, measure
from sira_cli.demo.questions import Questions, SceneQuestion, held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, Scene
from sira_cli.eval.statistics import Figure
from sira_cli.methods import METHODS, find
from sira_cli.methods.base import Method
from sira_cli.run.lvlm import load

FOLDER = Path(__file__).parent / "compared"
FILE = FOLDER / "settings.yaml"
SCENES = 64  # SIRA's K and alpha, by `sira sweep`: the first 320
FIGURES = ("CHAIRs", "CHAIRi", "coverage", "words", ADVERSARIAL)
# What makes a method strong, from mild to strong: 1/4, 1/2, 1 and 2 of the authors' distance from the value that does
# nothing, which is 0, and 1 of PAI's gamma and VAF's factors. Of DoLa's cut-off it is the logarithm that is multiplied.
# None: the authors' value, which differs between tasks or models.
STRENGTHS: dict[str, dict[str, tuple[Any, ...]]] = {
    "text-only": {"alpha": (0.125, 0.25, 0.5, 1.0)},
    "vcd": {"alpha": (0.25, 0.5, 1.0, 2.0)},
    "icd": {"alpha": (0.25, 0.5, 1.0, 2.0)},
    "m3id": {"decay": (0.005, 0.01, 0.02, 0.04)},
    "flb": {"gamma": (0.075, 0.15, 0.3, 0.6)},
    "resdec": {"weight": (0.125, 0.25, 0.5, 1.0)},
    "pai": {"raised": (0.05, 0.1, 0.2, 0.4), "gamma": (1.025, 1.05, 1.1, 1.2)},
    "vaf": {"enhance": (1.0375, 1.075, 1.15, 1.3), "suppress": (0.9875, 0.975, 0.95, 0.9)},
    "vista": {"strength": (0.0425, 0.085, None, 0.34), "mix": (0.075, 0.15, 0.3, 0.6)},
    "sid": {"alpha": (0.125, 0.25, 0.5, 1.0)},
    "dola": {"relative_top": (0.562, 0.316, 0.1, 0.01)},
    "deco": {"alpha": (0.15, 0.3, 0.6, 1.2)},
    "opera": {"penalty": (0.25, 0.5, 1.0, 2.0)},
    "ict": {"strength": (2.0, 4.0, 8.0, 16.0)},
    "maskcd": {"alpha": (0.25, 0.5, 1.0, 2.0)},
    "vti": {"alpha_text": (0.225, 0.45, 0.9, 1.8), "alpha_image": (0.225, 0.45, None, 1.8)},
    "sira+flb": {"gamma": (0.075, 0.15, 0.3, 0.6)},
    "sira+resdec": {"weight": (0.125, 0.25, 0.5, 1.0)},
}
# What a method contrasts with, as SIRA's K: the authors' value and another one, each at every strength.
CONTRASTS: dict[str, dict[str, tuple[Any, Any]]] = {
    "vcd": {"noise_step": (500, 300)},
    "sid": {"visible": (None, 25)},
    "dola": {"bucket": (None, "high")},
    "maskcd": {"threshold": (None, 0.5)},
}


@dataclass(frozen=True)
class Tried:
    """A setting and its figures on validation scenes; without questions, no figures of answers."""

    settings: dict[str, Any]
    figures: dict[str, float]
    accuracy: dict[str, float] | None = None  # the paired change from greedy's: `value`, `low`, `high`


@dataclass(frozen=True)
class Chosen:
    """The choice for a method."""

    settings: dict[str, Any]  # those that were varied
    fulfils: bool  # whether they fulfil the rule; if not, they miss it by the least of those that were tried
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
    """Return the settings to try of a method, from mild to strong, its authors' among them."""
    strengths = STRENGTHS[method]
    columns = zip(*strengths.values(), strict=True)
    mild_to_strong = [dict(zip(strengths, column, strict=True)) for column in columns]
    settings: list[dict[str, Any]] = []
    for name, values in CONTRASTS.get(method, {"": ("",)}).items():
        for value in values:
            contrast = {name: value} if name else {}
            settings.extend(each | contrast for each in mild_to_strong)
    return settings


def choose(method: str, scenes: int, units: Units[list[str]]) -> Chosen:
    """Measure the settings of a method and choose by the rule.

    Questions are asked only under settings whose captions fulfil the rule, unless no setting fulfils the whole of it:
    then answers under all of them decide which one misses it by the least.
    """
    greedy = load("demo", method="greedy")
    subjects = [held_out(seed) for seed in VALIDATION_SEEDS[:scenes]]
    tried = settings_to_try(method)
    cells = {str(number): greedy.under(METHODS[method].with_values(**cell)) for number, cell in enumerate(tried)}

    def measured(names: Iterable[str], questions: Questions | None) -> SceneReport:
        under = {"greedy": greedy} | {name: cells[name] for name in names}
        what = "questions" if questions else "captions"
        said = _saying(f"{method}, {what} under {len(under) - 1} of {len(tried)} settings", scenes)
        return measure(under, subjects, questions, said, units)

    captions = measured(cells, None)
    report = measured([name for name in cells if captions_fit(captions.differences[name])], Adversarial())
    best, fulfils = by_captions(report.differences) if report.differences else ("", False)
    if not fulfils:
        report = measured(cells, Adversarial())
        best, fulfils = by_captions(report.differences)
    found = Chosen(
        settings=tried[int(best)],
        fulfils=fulfils,
        scenes=scenes,
        greedy=_values(report.figures["greedy"]),
        tried=tuple(
            Tried(
                cell,
                _values(captions.figures[name] | report.figures.get(name, {})),
                _change(report.differences.get(name, {})),
            )
            for name, cell in zip(cells, tried, strict=True)
        ),
    )
    note = "" if fulfils else " (none fulfils the rule; this one misses it by the least)"
    print(f"{method}: {found.settings}{note}")
    return found


def _change(changes: Mapping[str, Figure]) -> dict[str, float] | None:
    if ADVERSARIAL not in changes:
        return None
    change = changes[ADVERSARIAL]
    return {"value": round(change.value, 4), "low": round(change.low, 4), "high": round(change.high, 4)}


def _values(row: Mapping[str, Figure]) -> dict[str, float]:
    return {name: round(row[name].value, 4) for name in FIGURES if name in row}


def _saying(what: str, scenes: int) -> Callable[[int], None]:
    return lambda done: print(f"{what}: {done} of {scenes} scenes", flush=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.choose", description=__doc__)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="which ones (default: all that have strengths)")
    parser.add_argument("--scenes", type=int, default=SCENES, help="validation scenes")
    parser.add_argument("--texts", type=Path, metavar="FILE.jsonl", help="keep every text here, to go on")
    parser.add_argument("--output", type=Path, default=FILE, metavar="FILE.yaml", help="the chosen settings")
    given = parser.parse_args()
    with closing(Units[list[str]](given.texts)) as units:
        units.begin({"scenes": "drawn"})
        for name in given.methods or STRENGTHS:
            found = read_chosen(given.output) | {name: choose(name, given.scenes, units)}
            write_chosen({name: found[name] for name in METHODS if name in found}, given.output)


if __name__ == "__main__":
    main()
