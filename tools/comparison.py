"""All methods on drawn scenes: figures, paired differences to greedy, settings, and cost.

`python -m tools.comparison --texts FILE.jsonl` measures the test scenes and writes `compared/figures.json`. Texts are
kept in the file: an interrupted run continues, and a later method takes only its own time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from sira_cli.analysis.bench.measure import Spread
from sira_cli.analysis.experiment import Units
from sira_cli.demo.measure import SceneReport, markdown, measure, unit
from sira_cli.demo.questions import Questions, caption_counts, held_out, mentions
from sira_cli.demo.scenes import TEST_SEEDS, VALIDATION_SEEDS, Scene, render
from sira_cli.eval.figures import CAPTION_DENOMINATORS, caption_figures
from sira_cli.eval.statistics import Counts, Figure, MethodFigures, Tally, ratio
from sira_cli.methods import METHODS, find
from sira_cli.models.preset import read_value
from sira_cli.run.lvlm import Lvlm, load
from tools.choose import FOLDER, STRENGTHS, Chosen, method_of, read_chosen
from tools.grammar import instances, is_broken, is_right_about_present

FILE = FOLDER / "figures.json"
FIGURES = ("CHAIRs", "CHAIRi", "coverage", "F1", "instances", "broken", "right", "words", "adversarial accuracy")
DENOMINATORS = {**CAPTION_DENOMINATORS, "instances": ("instances",), "broken": ("captions",), "right": ("captions",)}
# Where settings come from: chosen on validation scenes, they fulfil the rule or miss it by the least; an earlier
# rule chose them; or nothing was chosen.
VALIDATION = "validation"
LEAST = "least"
EARLIER = "earlier"
AUTHORS = "authors"
TIMED = 20  # scenes, unless fewer are measured
BATCH = 25  # captions with a second look
SEEDS = {"test": TEST_SEEDS, "validation": VALIDATION_SEEDS}
T = TypeVar("T")


@dataclass(frozen=True)
class Comparison:
    """The measurements of several methods."""

    report: SceneReport  # figures and outcomes; the others are compared with the first method
    settings: dict[str, dict[str, Any]]  # of each method, the chosen ones, or all of its own
    origin: dict[str, str]  # of each method: `validation`, `least`, `earlier` or `authors`
    cost: dict[str, Spread]  # by method, the time of a caption relative to greedy's of the same scene
    timed: int  # number of scenes for `cost`

    def write(self, path: Path) -> None:
        """Write one JSON object; `read` reads it."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def read(cls, path: Path = FILE) -> Comparison:
        """Read measurements, by default those on the test scenes."""
        return TypeAdapter(cls).validate_json(path.read_text(encoding="utf-8"))

    def table(self) -> str:
        """Return settings, figures and cost in Markdown, a row per method."""
        rows = [["method", "settings", *FIGURES, "time"]]
        for name in self.report.figures:
            cells = differing(self.report.figures[name], self.report.differences.get(name), FIGURES)
            rows.append([name, self._settings(name), *cells, f"x{self.cost[name].median:.2f}"])
        return markdown(rows)

    def tables(self) -> str:
        """Return the legend, the table, and the methods that were not measured, in Markdown."""
        missing = ", ".join(f"`{name}`" for name in METHODS if name not in self.report.figures)
        return f"{self.legend()}\n\n{self.table()}" + (f"\n\nNot measured: {missing}." if missing else "")

    def legend(self) -> str:
        """Explain the cells."""
        first = next(iter(self.report.figures))
        return (
            f"In percent, on {self.report.scenes:,} scenes: {first}'s figures, then paired differences from them, ± "
            "half their 95 % interval; ≈: no difference shown. CHAIRi: of the objects named, those not in the picture. "
            "Coverage: of the scene's objects, those named. F1: of the kinds of objects named. Instances: more of a "
            "kind than there are. Broken: texts with a fault of grammar. Right: texts that are right but for absent "
            "objects: grammar, place, numbers, colours, and nothing named twice. "
            f"Time: of a caption, relative to {first}'s, median of {self.timed}. ¹ The authors' settings. "
            "² No setting fulfils the rule: this one misses it by the least. ³ Chosen by an earlier rule."
        )

    def _settings(self, method: str) -> str:
        return settings_text(method, self.settings.get(method, {}), self.origin.get(method, AUTHORS))


def settings_text(method: str, settings: Mapping[str, Any], origin: str) -> str:
    """Return a method's settings for people, with the marks that the legend explains."""
    if origin == AUTHORS:
        return ""
    shown = values_text(settings)
    if are_authors(method, settings):
        shown += " ¹"
    if origin == LEAST:
        shown += " ²"
    if origin == EARLIER:
        shown += " ³"
    return shown


def values_text(settings: Mapping[str, Any]) -> str:
    """Return settings for people."""
    words = {"k": "K"}
    return ", ".join(f"{words.get(name, name)} = {value_text(value)}" for name, value in settings.items())


def are_authors(method: str, settings: Mapping[str, Any]) -> bool:
    """Return whether settings are those of a method's authors."""
    return settings.items() <= METHODS[method].settings().items()


def differing(figures: Mapping[str, Figure], changes: Mapping[str, Figure] | None, names: Sequence[str]) -> list[str]:
    """Return the cells of a row: its differences from the first row; None: it is the first, with its figures."""
    if changes is None:
        return [f"{figures[name]}" for name in names]
    cells = []
    for name in names:
        change = changes[name]
        is_shown = not change.low <= 0 <= change.high
        cells.append(f"{change:+}" if is_shown else "≈")
    return cells


def value_text(value: Any) -> str:
    """Return a setting's value for people."""
    return f"{value:g}" if isinstance(value, float) else "default" if value is None else str(value)


def caption_seconds(ways: Mapping[str, Callable[[Any], object]], scenes: Sequence[Scene]) -> dict[str, list[float]]:
    """Return the seconds of each way to caption a picture, all in turn, a scene per round; the first only warms up."""
    rounds: list[dict[str, float]] = []
    for picture in [render(scene)[0] for scene in (*scenes[:1], *scenes[:TIMED])]:
        rounds.append({})
        for name, caption in ways.items():
            began = time.perf_counter()
            caption(picture)
            rounds[-1][name] = time.perf_counter() - began
    return {name: [each[name] for each in rounds[1:]] for name in ways}


def text_counts(scene: Scene, text: str) -> Counts:
    """Count the mentions, the kinds, the instances and the faults of a caption, and whether it is right."""
    named, extra = instances(scene, text)
    own = {"kinds": len({name for _, _, name in mentions(text)}), "instances": named, "extra instances": extra}
    checked = {"broken": int(is_broken(text)), "right": int(is_right_about_present(scene, text))}
    return caption_counts(scene, text) | own | checked


def text_figures(total: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of captions, those of their faults, and how many are right, in percent."""
    return caption_figures(total) | {
        **kinds_f1(total),
        "instances": 100 * ratio(total["extra instances"], total["instances"]),
        "broken": 100 * ratio(total["broken"], total["captions"]),
        "right": 100 * ratio(total["right"], total["captions"]),
    }


def kinds_f1(total: Mapping[str, float]) -> dict[str, float]:
    """Return the F1 of the kinds of objects named, in percent."""
    return {"F1": 200 * ratio(total["recalled objects"], total["kinds"] + total["objects"])}


def compare(greedy: Lvlm, names: Sequence[str], scenes: Sequence[Scene], units: Units[list[str]]) -> Comparison:
    """Measure methods and greedy, each with the settings that were chosen for it on validation scenes."""
    chosen, questions = read_chosen(), Questions()
    methods = {"greedy": greedy} | {name: greedy.under(method_of(name, chosen)) for name in names}
    report = measure(methods, scenes, questions, lambda done: print(f"{done} of {len(scenes)} scenes"), units)
    add_text_figures(report, methods, scenes, questions, units)
    settings: dict[str, dict[str, Any]] = {}
    origin = {}
    for name, lvlm in methods.items():
        if name in chosen:
            settings[name] = chosen[name].settings
            origin[name] = origin_of(chosen[name])
        elif lvlm.decoder.deciding:  # the preset's, which `sira sweep` chose
            settings[name] = {"k": lvlm.k, "alpha": lvlm.alpha}
            origin[name] = VALIDATION
        elif own := find(name).settings():
            settings[name] = own
            origin[name] = AUTHORS
    seconds = caption_seconds({name: lvlm.caption for name, lvlm in methods.items()}, scenes)
    ratios = {name: [a / b for a, b in zip(row, seconds["greedy"], strict=True)] for name, row in seconds.items()}
    cost = {name: Spread.of(row) for name, row in ratios.items()}
    return Comparison(report, settings, origin, cost, len(seconds["greedy"]))


def origin_of(choice: Chosen) -> str:
    """Return where chosen settings come from."""
    return VALIDATION if choice.fulfils else LEAST


def origin_now(method: str, settings: Mapping[str, Any], chosen: Mapping[str, Chosen]) -> str:
    """Return where the settings of an earlier measurement come from, by the choices that there are now."""
    if method in chosen and find(method).with_values(**settings) == method_of(method, chosen):
        return origin_of(chosen[method])
    return EARLIER if method in STRENGTHS else VALIDATION if method == "sira" else AUTHORS


def joined(earlier: Comparison, found: Comparison, chosen: Mapping[str, Chosen]) -> Comparison:
    """Add the rows of an earlier comparison to those of another.

    Raises:
        ValueError: the two are about other scenes, or greedy decoding gave other captions.
    """
    alike = earlier.report.scenes == found.report.scenes
    if not alike or earlier.report.figures["greedy"] != found.report.figures["greedy"]:
        raise ValueError("the file has other scenes or another model: measure all methods, or give another --output")
    sources = {**dict.fromkeys(earlier.report.figures, earlier), **dict.fromkeys(found.report.figures, found)}
    kept = {name: sources[name] for name in dict.fromkeys(("greedy", *METHODS)) if name in sources}

    def rows(part: Callable[[Comparison], Mapping[str, T]]) -> dict[str, T]:
        return {name: part(source)[name] for name, source in kept.items() if name in part(source)}

    report = SceneReport(
        found.report.scenes,
        settings=rows(lambda source: source.report.settings),
        figures=rows(lambda source: source.report.figures),
        differences=rows(lambda source: source.report.differences),
        outcomes=rows(lambda source: source.report.outcomes),
    )
    settings = rows(lambda source: source.settings)
    origin = {}
    for name, values in settings.items():
        origin[name] = found.origin[name] if name in found.origin else origin_now(name, values, chosen)
    return Comparison(report, settings, origin, rows(lambda source: source.cost), found.timed)


def add_text_figures(
    report: SceneReport,
    methods: Mapping[str, Lvlm],
    scenes: Sequence[Scene],
    questions: Questions,
    units: Units[list[str]],
) -> None:
    """Add the figures of `text_figures` to a report: captions of all its methods are in `units`, greedy's are first."""
    tallies = {}
    for name, lvlm in methods.items():
        tallies[name] = Tally()
        for scene in scenes:
            caption = units[unit(lvlm, scene, questions.about(scene))][0]
            tallies[name].counts[str(scene.seed)] = text_counts(scene, caption)
    compared = MethodFigures.of(tallies, text_figures, DENOMINATORS)
    first = next(iter(methods))
    for name in methods:
        report.figures[name] = compared.figures(name) | report.figures.get(name, {})
        if name != first:
            report.differences[name] = compared.differences(name, first) | report.differences.get(name, {})


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.comparison", description="Measure methods on drawn scenes.")
    parser.add_argument(
        "methods", nargs="*", metavar="METHOD", help="which ones; the others keep their rows in --output (default: all)"
    )
    parser.add_argument("--count", type=int, default=1_000, help="number of scenes")
    parser.add_argument("--split", choices=[*SEEDS], default="test", help="which scenes")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="keys of the preset")
    parser.add_argument("--texts", type=Path, metavar="FILE.jsonl", help="keep every text here, to go on")
    parser.add_argument("--output", type=Path, default=FILE, metavar="FILE.json", help="the measurements")
    given = parser.parse_args()
    earlier = Comparison.read(given.output) if given.methods and given.output.is_file() else None
    values = {key: read_value(key, text) for key, _, text in (each.partition("=") for each in given.set)}
    greedy = load("demo", method="greedy")
    greedy = greedy.under(greedy.decoder, greedy.preset.with_values(**values))
    scenes = [held_out(seed) for seed in SEEDS[given.split][: given.count]]
    with closing(Units[list[str]](given.texts)) as units:
        units.begin({"scenes": "drawn"})
        found = compare(greedy, given.methods or [*METHODS], scenes, units)
    if earlier is not None:
        found = joined(earlier, found, read_chosen())
    found.write(given.output)
    print(found.tables())


if __name__ == "__main__":
    main()
