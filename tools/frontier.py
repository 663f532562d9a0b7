"""Objects hallucinated against objects named, on drawn scenes: methods next to trivial ways to say less.

A method that says less, or leaves out what it is unsure of, lowers CHAIRi as well. Two baselines need no method: greedy
captions cut after some words, and greedy captions without mentions of the least probable objects. A method has to be
better than both. `python -m tools.frontier` measures the test scenes and writes `compared/frontier.json`.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sira_cli.demo.measure import markdown
from sira_cli.demo.questions import held_out, mentions
from sira_cli.demo.scenes import TEST_SEEDS, Scene, render
from sira_cli.eval.figures import CAPTION_DENOMINATORS, caption_figures, mention_counts
from sira_cli.eval.statistics import Counts, Figure, MethodFigures, Tally
from sira_cli.run.items import batches
from sira_cli.run.lvlm import Lvlm, load
from tools.choose import FOLDER, method_of, read_chosen
from tools.support import BATCH, object_words, scored_captions

FILE = FOLDER / "frontier.json"
LENGTHS = (35, 30, 25, 20, 15, 10)  # words
SHARES = (5, 10, 15, 20, 30)  # percent of the mentions of objects
METHODS = ("sira", "vcd")
GREEDY = "greedy"
NAMES = ("CHAIRi", "coverage", "words")


@dataclasses.dataclass(frozen=True)
class Said:
    """A caption of a scene: its text, and, if it is greedy, the probability of each mention of an object, in order."""

    scene: Scene
    text: str
    probabilities: tuple[float, ...] = ()


def cut(text: str, words: int) -> str:
    """Return the first words of a text, with the white space between them."""
    return " ".join(text.split()[:words])


def counts_of(said: Said, text: str, least: float = 0.0) -> Counts:
    """Count the mentions in a text, which begins like the caption, without objects less probable than `least`."""
    named = [name for _, _, name in mentions(text)]
    kept = named
    if least:
        kept = [name for name, probability in zip(named, said.probabilities, strict=False) if probability >= least]
    return mention_counts(kept, list(said.scene.objects)) | {"words": len(text.split())}


def baselines(captions: Sequence[Said]) -> dict[str, Tally]:
    """Return the counts of greedy captions that are cut, and of those without their least probable objects."""
    rows: dict[str, Tally] = {}
    for words in LENGTHS:
        rows[f"greedy, {words} words"] = _tally({one: counts_of(one, cut(one.text, words)) for one in captions})
    every = [probability for one in captions for probability in one.probabilities]
    for share in SHARES:
        least = float(np.percentile(every, share))
        rows[f"greedy, {share} % out"] = _tally({one: counts_of(one, one.text, least) for one in captions})
    return rows


def equal_length(captions: Sequence[Said], others: Sequence[Said]) -> Figure:
    """Return the paired difference in CHAIRi to greedy captions, where both are cut to the shorter of the two."""
    tallies = {GREEDY: dict[Said, Counts](), "other": dict[Said, Counts]()}
    for own, other in zip(captions, others, strict=True):
        words = min(len(own.text.split()), len(other.text.split()))
        tallies[GREEDY][own] = counts_of(own, cut(own.text, words))
        tallies["other"][other] = counts_of(other, cut(other.text, words))
    compared = compare({name: _tally(rows) for name, rows in tallies.items()})
    return compared.differences("other", GREEDY)["CHAIRi"]


def at_coverage(curve: Sequence[tuple[float, float]], coverage: float) -> float | None:
    """Return CHAIRi of a curve at a coverage, by straight lines; None outside of it.

    Args:
        curve: points (coverage, CHAIRi).
        coverage: in percent, like the curve.
    """
    points = sorted(curve)
    for (left, low), (right, high) in itertools.pairwise(points):
        if left <= coverage <= right:
            share = (coverage - left) / (right - left) if right > left else 0.0
            return low + share * (high - low)
    return None


def compare(tallies: Mapping[str, Tally]) -> MethodFigures:
    """Compare rows by their captions."""
    return MethodFigures.of(tallies, caption_figures, CAPTION_DENOMINATORS)


def measure(captions: Mapping[str, Sequence[Said]]) -> dict[str, Any]:
    """Measure methods, greedy first, and the baselines; all figures in percent, but for words."""
    greedy = captions[GREEDY]
    trivial = baselines(greedy)
    own = {name: _tally({one: counts_of(one, one.text) for one in row}) for name, row in captions.items()}
    compared = compare(own | trivial)
    rows = {name: {figure: compared.figures(name)[figure] for figure in NAMES} for name in own | trivial}
    thinned = [GREEDY, *(name for name in trivial if name.endswith("out"))]
    curve = [(rows[name]["coverage"].value, rows[name]["CHAIRi"].value) for name in thinned]
    more = {}
    for name in own:
        if name != GREEDY:
            difference = equal_length(greedy, captions[name])
            same = at_coverage(curve, rows[name]["coverage"].value)
            more[name] = {"equal length": difference, "least probable out": same}
    return {"scenes": len(greedy), "rows": rows, "methods": more}


def table(found: Mapping[str, Any], baselines: bool = True) -> str:
    """Return measurements as `frontier.json` holds them in Markdown: rows by falling coverage.

    Args:
        found: the measurements.
        baselines: whether the trivial ones have rows.
    """
    heads = ["captions", *NAMES, "CHAIRi at equal length", "greedy's at this coverage"]
    rows = sorted(found["rows"].items(), key=lambda row: -row[1]["coverage"]["value"])
    lines = []
    for name, figures in rows:
        more = found["methods"].get(name)
        if more is None and name != GREEDY and not baselines:
            continue
        length = "" if more is None else f"{Figure(**more['equal length']):+}"
        same = "" if more is None or more["least probable out"] is None else f"{more['least probable out']:.1f}"
        lines.append([name, *(f"{Figure(**figures[each])}" for each in NAMES), length, same])
    return markdown([heads, *lines])


def shipped() -> str:
    """Return the table of the measurements in `compared`, without the rows of baselines."""
    return table(json.loads(FILE.read_text(encoding="utf-8")), baselines=False)


def _tally(counts: Mapping[Said, Counts]) -> Tally:
    tally = Tally()
    tally.counts |= {str(one.scene.seed): row for one, row in counts.items()}
    return tally


def caption(lvlm: Lvlm, batch: Sequence[Scene]) -> list[Said]:
    """Return the captions of scenes."""
    if lvlm.method == GREEDY:
        scored = zip(batch, scored_captions(lvlm, batch), strict=True)
        return [Said(scene, each[0], tuple(row[-1] for row in object_words(scene, *each))) for scene, each in scored]
    pictures = [render(scene)[0] for scene in batch]
    results = lvlm.caption_many(pictures, batch_size=len(batch))
    return [Said(scene, result.text) for scene, result in zip(batch, results, strict=True)]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.frontier", description="Measure trivial baselines.")
    parser.add_argument("methods", nargs="*", metavar="METHOD", default=[*METHODS], help="which ones")
    parser.add_argument("--count", type=int, default=1_000, help="number of scenes")
    parser.add_argument("--output", type=Path, default=FILE, metavar="FILE.json", help="the measurements")
    given = parser.parse_args()
    model = load("demo", method=GREEDY)
    chosen = read_chosen()
    scenes = [held_out(seed) for seed in TEST_SEEDS[: given.count]]
    captions: dict[str, list[Said]] = {}
    for name in (GREEDY, *given.methods):
        lvlm = model if name == GREEDY else model.under(method_of(name, chosen))
        captions[name] = [said for batch in batches(scenes, BATCH) for said in caption(lvlm, batch)]
        print(f"{name}: {len(scenes)} scenes", flush=True)
    text = json.dumps(measure(captions), indent=1, default=dataclasses.asdict) + "\n"
    given.output.write_text(text, encoding="utf-8")
    print(table(json.loads(text)))


if __name__ == "__main__":
    main()
