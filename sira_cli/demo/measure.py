"""Decoders on drawn scenes that the model never saw: captions, answers, their figures and tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image
from pydantic import TypeAdapter

from sira_cli.analysis.experiment import Units
from sira_cli.demo.questions import SPLITS, Questions, SceneQuestion, caption_counts, yes_no_question
from sira_cli.demo.scenes import Scene, render
from sira_cli.errors import PictureError
from sira_cli.eval.figures import compared, count_answer, named_figures
from sira_cli.eval.statistics import Counts, Figure, Tally
from sira_cli.methods import find
from sira_cli.pictures.sources import as_picture
from sira_cli.run.items import batches
from sira_cli.run.lvlm import Lvlm, load
from sira_cli.run.records import Result, hash_of
from sira_cli.run.task import TASKS

FIGURES = Path(__file__).with_name("figures.json")  # not in the folder of the checkpoint, whose files make its revision
BATCH = 50  # captions decoded together, and half of the answers
CAPTIONS = "captions"  # the group of captions, next to the splits of questions
CAPTION_FIGURES = ("CHAIRs", "CHAIRi", "coverage", "words")
CHECKED = ("instances", "broken", "right")  # of captions; only `tools` measures them
MAIN_FIGURES = (*CAPTION_FIGURES, *(f"{split} accuracy" for split in SPLITS))

Tallies = Mapping[str, Mapping[str, Tally]]  # by group and method


def load_methods() -> dict[str, Lvlm]:
    """Load the bundled model once per decoder."""
    return {method: load("demo", method=method) for method in ("greedy", "sira")}


def measure(
    methods: Mapping[str, Lvlm],
    scenes: Sequence[Scene],
    questions: Questions | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
    units: Units[list[str]] | None = None,
) -> SceneReport:
    """Compare decoders on the same scenes; `units` keeps finished texts."""
    groups = (CAPTIONS, *(SPLITS if questions else ()))
    tallies: Tallies = {group: {name: Tally() for name in methods} for group in groups}
    units = Units[list[str]]() if units is None else units  # an empty one is falsy
    done = 0
    for batch in batches(scenes, BATCH):
        asked = {scene: questions.about(scene) if questions else [] for scene in batch}
        for name, lvlm in methods.items():
            names = {scene: unit(lvlm, scene, asked[scene]) for scene in batch}
            missing = [scene for scene in batch if names[scene] not in units]
            texts = scene_texts(lvlm, missing, asked)
            units.add({names[scene]: texts[scene] for scene in missing})
            for scene in batch:
                caption, *answers = units[names[scene]]
                count(tallies, name, scene, caption, asked[scene], answers)
        done += len(batch)
        on_progress(done)
    settings: dict[str, dict[str, Any]] = {}
    for name, lvlm in methods.items():
        settings[name] = {}
        if lvlm.decoder.deciding:
            settings[name] = {"k": lvlm.k, "layers": lvlm.layers, "alpha": lvlm.alpha}
    return SceneReport.of(tallies, settings)


@lru_cache(BATCH)  # of a batch, for all methods
def _drawn(scene: Scene) -> Image.Image:
    return render(scene)[0]


def scene_texts(
    lvlm: Lvlm, scenes: Sequence[Scene], asked: Mapping[Scene, Sequence[SceneQuestion]]
) -> dict[Scene, list[str]]:
    """Return the caption of each scene, followed by the answers to what is asked about it."""
    pictures = [_drawn(scene) for scene in scenes]
    captions = texts_of(lvlm, pictures, [lvlm.preset.prompts.caption] * len(scenes))
    shown = []
    prompts = []
    for scene, picture in zip(scenes, pictures, strict=True):
        for question in asked[scene]:
            shown.append(picture)
            prompts.append(yes_no_question(question.name))
    answers = iter(texts_of(lvlm, shown, prompts, "ask"))
    texts = {}
    for scene, caption in zip(scenes, captions, strict=True):
        texts[scene] = [caption, *islice(answers, len(asked[scene]))]
    return texts


def unit(lvlm: Lvlm, scene: Scene, questions: Sequence[SceneQuestion]) -> str:
    """Return a name for a model's texts about a scene: equal names mean equal texts."""
    method = lvlm.decoder
    preset = lvlm.preset
    if lvlm.method == "greedy+apc" and preset.generation.temperature == 0 and preset.generation.num_beams == 1:
        method = find("greedy")  # from which it cannot differ
    work = hash_of(
        method=method.name,
        caption=method.decisive(preset.decisive(), "caption"),
        ask=method.decisive(preset.decisive(), "ask"),
        prompts=preset.prompts.model_dump(),
        revision=lvlm.revision,
        precision=[lvlm.dtype, lvlm.quantization],
        questions=[question.name for question in questions],
    )
    return f"{method.name} about scene {scene.seed}: {work[:16]}"


def count(
    tallies: Tallies,
    method: str,
    scene: Scene,
    caption: str,
    questions: Sequence[SceneQuestion],
    answers: list[str],
) -> None:
    """Count one method's texts about one scene."""
    picture = str(scene.seed)
    tallies[CAPTIONS][method].counts[picture] = caption_counts(scene, caption)
    for number, (question, text) in enumerate(zip(questions, answers, strict=True)):
        for split in question.splits:
            tallies[split][method].add(picture, f"{picture}/{number}", *count_answer(text, question.expected))


def texts_of(lvlm: Lvlm, pictures: Sequence[Image.Image], prompts: Sequence[str], task: str = "caption") -> list[str]:
    """Decode texts together, or one by one if the method takes one at a time."""
    asked = [as_picture(picture).known(prompt=prompt) for picture, prompt in zip(pictures, prompts, strict=True)]
    work = TASKS[task].of(lvlm.preset, lvlm.decoder, own_prompts=True)
    return [result.text for result in with_texts(lvlm.results(work, asked, BATCH * 2))]


def with_texts(results: Iterable[Result]) -> Iterator[Result]:
    """Yield results about scenes; a text that ends inside a thought is empty.

    Raises:
        PictureError: nothing was decoded about one of them.
    """
    for result in results:
        if result.status != "ok" and not result.output_tokens:
            raise PictureError(result.error)
        yield result


@dataclass(frozen=True)
class SceneReport:
    """The figures of decoders on drawn scenes, with 95 % intervals over scenes; differences are paired."""

    scenes: int
    settings: dict[str, dict[str, Any]]  # by method, those that decide the outcome: k, alpha, ...
    figures: dict[str, dict[str, Figure]]  # by method; `mean accuracy` and the like are means over the splits
    differences: dict[str, dict[str, Figure]]  # by method except the first, each figure minus the first method's
    outcomes: dict[str, dict[str, int]]  # likewise, the captions with `fewer`, `more`, `as many` absent objects

    @classmethod
    def of(cls, tallies: Tallies, settings: dict[str, dict[str, Any]]) -> SceneReport:
        """Make the report of tallies by group and method, over the same scenes."""
        splits = dict(tallies)
        captions = splits.pop(CAPTIONS)
        groups = compared(captions, splits)
        first, *others = captions
        return cls(
            scenes=len(captions[first].counts),
            settings=settings,
            figures={method: named_figures(groups, method) for method in captions},
            differences={method: named_figures(groups, method, first) for method in others},
            outcomes={method: outcomes(captions[first].counts, captions[method].counts) for method in others},
        )

    @classmethod
    def shipped(cls) -> SceneReport:
        """Return the measurements on the test scenes from the making of the bundled model."""
        return cls.from_json(read_figures())

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> SceneReport:
        """Make a report from the JSON of its `dataclasses.asdict`."""
        return TypeAdapter(cls).validate_python(content)

    def captions_table(self) -> str:
        """Return CHAIRs, CHAIRi (lower is better), coverage, length and what `tools` checked, in Markdown."""
        return self.table((*CAPTION_FIGURES, *CHECKED))

    def table(self, names: Sequence[str] = MAIN_FIGURES) -> str:
        """Return some figures in Markdown; by default those of captions, and the accuracy in each split."""
        return markdown([["", *names], *self.rows(names)])

    def outcomes_line(self) -> str:
        """State in how many captions each method names fewer, more or as many absent objects as the first."""
        first = next(iter(self.figures))
        lines = []
        for method, counts in self.outcomes.items():
            lines.append(
                f"Compared with {first}'s, {method}'s captions name fewer absent objects in {counts['fewer']} of "
                f"{self.scenes:,} scenes, more in {counts['more']}, as many in {counts['as many']}."
            )
        return "\n".join(lines)

    def rows(self, names: Sequence[str]) -> list[list[str]]:
        """Return the cells of some figures: a row per method, then one per difference."""
        first = next(iter(self.figures))
        rows = []
        for method, figures in self.figures.items():
            rows.append([method, *(f"{figures[name]}" for name in names)])
        for method, changes in self.differences.items():
            rows.append([f"{method} - {first}", *(f"{changes[name]:+}" for name in names)])
        return rows


def read_figures() -> dict[str, Any]:
    """Return the measurements of the bundled model: a report as JSON, and `words`."""
    figures: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return figures


def outcomes(first: Mapping[str, Counts], other: Mapping[str, Counts]) -> dict[str, int]:
    """Count the captions in which the other method names fewer, more or as many absent objects."""
    captions = {"fewer": 0, "more": 0, "as many": 0}
    for picture, counts in first.items():
        change = other[picture]["hallucinated mentions"] - counts["hallucinated mentions"]
        if change < 0:
            captions["fewer"] += 1
        elif change > 0:
            captions["more"] += 1
        else:
            captions["as many"] += 1
    return captions


def markdown(rows: list[list[str]]) -> str:
    """Return a Markdown table with columns of even width; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = map(str.ljust, row, widths)
        lines.append(f"| {' | '.join(cells)} |")
    rule = "|".join("-" * (width + 2) for width in widths)
    lines.insert(1, f"|{rule}|")
    return "\n".join(lines)
