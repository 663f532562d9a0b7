"""Do scores separate hallucinated objects from true ones, on scenes that no model was trained on?

The scores of words (`measure_words`), and the second look's support: `python -m tools.support --split test`. Late words
are hallucinated more often than early ones, so the figures of the position alone are also given.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from sira_cli.core.streams import Step
from sira_cli.demo.measure import load_methods, markdown
from sira_cli.demo.questions import hallucinated, held_out, mentions
from sira_cli.demo.scenes import TEST_SEEDS, VALIDATION_SEEDS, Scene, render
from sira_cli.eval.statistics import Estimate, Figure, Share
from sira_cli.look.second_look import SecondLook
from sira_cli.models.progress import WordScores
from sira_cli.run.lvlm import Lvlm
from tools.choose import FOLDER

BATCH = 50  # captions
SCORES = ("support", "probability", "grounding", "position")
Split = Literal["validation", "test"]
SEEDS: dict[Split, range] = {"validation": VALIDATION_SEEDS[500_000:], "test": TEST_SEEDS}


class Mention(NamedTuple):
    """An object word of a caption, with its scores."""

    scene: int  # its number
    there: bool  # whether the object is in the scene
    support: float
    probability: float
    grounding: float
    position: float  # the earlier, the higher


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
        found[name]["all"] = _figures(named, len(scenes))
    return found


def file_of(split: Split) -> Path:
    """Return the file of the figures of a split's scenes."""
    return FOLDER / f"support-{split}.json"


def shipped() -> str:
    """Return the figures on the test scenes in Markdown."""
    return shown(file_of("test").read_text(encoding="utf-8"))


def shown(text: str) -> str:
    """Return the figures of a file in Markdown."""
    content = json.loads(text)
    scenes = f"{content.pop('scenes'):,} {content.pop('split')} scenes"
    threshold = next(iter(content.values()))["threshold"]
    heads = ["words of", "true", f"below {threshold:g}", "hallucinated", f"below {threshold:g}"]
    rows = [[*heads, *(f"AUROC of {score}" for score in SCORES)]]
    for name, row in content.items():
        wrong = row["all"]["hallucinated"]
        counts = []
        for below, words in zip(row["flagged"], (row["all"]["words"] - wrong, wrong), strict=True):
            counts += [f"{words:,}", f"{100 * below / words:.1f} %"]
        rows.append([name, *counts, *(f"{Figure(**row['all'][score])}" for score in SCORES)])
    return f"Objects in captions of {scenes}, and their share with a support below the threshold:\n\n{markdown(rows)}"


def _mentions(
    look: SecondLook, number: int, scene: Scene, text: str, contrast: list[dict[str, Any]], full: list[dict[str, Any]]
) -> list[Mention | None]:
    """Return every mention of an object with its scores; None for words outside the second look's vocabulary."""
    claims = look.check(render(scene)[0], text).objects
    rows: list[Mention | None] = []
    for (start, end, name), (_, grounding, _, probability) in zip(
        mentions(text), object_words(scene, text, contrast, full), strict=True
    ):
        asked = [claim for claim in claims if any(first < end and last > start for first, last in claim.spans)]
        scores = (asked[0].support, probability, grounding, -start / len(text)) if asked else ()
        rows.append(Mention(number, name in scene.objects, *scores) if asked else None)
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


def auroc_interval(pictures: np.ndarray, positive: np.ndarray, score: np.ndarray, size: int) -> Figure | None:
    """Return the AUROC in percent with its 95 % interval over pictures (Obuchowski 1997); None without both kinds."""
    if positive.all() or not positive.any():
        return None
    ahead = _ahead(positive, score)
    numbers = pictures.astype(int)
    value = float(ahead[positive].mean())
    moved = (ahead - value) / np.where(positive, positive.sum(), (~positive).sum())
    rarer = positive if 2 * positive.sum() <= len(positive) else ~positive
    share = Share.of(np.bincount(numbers[rarer], minlength=size).astype(float))
    influence = np.bincount(numbers, 100 * moved, minlength=size)
    return Estimate(100 * value, influence, share).figure()


def _ahead(positive: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Return for each word the share of the other kind that it is ranked correctly against, ties half: `[N]`."""
    _, values = np.unique(score, return_inverse=True)
    ups = np.bincount(values[positive], minlength=values.max() + 1)
    downs = np.bincount(values[~positive], minlength=values.max() + 1)
    below = (downs.cumsum() - downs / 2) / downs.sum()
    above = 1 - (ups.cumsum() - ups / 2) / ups.sum()
    ahead: np.ndarray = np.where(positive, below[values], above[values])
    return ahead


FIFTHS = (0.8, 0.6, 0.4, 0.2)  # groundings between degrees of doubt
OF_WORDS = ("grounding", "delta", "probability")  # the last, of the full stream alone, is the baseline


def measure_words(methods: Mapping[str, Lvlm], scenes: Sequence[Scene]) -> dict[str, dict[str, Any]]:
    """Measure the AUROC of each score over the object words of each decoder's captions."""
    found: dict[str, dict[str, Any]] = {}
    for name, lvlm in methods.items():
        rows = []  # one per word: scene, hallucinated, scores
        for start in range(0, len(scenes), BATCH):
            batch = scenes[start : start + BATCH]
            for number, (scene, scored) in enumerate(
                zip(batch, scored_captions(lvlm, batch), strict=True), start=start
            ):
                rows += [(number, *row) for row in object_words(scene, *scored)]
        table = np.array(rows, dtype=float).reshape(-1, 2 + len(OF_WORDS))
        degrees = np.array([sum(grounding < edge for edge in FIFTHS) for grounding in table[:, 2]])
        found[name] = {
            "words": len(table),
            "hallucinated": int(table[:, 1].sum()),
            "by_doubt": [
                [int((degrees == degree).sum()), int(table[degrees == degree, 1].sum())]
                for degree in range(len(FIFTHS) + 1)
            ],
        }
        for column, score in enumerate(OF_WORDS, start=2):
            found[name][score] = auroc_interval(table[:, 0], table[:, 1] == 0, table[:, column], len(scenes))
    return found


def from_json(content: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Restore the result of `measure_words` from JSON (`dataclasses.asdict` for figures)."""
    return {
        name: row | {score: row[score] and Figure(**row[score]) for score in OF_WORDS} for name, row in content.items()
    }


def words_table(found: dict[str, dict[str, Any]]) -> str:
    """Return the table in Markdown."""
    rows = [["words of", "object words", "hallucinated", *(f"AUROC of {score}" for score in OF_WORDS)]]
    for name, row in found.items():
        rows.append(
            [name, str(row["words"]), str(row["hallucinated"]), *(f"{row[score] or '-'}" for score in OF_WORDS)]
        )
    return markdown(rows)


def scored_captions(lvlm: Lvlm, batch: Sequence[Scene]) -> list[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]]:
    """Return each scene's caption, and its words under the contrast and under the full stream alone."""
    inputs = lvlm.prepare([render(scene)[0] for scene in batch], [lvlm.preset.prompts.caption] * len(batch))
    contrast, full = WordScores(lvlm.parser, lvlm.sira.alpha), WordScores(lvlm.parser, 0.0)

    def add(tokens: list[int], step: Step) -> None:
        contrast.add(tokens, step)
        full.add(tokens, step)

    rows = [lvlm.ends.until_end(row) for row in lvlm.generate(inputs, on_tokens=add).tolist()]
    texts = [lvlm.vocabulary.text(row).strip() for row in rows]
    return [
        (text, contrast.words(number, len(row)), full.words(number, len(row)))
        for number, (text, row) in enumerate(zip(texts, rows, strict=True))
    ]


def object_words(
    scene: Scene, text: str, contrast: list[dict[str, Any]], full: list[dict[str, Any]]
) -> list[tuple[bool, float, float, float]]:
    """Return whether each mention of an object is hallucinated, and its scores; several words multiply or add up."""
    wrong = set(hallucinated(scene, text))
    rows = []
    for start, end, _ in mentions(text):
        at = [number for number, word in enumerate(contrast) if word["start"] < end and word["end"] > start]
        rows.append(
            (
                (start, end) in wrong,
                float(np.prod([contrast[number]["grounding"] for number in at])),
                sum(contrast[number]["delta"] for number in at),
                float(np.prod([full[number]["grounding"] for number in at])),
            )
        )
    return rows


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
    content = {"split": given.split, "scenes": count, **found}
    text = json.dumps(content, indent=1, default=dataclasses.asdict) + "\n"
    file_of(given.split).write_text(text, encoding="utf-8")
    print(shown(text))


if __name__ == "__main__":
    main()
