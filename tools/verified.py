"""The effect of a second look on captions of drawn scenes: greedy and SIRA, as decoded and rewritten.

`python -m tools.verified --texts FILE.jsonl` measures the test scenes and writes `compared/verified.json`.
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
from typing import Any

from sira_cli.analysis.bench.figures import Spread
from sira_cli.analysis.bench.measure import device_name
from sira_cli.analysis.sweep.grid import batches
from sira_cli.analysis.sweep.units import Units
from sira_cli.data.records.record import hash_of
from sira_cli.demo.measure import CAPTIONS, load_methods, unit
from sira_cli.demo.questions import caption_counts, held_out
from sira_cli.demo.scene_report import CAPTION_FIGURES, SceneReport, markdown
from sira_cli.demo.scenes import TEST_SEEDS, Scene, render
from sira_cli.eval.stats.tally import Tally
from sira_cli.models.final_answers import FinalAnswers
from sira_cli.models.look.verify import Verify
from sira_cli.models.lvlm import Lvlm
from tools.chosen import FOLDER
from tools.cost import TIMED

FILE = FOLDER / "verified.json"
BATCH = 25


@dataclass(frozen=True)
class VerifiedReport:
    """Figures of captions with and without a second look, and their cost.

    Attributes:
        report: figures; the others are compared with greedy as decoded.
        verify: how the look was done.
        removed: by method, objects removed per caption.
        seconds: of a single picture, from its samples to its text.
        timed: number of timed scenes.
        machine: where they were timed.
    """

    report: SceneReport
    verify: dict[str, Any]
    removed: dict[str, float]
    seconds: dict[str, Spread]
    timed: int
    machine: str

    def to_json(self) -> str:
        """Return one JSON object; `from_json` reads it."""
        content = dataclasses.asdict(self) | {"report": self.report.to_json()}
        return json.dumps(content, indent=1, default=dataclasses.asdict)

    @classmethod
    def from_json(cls, text: str) -> VerifiedReport:
        """Make a report from the JSON of `to_json`."""
        content = json.loads(text)
        seconds = {name: Spread(**row) for name, row in content["seconds"].items()}
        return cls(**content | {"report": SceneReport.from_json(content["report"]), "seconds": seconds})

    @classmethod
    def shipped(cls, path: Path = FILE) -> VerifiedReport | None:
        """Return the figures on the test scenes; None if not measured yet."""
        return cls.from_json(path.read_text(encoding="utf-8")) if path.is_file() else None

    def table(self) -> str:
        """Return the figures in Markdown, a row per way to make captions."""
        first, *_ = self.report.figures
        rows = [["captions", *CAPTION_FIGURES, "removed", "seconds"]]
        for name, figures in self.report.figures.items():
            changes = self.report.differences.get(name)
            cells = [
                f"{figures[each]}" if changes is None else f"{figures[each].value:.1f} ({changes[each]:+})"
                for each in CAPTION_FIGURES
            ]
            removed = f"{self.removed[name]:.2f}" if name in self.removed else ""
            rows.append([name, *cells, removed, f"{self.seconds[name].median:.2f}"])
        return (
            f"In percent, except words and seconds, on {self.report.scenes:,} scenes. Brackets: paired difference to "
            f"{first}, ± half its 95 % interval. removed: objects per caption. seconds: per picture, "
            f"median of {self.timed} on {self.machine}.\n\n{markdown(rows)}"
        )


def measure_verified(
    methods: Mapping[str, Lvlm],
    scenes: Sequence[Scene],
    verify: Verify,
    on_progress: Callable[[int], None] = lambda done: None,
    units: Units | None = None,
) -> tuple[SceneReport, dict[str, float]]:
    """Caption scenes, take a second look, and compare both texts of every method with the first one's drafts.

    Args:
        methods: the bundled model under each.
        scenes: to caption.
        verify: the second look.
        on_progress: called with the number of scenes that are done.
        units: keeps the texts, begun; those in it are not decoded again.

    Returns:
        The report, and the number of objects removed per caption.
    """
    kept = Units() if units is None else units
    names = [*methods, *(rewritten(name, verify) for name in methods)]
    tallies = {CAPTIONS: {name: Tally() for name in names}}
    removed = dict.fromkeys(names[len(methods) :], 0)
    looks = {name: FinalAnswers(lvlm, verify) for name, lvlm in methods.items()}
    for number, batch in enumerate(batches(scenes, BATCH)):
        for name, lvlm in methods.items():
            look, own = hash_of(verify=looks[name].settings)[:16], rewritten(name, verify)
            named = {scene: f"{unit(lvlm, scene, [])}, second look {look}" for scene in batch}
            todo = [scene for scene in batch if named[scene] not in kept]
            kept.add(dict(zip((named[scene] for scene in todo), _texts(lvlm, looks[name], todo), strict=True)))
            for scene in batch:
                draft, text, *out = kept[named[scene]]
                tallies[CAPTIONS][name].counts[str(scene.seed)] = caption_counts(scene, draft)
                tallies[CAPTIONS][own].counts[str(scene.seed)] = caption_counts(scene, text)
                removed[own] += len(out)
        on_progress(min(len(scenes), (number + 1) * BATCH))
    report = SceneReport.of(tallies, {name: {} for name in names})
    return report, {name: count / len(scenes) for name, count in removed.items()}


def _texts(lvlm: Lvlm, look: FinalAnswers, scenes: Sequence[Scene]) -> list[list[str]]:
    """Return draft and text of each caption, and the removed objects."""
    found = []
    for part in batches(scenes, BATCH if lvlm.batches else 1):
        pictures, prompts = [render(scene)[0] for scene in part], [lvlm.preset.prompts.caption] * len(part)
        seeds = lvlm.text_seeds([str(scene.seed) for scene in part], prompts)
        answers = look.answer(pictures, lvlm.prepare(pictures, prompts), seeds=seeds, task="caption")
        found += [
            [
                answer.text if answer.draft is None else answer.draft,
                answer.text,
                *(each["thing"] for each in answer.removed or ()),
            ]
            for answer in answers
        ]
    return found


def rewritten(method: str, verify: Verify) -> str:
    """Return the name of a method's captions with a second look."""
    return f"{method} + {verify.mode}"


def caption_seconds(methods: Mapping[str, Lvlm], scenes: Sequence[Scene], verify: Verify) -> dict[str, Spread]:
    """Return the seconds of a caption with and without a second look, in turn, a scene a round.

    The first round only warms up.

    Args:
        methods: the bundled model under each.
        scenes: at least two.
        verify: the second look.
    """
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    seconds |= {rewritten(name, verify): [] for name in methods}
    for number, scene in enumerate(scenes):
        picture = render(scene)[0]
        for name, lvlm in methods.items():
            for called, look in ((name, None), (rewritten(name, verify), verify)):
                began = time.perf_counter()
                lvlm.caption(picture, verify=look)
                if number:
                    seconds[called].append(time.perf_counter() - began)
    return {name: Spread.of(row) for name, row in seconds.items()}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.verified", description="Measure the second look.")
    parser.add_argument("--count", type=int, default=1_000, help="number of test scenes")
    parser.add_argument("--texts", type=Path, metavar="FILE.jsonl", help="keep every text here, to go on")
    parser.add_argument("--output", type=Path, default=FILE, metavar="FILE.json", help="the measurements")
    given = parser.parse_args()
    methods, look = load_methods(), Verify(mode="rewrite")
    scenes = [held_out(seed) for seed in TEST_SEEDS[: given.count]]
    with closing(Units(given.texts)) as units:
        units.begin({"scenes": "drawn"})
        report, removed = measure_verified(
            methods, scenes, look, lambda done: print(f"{done} of {len(scenes)} scenes", flush=True), units
        )
    rounds = [*scenes[:1], *scenes[:TIMED]]  # the first warms up
    greedy = methods["greedy"]
    found = VerifiedReport(
        report,
        look.settings(greedy.preset),
        removed,
        caption_seconds(methods, rounds, look),
        len(rounds) - 1,
        device_name(greedy.model.device),
    )
    given.output.write_text(found.to_json(), encoding="utf-8")
    print(found.table())


if __name__ == "__main__":
    main()
