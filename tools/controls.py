"""Measure the threshold that needs no labels: `python -m tools.controls --split test`.

On validation scenes several percentiles of the controls' support are compared, on test scenes the one that was chosen:
in several wordings of the question, and with controls of three seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from sira_cli.analysis.calibration.controls import PERCENTILE, ControlsReport, WithControls
from sira_cli.analysis.calibration.support import Caption, Labelled, Source, SupportReport, labelled_by
from sira_cli.demo.labelled_captions import described
from sira_cli.demo.measure import load_method
from sira_cli.demo.questions import held_out
from sira_cli.demo.scene_report import markdown
from sira_cli.demo.scenes import Scene, render
from sira_cli.language import things
from sira_cli.models.loading.preset_parts import Prompts
from sira_cli.models.look.second_look import SecondLook
from sira_cli.models.look.verify import Verify
from sira_cli.models.lvlm import Lvlm
from tools.chosen import FOLDER
from tools.support import SEEDS as SCENES
from tools.support import Split

SEEDS = (0, 1, 2)  # of the choice of controls
WORDINGS = (
    Prompts().verify,
    "Does the image show {thing}?",
    "Can you see {thing}?",
    "Is {thing} in the picture?",
)
PERCENTILES: dict[Split, tuple[int, ...]] = {"validation": (90, 95, 97, 98, 99), "test": (PERCENTILE,)}


@dataclasses.dataclass(frozen=True)
class Effect:
    """A threshold, and the shares of real and of hallucinated objects below it."""

    threshold: float
    there: float
    absent: float

    @classmethod
    def of(cls, threshold: float, labelled: Sequence[Labelled]) -> Effect:
        """Count the objects below a threshold."""
        there, absent = (
            fmean(one.support < threshold for one in labelled if one.there is kind) for kind in (True, False)
        )
        return cls(threshold, there, absent)


def measure_controls(
    lvlm: Lvlm,
    scenes: Sequence[Scene],
    percentiles: Sequence[int],
    wordings: Sequence[str] = WORDINGS,
    on_progress: Callable[[str], None] = lambda done: None,
) -> list[dict[str, Any]]:
    """Find the threshold of the same captions by labels and by controls.

    Args:
        lvlm: the bundled model under the decoder that captions.
        scenes: to caption.
        percentiles: of the controls' support.
        wordings: of the question.
        on_progress: called with what is done.

    Returns:
        For each wording: `wording`, `labels` (an `Effect`), `controls`: by percentile an `Effect` for each of `SEEDS`,
        and `in the picture`: the share of controls that are there, though their caption does not name them.
    """
    texts = {scene.seed: text for scene, _, text in described(lvlm, scenes)}
    on_progress("captions")
    words = [WithControls(things.shipped(), texts.values(), seed) for seed in SEEDS]
    rows = []
    for wording in wordings:
        checks = _checks(_asking(lvlm, wording), scenes, texts, words)
        labelled = _labelled(scenes, checks[0])
        by_labels = SupportReport.of(Source.of(checks[0][0]), len(scenes), labelled).threshold
        by_controls = {each: [ControlsReport.of(check, each).threshold for check in checks] for each in percentiles}
        rows.append(
            {
                "wording": wording,
                "labels": Effect.of(by_labels, labelled),
                "controls": {
                    each: [Effect.of(threshold, labelled) for threshold in by_controls[each]] for each in percentiles
                },
                "in the picture": fmean(share for check in checks for share in _present(scenes, check)),
            }
        )
        on_progress(wording)
    return rows


def _labelled(scenes: Sequence[Scene], checks: Sequence[Mapping[str, Any]]) -> list[Labelled]:
    named = [
        Caption("", str(scene.seed), {each["thing"]: each["support"] for each in check["objects"] if each["spans"]})
        for scene, check in zip(scenes, checks, strict=True)
    ]
    objects = {str(scene.seed): scene.objects for scene in scenes}
    return labelled_by(named, lambda caption: objects[caption.file_name])


def _present(scenes: Sequence[Scene], checks: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Return for each control whether it is in the picture."""
    pairs = zip(scenes, checks, strict=True)
    return [each["thing"] in scene.objects for scene, check in pairs for each in check["objects"] if not each["spans"]]


def _asking(lvlm: Lvlm, wording: str) -> Lvlm:
    prompts = lvlm.preset.prompts.model_copy(update={"verify": wording})
    return lvlm.under(lvlm.decoder, lvlm.preset.model_copy(update={"prompts": prompts}))


def _checks(
    lvlm: Lvlm, scenes: Sequence[Scene], texts: Mapping[int, str], words: Sequence[WithControls]
) -> list[list[dict[str, Any]]]:
    """Return the record of each scene, for each choice of controls; an object is asked about once."""
    look, settings = SecondLook(lvlm), Verify().settings(lvlm.preset)
    checks: list[list[dict[str, Any]]] = [[] for _ in words]
    for scene in scenes:
        named = [each.things(texts[scene.seed]) for each in words]
        every = {thing.name: thing for some in named for thing in some}
        claims = {claim.thing: claim for claim in look.claims(render(scene)[0], list(every.values()))}
        for found, some in zip(checks, named, strict=True):
            objects = [claims[thing.name].to_json() for thing in some]
            found.append(
                {
                    "status": "ok",
                    "model": lvlm.preset.model,
                    "revision": lvlm.revision,
                    "verify": settings,
                    "objects": objects,
                }
            )
    return checks


def file_of(split: Split) -> Path:
    """Return the file of the figures of a split's scenes."""
    return FOLDER / f"controls-{split}.json"


def to_json(split: Split, scenes: int, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the measurements as JSON; `shown` reads it."""
    return json.dumps({"split": split, "scenes": scenes, "rows": rows}, indent=1, default=dataclasses.asdict) + "\n"


def shown(text: str) -> str:
    """Return the figures, from the JSON of `to_json`, as a table in Markdown."""
    content = json.loads(text)
    table = [["question", "threshold from", "threshold", "real objects below", "hallucinated below"]]
    for row in content["rows"]:
        kinds = [("labels", [row["labels"]])]
        kinds += [(f"{percentile} % of controls", found) for percentile, found in row["controls"].items()]
        for kind, found in kinds:
            effects = [Effect(**each) for each in found]
            cells = (
                " / ".join(form.format(getattr(each, name)) for each in effects)
                for name, form in (("threshold", "{:.3f}"), ("there", "{:.1%}"), ("absent", "{:.0%}"))
            )
            table.append([row["wording"] if kind == "labels" else "", kind, *cells])
    there = fmean(row["in the picture"] for row in content["rows"])
    scenes = f"{content['scenes']:,} {content['split']} scenes"
    return f"On {scenes}, with controls of {len(SEEDS)} seeds ({there:.1%} are in the picture):\n\n{markdown(table)}"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.controls", description="Measure the threshold without labels."
    )
    parser.add_argument("--split", choices=get_args(Split), default="validation", help="which scenes")
    parser.add_argument("--count", type=int, help="scenes (default: 300 validation scenes, 1,000 test scenes)")
    given = parser.parse_args()
    count = given.count or {"validation": 300, "test": 1_000}[given.split]
    scenes = [held_out(seed) for seed in SCENES[given.split][:count]]
    rows = measure_controls(
        load_method("sira"), scenes, PERCENTILES[given.split], on_progress=lambda done: print(done, flush=True)
    )
    text = to_json(given.split, count, rows)
    file_of(given.split).write_text(text, encoding="utf-8")
    print(shown(text))


if __name__ == "__main__":
    main()
