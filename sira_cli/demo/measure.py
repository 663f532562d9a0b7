"""Let decoders caption scenes that the model never saw, and answer questions about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from sira_cli.analysis.sweep.grid import batches
from sira_cli.analysis.sweep.units import Units
from sira_cli.demo.language import yes_no_question
from sira_cli.demo.questions import SPLITS, Questions, SceneQuestion, caption_counts
from sira_cli.demo.scene_report import SceneReport
from sira_cli.demo.scenes import Scene, render
from sira_cli.eval.stats.pope import add_answer
from sira_cli.eval.stats.tally import Tally
from sira_cli.methods import find
from sira_cli.models.loading import presets
from sira_cli.run.final_answers import FinalAnswers
from sira_cli.run.lvlm import Lvlm, load
from sira_cli.run.records import hash_of

BATCH = 50  # captions decoded together, and half of the answers
CAPTIONS = "captions"  # the group of captions, next to the splits of questions

Tallies = dict[str, dict[str, Tally]]  # by group and method


def load_methods(folder: Path = presets.BUNDLED_FOLDER) -> dict[str, Lvlm]:
    """Load the model in `folder` with the settings of the preset `demo`, once per decoder."""
    return {method: load_method(method, folder) for method in ("greedy", "sira")}


def load_method(method: str, folder: Path = presets.BUNDLED_FOLDER, **settings: Any) -> Lvlm:
    """Load the model in `folder` under one decoder, with the preset `demo`'s settings unless others are given."""
    preset = presets.find("demo")
    if folder != presets.BUNDLED_FOLDER:
        preset = preset.model_copy(update={"model": str(folder)})
    return load(preset, method=method, **settings)


def measure(
    methods: Mapping[str, Lvlm],
    scenes: Sequence[Scene],
    questions: Questions | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
    units: Units | None = None,
) -> SceneReport:
    """Compare decoders on the same scenes."""
    groups = (CAPTIONS, *(SPLITS if questions else ()))
    tallies: Tallies = {group: {name: Tally() for name in methods} for group in groups}
    kept, done = Units() if units is None else units, 0  # an empty one is falsy
    for batch in batches(scenes, BATCH):
        asked = {scene: questions.about(scene) if questions else [] for scene in batch}
        drawn: dict[Scene, Image.Image] = {}
        for name, lvlm in methods.items():
            names = {scene: unit(lvlm, scene, asked[scene]) for scene in batch}
            todo = [scene for scene in batch if names[scene] not in kept]
            drawn |= {scene: render(scene)[0] for scene in todo if scene not in drawn}
            pictures = [drawn[scene] for scene in todo]
            captions = _texts(lvlm, pictures, [lvlm.preset.prompts.caption] * len(todo))
            answers = _answers(lvlm, pictures, [asked[scene] for scene in todo])
            kept.add(
                {names[scene]: [caption, *texts] for scene, caption, texts in zip(todo, captions, answers, strict=True)}
            )
            for scene in batch:
                caption, *texts = kept[names[scene]]
                count(tallies, name, scene, caption, asked[scene], texts)
        done += len(batch)
        on_progress(done)
    return SceneReport.of(tallies, {name: _settings(lvlm) for name, lvlm in methods.items()})


def unit(lvlm: Lvlm, scene: Scene, questions: Sequence[SceneQuestion]) -> str:
    """Return a name for a model's texts about a scene: equal names mean equal texts."""
    method, preset = lvlm.decoder, lvlm.preset
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
    answers: Sequence[str],
) -> None:
    """Count one method's texts about one scene."""
    picture = str(scene.seed)
    tallies[CAPTIONS][method].counts[picture] = caption_counts(scene, caption)
    for number, (question, text) in enumerate(zip(questions, answers, strict=True)):
        for split in question.splits:
            add_answer(tallies[split][method], picture, f"{picture}/{number}", text, question.expected)


def _settings(lvlm: Lvlm) -> dict[str, Any]:
    if not lvlm.decoder.deciding:
        return {}
    return {"k": lvlm.k, "layers": lvlm.layers, "alpha": lvlm.alpha}


def _answers(lvlm: Lvlm, pictures: Sequence[Image.Image], asked: Sequence[Sequence[SceneQuestion]]) -> list[list[str]]:
    flat = [
        (picture, yes_no_question(question.name))
        for picture, questions in zip(pictures, asked, strict=True)
        for question in questions
    ]
    texts = [
        text
        for part in batches(flat, 2 * BATCH)
        for text in _texts(lvlm, [picture for picture, _ in part], [question for _, question in part], "ask")
    ]
    rest = iter(texts)
    return [[next(rest) for _ in questions] for questions in asked]


def _texts(lvlm: Lvlm, pictures: Sequence[Image.Image], prompts: Sequence[str], task: str = "caption") -> list[str]:
    """Decode texts together, or one by one if the method takes one at a time."""
    answering, texts = FinalAnswers(lvlm), list[str]()
    for numbers in batches(range(len(pictures)), BATCH * 2 if lvlm.batches else 1):
        inputs = lvlm.prepare([pictures[number] for number in numbers], [prompts[number] for number in numbers])
        texts += [answer.text for answer in answering.answer([], inputs, task=task)]
    return texts
