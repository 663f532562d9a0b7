"""The effect of a second look on captions of drawn scenes: greedy and SIRA, as decoded and guided.

`python -m tools.verified --texts FILE.jsonl` measures the test scenes and writes `compared/verified.json`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sira_cli.analysis.bench.measure import Spread, device_name
from sira_cli.analysis.experiment import Units
from sira_cli.demo.measure import SceneReport, batches, load_methods, markdown, outcomes, unit
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import TEST_SEEDS, VALIDATION_SEEDS, Scene, render
from sira_cli.eval.statistics import MethodFigures, Tally
from sira_cli.look.claims import Verify
from sira_cli.models.preset import read_value
from sira_cli.models.presets import find
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.records import hash_of
from sira_cli.run.task import Caption
from tools.choose import FOLDER
from tools.comparison import DENOMINATORS, TIMED, Measured, caption_seconds, text_counts, text_figures

BATCH = 25
# The figures of the table, with their titles.
COLUMNS = {name: name for name in ("CHAIRi", "coverage", "F1")} | {"CHAIRs": "captions with an error"}
COLUMNS |= {"instances": "instances that do not exist", "broken": "broken texts", "words": "words"}


@dataclass(frozen=True)
class VerifiedReport(Measured):
    """Figures of captions with and without a second look, and their cost."""

    report: SceneReport  # the others are compared with greedy as decoded
    seconds: dict[str, Spread]  # of a single picture, from its samples to its text
    timed: int  # number of timed scenes
    machine: str  # where they were timed
    file = FOLDER / "verified.json"

    def table(self) -> str:
        """Return the figures in Markdown, a row per way to make captions."""
        first, *_ = self.report.figures
        shown = [name for name in COLUMNS if name in self.report.figures[first]]
        rows = [["captions", *(COLUMNS[name] for name in shown), "seconds"]]
        for name, figures in self.report.figures.items():
            changes = self.report.differences.get(name)
            cells = [
                f"{figures[each]}" if changes is None else f"{figures[each].value:.1f} ({changes[each]:+})"
                for each in shown
            ]
            rows.append([name, *cells, f"{self.seconds[name].median:.2f}" if name in self.seconds else ""])
        return (
            f"In percent, except words and seconds, on {self.report.scenes:,} scenes. Instances: of kinds that are "
            f"there, more than there are. Brackets: difference to {first}. seconds: per picture, median of "
            f"{self.timed} on {self.machine}, {find('demo').load.dtype}.\n\n{markdown(rows)}"
        )


def measure_verified(
    methods: Mapping[str, Lvlm],
    scenes: Sequence[Scene],
    looks: Sequence[tuple[str, Verify]],
    on_progress: Callable[[int], None] = lambda done: None,
    units: Units[list[str]] | None = None,
) -> SceneReport:
    """Caption scenes without and with second looks, and compare all texts with the first method's captions."""
    kept = Units[list[str]]() if units is None else units
    ways: list[tuple[str, str, Verify | None]] = [(name, name, None) for name in methods]
    ways += [(looked(*look), *look) for look in looks]
    names, tallies = [own for own, _, _ in ways], {own: Tally() for own, _, _ in ways}
    for number, batch in enumerate(batches(scenes, BATCH)):
        for own, name, verify in ways:
            lvlm = methods[name]
            task = Caption.of(lvlm.preset, lvlm.decoder, verify=verify)
            look = f", second look {hash_of(verify=task.how)[:16]}" if verify else ""
            named = {scene: unit(lvlm, scene, []) + look for scene in batch}
            todo = [scene for scene in batch if named[scene] not in kept]
            texts = ([text] for text in _texts(lvlm, task, todo))
            kept.add(dict(zip((named[scene] for scene in todo), texts, strict=True)))
            tallies[own].counts |= {str(scene.seed): text_counts(scene, *kept[named[scene]]) for scene in batch}
        on_progress(min(len(scenes), (number + 1) * BATCH))
    compared, (first, *others) = MethodFigures.of(tallies, text_figures, DENOMINATORS), names
    return SceneReport(
        scenes=len(scenes),
        settings={name: {} for name in names},
        figures={name: compared.figures(name) for name in names},
        differences={name: compared.differences(name, first) for name in others},
        outcomes={name: outcomes(tallies[first].counts, tallies[name].counts) for name in others},
    )


def _texts(lvlm: Lvlm, task: Caption, scenes: Sequence[Scene]) -> list[str]:
    found = list[str]()
    for part in batches(scenes, BATCH if lvlm.batches else 1):
        pictures, prompts = [render(scene)[0] for scene in part], [lvlm.preset.prompts.caption] * len(part)
        seeds = lvlm.text_seeds([str(scene.seed) for scene in part], prompts)
        found += [answer.text for answer in task.decoded(lvlm, pictures, lvlm.prepare(pictures, prompts), seeds)]
    return found


def looked(method: str, verify: Verify) -> str:
    """Return the name of a method's captions with a second look."""
    return f"{method} + {verify.mode}"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.verified", description="Measure the second look.")
    parser.add_argument("--count", type=int, default=1_000, help="number of test scenes")
    parser.add_argument("--texts", type=Path, metavar="FILE.jsonl", help="keep every text here, to go on")
    parser.add_argument(
        "--output", type=Path, default=VerifiedReport.file, metavar="FILE.json", help="the measurements"
    )
    parser.add_argument("--split", choices=("test", "validation"), default="test", help="which scenes")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="keys of the preset")
    given = parser.parse_args()
    methods = load_methods()
    if given.set:
        values = {key: read_value(key, text) for key, _, text in (each.partition("=") for each in given.set)}
        methods = {name: lvlm.under(lvlm.decoder, lvlm.preset.with_values(**values)) for name, lvlm in methods.items()}
    seeds = TEST_SEEDS if given.split == "test" else VALIDATION_SEEDS
    scenes = [held_out(seed) for seed in seeds[: given.count]]
    looks = [(name, Verify(mode="guide")) for name in methods]
    with closing(Units[list[str]](given.texts)) as units:
        units.begin({"scenes": "drawn"})
        said = lambda done: print(f"{done} of {len(scenes)} scenes", flush=True)  # noqa: E731
        report = measure_verified(methods, scenes, looks, said, units)
    ways = {name: lvlm.caption for name, lvlm in methods.items()}
    ways |= {looked(name, verify): partial(methods[name].caption, verify=verify) for name, verify in looks}
    seconds = {way: Spread.of(row) for way, row in caption_seconds(ways, scenes).items()}
    found = VerifiedReport(report, seconds, min(TIMED, len(scenes)), device_name(methods["greedy"].model.device))
    found.write(given.output)
    print(found.table())


if __name__ == "__main__":
    main()
