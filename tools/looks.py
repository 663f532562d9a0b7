"""Second looks on drawn scenes: what marking, choosing and looking first make of captions.

`python -m tools.looks --texts FILE.jsonl` measures the test scenes and writes `compared/looks.json`. Texts are kept in
the file: an interrupted run continues.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from sira_cli.analysis.bench.measure import Spread
from sira_cli.analysis.experiment import Units
from sira_cli.demo.measure import markdown, unit
from sira_cli.demo.questions import held_out, mentions
from sira_cli.demo.scenes import Scene, render
from sira_cli.eval.figures import mention_counts
from sira_cli.eval.statistics import Counts, Figure, MethodFigures, Tally
from sira_cli.look.best import chosen
from sira_cli.look.claims import Verify, unsupported
from sira_cli.models.progress import Trail
from sira_cli.run.items import batches
from sira_cli.run.lvlm import Lvlm, load
from sira_cli.run.records import hash_of
from sira_cli.run.task import Caption
from tools.choose import FOLDER
from tools.comparison import BATCH, DENOMINATORS, SEEDS, caption_seconds, differing, text_counts, text_figures

FILE = FOLDER / "looks.json"
METHODS = ("greedy", "sira")
WAYS = ("", "flag", "random", "best", "guide")  # the method alone first
FIGURES = ("CHAIRi", "coverage", "F1", "instances", "broken", "right", "words")
TEXTS = {  # what a row of the table is about
    "": "{method}",
    "flag": "{method}, without marked objects (`flag`)",
    "random": "{method}, one of {captions} at random",
    "best": "{method}, the best of {captions} (`best`)",
    "guide": "{method}, looking first (`guide`)",
}


def row_of(method: str, way: str) -> str:
    """Return the name of a row: `greedy`, `greedy + best`."""
    return f"{method} + {way}" if way else method


@dataclass(frozen=True)
class Looks:
    """The measurements of captions with and without second looks.

    Attributes:
        scenes: number of scenes.
        captions: number of captions that `best` and `random` choose from.
        figures: by row and name.
        differences: by row, its figures minus those of greedy decoding alone; paired.
        cost: by row, the time of a caption relative to greedy's of the same scene.
        timed: number of scenes for `cost`.
    """

    scenes: int
    captions: int
    figures: dict[str, dict[str, Figure]]
    differences: dict[str, dict[str, Figure]]
    cost: dict[str, Spread]
    timed: int

    def write(self, path: Path) -> None:
        """Write one JSON object; `read` reads it."""
        path.write_text(TypeAdapter(Looks).dump_json(self, indent=1).decode() + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path = FILE) -> Looks:
        """Read measurements, by default those on the test scenes."""
        return TypeAdapter(cls).validate_json(path.read_text(encoding="utf-8"))

    def table(self) -> str:
        """Return figures and cost in Markdown, a row per way."""
        rows = [["captions", *FIGURES, "time"]]
        for method in METHODS:
            for way in WAYS:
                rows.append(self._row(method, way))
        return markdown(rows)

    def _row(self, method: str, way: str) -> list[str]:
        name = row_of(method, way)
        title = TEXTS[way].format(method=method, captions=self.captions)
        cells = differing(self.figures[name], self.differences.get(name), FIGURES)
        cost = f"x{self.cost[name].median:.2f}" if name in self.cost else ""
        return [title, *cells, cost]


@dataclass(frozen=True)
class Drawn:
    """The captions of a scene that are compared."""

    own: str
    marked: tuple[str, ...]  # names of the own caption's objects that are not supported
    random: str
    best: str


def drawn_captions(lvlm: Lvlm, scenes: Sequence[Scene], units: Units[list[str]]) -> Iterator[Drawn]:
    """Yield the captions of each scene among which `best` chooses; `units` keeps finished texts."""
    task = Caption.of(lvlm.preset, lvlm.decoder, verify=Verify(mode="best"))
    for own, by_chance, best, *marked in _kept(lvlm, task, scenes, units, partial(_draw, lvlm, task)):
        yield Drawn(own, tuple(marked), by_chance, best)


def guided_captions(lvlm: Lvlm, scenes: Sequence[Scene], units: Units[list[str]]) -> Iterator[str]:
    """Yield the caption of each scene that looks first; `units` keeps finished texts."""
    task = Caption.of(lvlm.preset, lvlm.decoder, verify=Verify(mode="guide"))
    for (text,) in _kept(lvlm, task, scenes, units, partial(_guide, lvlm, task)):
        yield text


def _kept(
    lvlm: Lvlm,
    task: Caption,
    scenes: Sequence[Scene],
    units: Units[list[str]],
    make: Callable[[Sequence[Scene]], list[list[str]]],
) -> Iterator[list[str]]:
    """Yield the texts about each scene; those that `units` does not have are made, a batch at a time."""
    look = f", second look {hash_of(verify=task.how)[:16]}"
    for batch in batches(scenes, BATCH):
        names = {scene: unit(lvlm, scene, []) + look for scene in batch}
        todo = [scene for scene in batch if names[scene] not in units]
        if todo:
            made = make(todo)
            units.add({names[scene]: texts for scene, texts in zip(todo, made, strict=True)})
        for scene in batch:
            yield units[names[scene]]


def _draw(lvlm: Lvlm, task: Caption, scenes: Sequence[Scene]) -> list[list[str]]:
    """Return the own, a random and the best caption of each scene, then the marked objects of the own."""
    assert task.verify is not None
    pictures = [render(scene)[0] for scene in scenes]
    prompts = [lvlm.preset.prompts.caption] * len(scenes)
    inputs = lvlm.to_device(lvlm.prepare(pictures, prompts))
    seeds = lvlm.text_seeds([str(scene.seed) for scene in scenes], prompts)
    trail = Trail(range(len(scenes)))
    second_look = task.second_look(lvlm)
    drawn = lvlm.best(second_look, task.kind, None).drawn(inputs, seeds, trail)
    looks = second_look.at(pictures, inputs, trail)
    rows = []
    for scene, captions, look in zip(scenes, drawn, looks, strict=True):
        finished = [look.checked(caption) for caption in captions]
        own = finished[0]
        marked = unsupported({"objects": own.objects, "verify": own.verify})
        by_chance = random.Random(scene.seed).choice(finished)
        rows.append([own.text, by_chance.text, chosen(finished).text, *(one["thing"] for one in marked)])
    return rows


def _guide(lvlm: Lvlm, task: Caption, scenes: Sequence[Scene]) -> list[list[str]]:
    """Return the caption of each scene that looks first."""
    pictures = [render(scene)[0] for scene in scenes]
    prompts = [lvlm.preset.prompts.caption] * len(scenes)
    seeds = lvlm.text_seeds([str(scene.seed) for scene in scenes], prompts)
    inputs = lvlm.to_device(lvlm.prepare(pictures, prompts))
    answers = task.way(lvlm).answers(pictures, inputs, seeds)
    return [[answer.text] for answer in answers]


def unmarked_counts(scene: Scene, text: str, marked: Sequence[str]) -> Counts:
    """Count a caption as its reader does who leaves out marked objects: only the other mentions count."""
    named = [name for _, _, name in mentions(text) if name not in marked]
    kinds = {"kinds": len({*named})}
    return text_counts(scene, text) | mention_counts(named, list(scene.objects)) | kinds


def measure(lvlm: Lvlm, scenes: Sequence[Scene], units: Units[list[str]]) -> Looks:
    """Measure greedy decoding and SIRA, alone and with each second look."""
    tallies: dict[str, Tally] = {}
    ways: dict[str, Callable[[Any], object]] = {}
    for method in METHODS:
        decoder = lvlm.under(method)
        texts = {way: Tally() for way in WAYS}
        drawn = drawn_captions(decoder, scenes, units)
        looked = guided_captions(decoder, scenes, units)
        for scene, captions, guide in zip(scenes, drawn, looked, strict=True):
            name = str(scene.seed)
            texts[""].counts[name] = text_counts(scene, captions.own)
            texts["flag"].counts[name] = unmarked_counts(scene, captions.own, captions.marked)
            texts["random"].counts[name] = text_counts(scene, captions.random)
            texts["best"].counts[name] = text_counts(scene, captions.best)
            texts["guide"].counts[name] = text_counts(scene, guide)
        tallies |= {row_of(method, way): tally for way, tally in texts.items()}
        ways[method] = decoder.caption
        ways |= {row_of(method, way): partial(decoder.caption, verify=way) for way in ("flag", "best", "guide")}
    compared = MethodFigures.of(tallies, text_figures, DENOMINATORS)
    seconds = caption_seconds(ways, scenes)
    return Looks(
        scenes=len(scenes),
        captions=lvlm.preset.best.captions,
        figures={name: dict(compared.figures(name)) for name in tallies},
        differences={name: dict(compared.differences(name, "greedy")) for name in tallies if name != "greedy"},
        cost=relative(seconds),
        timed=len(seconds["greedy"]),
    )


def relative(seconds: Mapping[str, Sequence[float]]) -> dict[str, Spread]:
    """Return times relative to greedy's of the same scene."""
    ratios = {}
    for name, row in seconds.items():
        ratios[name] = Spread.of([own / greedy for own, greedy in zip(row, seconds["greedy"], strict=True)])
    return ratios


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.looks", description="Measure second looks on drawn scenes.")
    parser.add_argument("--count", type=int, default=1_000, help="number of scenes")
    parser.add_argument("--split", choices=[*SEEDS], default="test", help="which scenes")
    parser.add_argument("--texts", type=Path, metavar="FILE.jsonl", help="keep every text here, to go on")
    parser.add_argument("--output", type=Path, default=FILE, metavar="FILE.json", help="the measurements")
    given = parser.parse_args()
    scenes = [held_out(seed) for seed in SEEDS[given.split][: given.count]]
    with closing(Units[list[str]](given.texts)) as units:
        units.begin({"scenes": "drawn"})
        found = measure(load("demo", method="greedy"), scenes, units)
    found.write(given.output)
    print(found.table())


if __name__ == "__main__":
    main()
