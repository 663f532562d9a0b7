"""Measure how well the second look separates hallucinated objects from true ones: `python -m tools.support --split
test`.

Measured on scenes that no model was trained on.

Late words are hallucinated more often than early ones, and repeated objects are likely real, so a score may look good
only because it depends on the position. So the figures are also given within thirds of the text, for first mentions
only, and for the position alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from sira_cli.demo.measure import load_methods, markdown
from sira_cli.demo.questions import held_out, mentions
from sira_cli.demo.scenes import TEST_SEEDS, VALIDATION_SEEDS, Scene, render
from sira_cli.eval.statistics import Figure, auroc_interval
from sira_cli.look.second_look import SecondLook
from sira_cli.run.lvlm import Lvlm
from tools.chosen import FOLDER
from tools.word_scores import BATCH, object_words, scored_captions

SCORES = ("support", "probability", "grounding", "position")
THIRDS = ("first third", "middle third", "last third")
PARTS = ("all", *THIRDS, "first mentions")
Split = Literal["validation", "test"]
SEEDS: dict[Split, range] = {"validation": VALIDATION_SEEDS[500_000:], "test": TEST_SEEDS}


class Mention(NamedTuple):
    """An object word of a caption.

    Attributes:
        scene: number of the scene.
        there: whether the object is in the scene.
        start: where the word begins, as a share of the text.
        first: whether the text has not named the object before.
        support, probability, grounding: its scores.
    """

    scene: int
    there: bool
    start: float
    first: bool
    support: float
    probability: float
    grounding: float

    @property
    def position(self) -> float:
        """Score by position: the earlier, the higher."""
        return -self.start

    def is_in(self, part: str) -> bool:
        """Return whether it belongs to one of `PARTS`."""
        if part in THIRDS:
            return min(int(3 * self.start), 2) == THIRDS.index(part)
        return self.first or part == "all"


def measure_support(
    methods: Mapping[str, Lvlm], scenes: Sequence[Scene], on_progress: Callable[[int], None] = lambda done: None
) -> dict[str, dict[str, Any]]:
    """Measure the AUROC of `support` over the object words of each decoder's captions, and of other scores."""
    found: dict[str, dict[str, Any]] = {}
    for name, lvlm in methods.items():
        named: list[Mention] = []
        look = SecondLook(lvlm)
        unknown = 0
        for start in range(0, len(scenes), BATCH):
            batch = scenes[start : start + BATCH]
            captions = zip(batch, scored_captions(lvlm, batch), strict=True)
            for number, (scene, (text, contrast, full)) in enumerate(captions, start=start):
                rows = _mentions(look, number, scene, text, contrast, full)
                named += [row for row in rows if row is not None]
                unknown += rows.count(None)
            on_progress(start + len(batch))
        threshold = lvlm.preset.verify.min_support
        below = [row.there for row in named if row.support < threshold]
        found[name] = {"threshold": threshold, "not asked": unknown, "flagged": [sum(below), len(below) - sum(below)]}
        found[name] |= {part: _figures([row for row in named if row.is_in(part)], len(scenes)) for part in PARTS}
    return found


def file_of(split: Split) -> Path:
    """Return the file of the figures of a split's scenes."""
    return FOLDER / f"support-{split}.json"


def to_json(split: Split, scenes: int, found: dict[str, dict[str, Any]]) -> str:
    """Return the measurements as JSON; `from_json` reads it."""
    return json.dumps({"split": split, "scenes": scenes, **found}, indent=1, default=dataclasses.asdict) + "\n"


def shipped() -> str:
    """Return the figures on the test scenes, or before that on validation scenes, as `shown` does."""
    path = file_of("test") if file_of("test").is_file() else file_of("validation")
    return shown(path.read_text(encoding="utf-8"))


def shown(text: str) -> str:
    """Return the figures, from the JSON of `to_json`, in Markdown: a sentence or two and a table."""
    content = json.loads(text)
    scenes = f"{content.pop('scenes'):,} {content.pop('split')} scenes"
    scores = [score for score in SCORES if score in next(iter(content.values()))["all"]]
    rows = [["words of", "", "object words", "hallucinated", *(f"AUROC of {score}" for score in scores)]]
    shares = []
    for name, row in content.items():
        for part in PARTS:
            figures = [row[part][score] and Figure(**row[part][score]) for score in scores]
            counts = [str(row[part][count]) for count in ("words", "hallucinated")]
            rows.append([name, part, *counts, *(f"{figure or '-'}" for figure in figures)])
        wrong = row["all"]["hallucinated"]
        true, false = row["flagged"][0] / (row["all"]["words"] - wrong), row["flagged"][1] / wrong
        shares.append(f"{name}: {100 * false:.0f} % of the hallucinated objects, {100 * true:.1f} % of the true ones")
    threshold = next(iter(content.values()))["threshold"]
    below = f"Below the threshold of {threshold:g} are, in captions of {'; of '.join(shares)}."
    return f"On {scenes}:\n\n{markdown(rows)}\n\n{below}"


def _mentions(
    look: SecondLook, number: int, scene: Scene, text: str, contrast: list[dict[str, Any]], full: list[dict[str, Any]]
) -> list[Mention | None]:
    """Return every mention of an object with its scores; None for words outside the second look's vocabulary."""
    claims = look.check(render(scene)[0], text).objects
    rows: list[Mention | None] = []
    before = set()
    for (start, end, name), (_, grounding, _, probability) in zip(
        mentions(text), object_words(scene, text, contrast, full), strict=True
    ):
        asked = [claim for claim in claims if any(first < end and last > start for first, last in claim.spans)]
        place, first = start / len(text), name not in before
        before.add(name)
        rows.append(
            Mention(*(number, name in scene.objects, place, first), *(asked[0].support, probability, grounding))
            if asked
            else None
        )
    return rows


def _figures(named: Sequence[Mention], scenes: int) -> dict[str, Any]:
    pictures, there = np.array([row.scene for row in named]), np.array([row.there for row in named], dtype=bool)
    return {
        "words": len(named),
        "hallucinated": int((~there).sum()),
        **{
            score: auroc_interval(pictures, there, np.array([getattr(row, score) for row in named]), scenes)
            for score in SCORES
        },
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.support", description="Measure the second look.")
    parser.add_argument("--split", choices=get_args(Split), default="validation", help="which scenes")
    parser.add_argument("--count", type=int, help="scenes (default: 300 validation scenes, 1,000 test scenes)")
    given = parser.parse_args()
    count = given.count or {"validation": 300, "test": 1_000}[given.split]
    scenes = [held_out(seed) for seed in SEEDS[given.split][:count]]
    found = measure_support(
        load_methods(), scenes, lambda done: print(f"{done} of {count} scenes of a decoder", flush=True)
    )
    text = to_json(given.split, count, found)
    file_of(given.split).write_text(text, encoding="utf-8")
    print(shown(text))


if __name__ == "__main__":
    main()
