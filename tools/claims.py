"""Measure whether the second look tells true colours from wrong ones: `python -m tools.claims --split test`.

swapped   captions of another source, which name the scene's objects with their colours, against the same captions with
          each colour replaced by another one
own       the captions of the model itself, whose colours are sometimes wrong

Measured on scenes that no model was trained on and no other tool uses. The threshold is that of the rule of
`sira calibrate support`, on swapped colours of the validation scenes.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from PIL import Image

from sira_cli.analysis.calibration.support import Labelled, Source, SupportReport
from sira_cli.demo.language import article, mentions
from sira_cli.demo.measure import load_methods
from sira_cli.demo.questions import held_out
from sira_cli.demo.scene_report import markdown
from sira_cli.demo.scenes import TEST_SEEDS, VALIDATION_SEEDS, Scene, render
from sira_cli.demo.world import COLORS
from sira_cli.eval.stats.auroc import auroc_interval
from sira_cli.eval.stats.intervals import Figure
from sira_cli.eval.stats.tally import ratio
from sira_cli.models.look.second_look import SecondLook, Verify
from sira_cli.models.lvlm import Lvlm
from tools.chosen import FOLDER

KIND = "colors"
SWAPPED, OWN = "swapped", "own, {}"
BATCH = 25
Split = Literal["validation", "test"]
SEEDS: dict[Split, range] = {"validation": VALIDATION_SEEDS[800_000:], "test": TEST_SEEDS[700_000:]}


def caption(colors: Mapping[str, str]) -> str:
    """Return a caption that gives objects a colour, in another form than the training captions."""
    return " ".join(f"I see {article(color)} {color} {name}." for name, color in colors.items())


def colors_of(scene: Scene) -> dict[str, str]:
    """Return the colour of each kind of object."""
    return {name: things[0].color for name, things in scene.objects.items()}


def swapped(scene: Scene) -> dict[str, str]:
    """Return another colour than its own for each kind of object."""
    rng = np.random.default_rng([scene.seed, scene.broken, 4])
    return {
        name: str(rng.choice([other for other in COLORS if other != color])) for name, color in colors_of(scene).items()
    }


def measure_claims(
    methods: Mapping[str, Lvlm], scenes: Sequence[Scene], on_progress: Callable[[int], None] = lambda done: None
) -> dict[str, list[Labelled]]:
    """Measure the support of true and of wrong colours.

    Args:
        methods: the bundled model under each decoder.
        scenes: to describe.
        on_progress: called with the number of finished scenes.

    Returns:
        For swapped colours, and for the own ones of each decoder, every colour that a text gives to an object of its
        scene.
    """
    look = SecondLook(next(iter(methods.values())), Verify(claims=KIND))
    rows: dict[str, list[Labelled]] = {SWAPPED: [], **{OWN.format(name): [] for name in methods}}
    for start in range(0, len(scenes), BATCH):
        batch = scenes[start : start + BATCH]
        images = [render(scene)[0] for scene in batch]
        own = {
            OWN.format(name): [result.text for result in lvlm.caption_many(images, batch_size=BATCH)]
            for name, lvlm in methods.items()
        }
        for place, (scene, image) in enumerate(zip(batch, images, strict=True)):
            texts = {SWAPPED: [caption(colors_of(scene)), caption(swapped(scene))]}
            texts |= {name: [captions[place]] for name, captions in own.items()}
            for name, part in _supports(look, image, texts).items():
                rows[name] += [
                    Labelled(start + place, value == colors_of(scene)[thing], support)
                    for thing, value, support in part
                    if thing in scene.objects
                ]
        on_progress(start + len(batch))
    return rows


def _supports(
    look: SecondLook, image: Image.Image, texts: Mapping[str, Sequence[str]]
) -> dict[str, list[tuple[str, str, float]]]:
    """Return each object with its colour and the support, by the name of the texts; all questions are asked at once."""
    named = {name: [thing for text in part for thing in look.named(image, text)] for name, part in texts.items()}
    claims = iter(look.claims(image, [thing for part in named.values() for thing in part]))
    return {
        name: [
            (mentions(claim.thing)[0][2], claim.value, claim.support) for claim in itertools.islice(claims, len(part))
        ]
        for name, part in named.items()
    }


def file_of(split: Split) -> Path:
    """Return the file of the figures of a split's scenes."""
    return FOLDER / f"claims-{split}.json"


def to_json(split: Split, scenes: int, threshold: float, found: Mapping[str, Sequence[Labelled]]) -> str:
    """Return the figures of `measure_claims` as JSON; `threshold` is that of the rule on validation scenes."""
    rows = {}
    for name, part in found.items():
        pictures, true, support = (np.array(column) for column in zip(*part, strict=True))
        rows[name] = {
            "true": int(true.sum()),
            "wrong": int((~true).sum()),
            "auroc": auroc_interval(pictures, true, support, scenes),
            "below": [ratio(int((support[of] < threshold).sum()), int(of.sum())) for of in (true, ~true)],
        }
    return (
        json.dumps({"split": split, "scenes": scenes, "threshold": threshold, "claims": rows}, indent=1, default=asdict)
        + "\n"
    )


def shown(text: str) -> str:
    """Return the figures, from the JSON of `to_json`, in Markdown."""
    content = json.loads(text)
    rows = [["colours", "true", "wrong", "AUROC of support", "true below the threshold", "wrong below the threshold"]]
    for name, row in content["claims"].items():
        figure = "-" if row["auroc"] is None else f"{Figure(**row['auroc'])}"
        below = [f"{100 * share:.1f} %" for share in row["below"]]
        rows.append([name, f"{row['true']:,}", f"{row['wrong']:,}", figure, *below])
    scenes = f"{content['scenes']:,} {content['split']} scenes"
    return f"On {scenes}; the threshold is {content['threshold']:g}:\n\n{markdown(rows)}"


def shipped() -> str:
    """Return the figures on the test scenes, as `shown` does."""
    return shown(file_of("test").read_text(encoding="utf-8"))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.claims", description="Measure claims about colours.")
    parser.add_argument("--split", choices=get_args(Split), default="validation", help="which scenes")
    parser.add_argument("--count", type=int, help="scenes (default: 400 validation scenes, 500 test scenes)")
    given = parser.parse_args()
    count = given.count or {"validation": 400, "test": 500}[given.split]
    methods = load_methods()
    scenes = [held_out(seed) for seed in SEEDS[given.split][:count]]
    found = measure_claims(methods, scenes, lambda done: print(f"{done} of {count} scenes", flush=True))
    threshold = Verify(claims=KIND).thresholds(next(iter(methods.values())).preset)[KIND]
    if given.split == "validation":
        threshold = SupportReport.of(Source("bundled", "", {}), count, found[SWAPPED]).threshold
    text = to_json(given.split, count, threshold, found)
    file_of(given.split).write_text(text, encoding="utf-8")
    print(shown(text))


if __name__ == "__main__":
    main()
