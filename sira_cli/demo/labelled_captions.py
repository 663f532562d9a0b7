"""Captions of validation scenes with a second look, and the ground truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from PIL import Image

from sira_cli.analysis.calibration.support import Caption, Source, SupportReport, labelled_by
from sira_cli.analysis.sweep.grid import batches
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, Scene, render, scene_picture
from sira_cli.models.look.second_look import SecondLook
from sira_cli.models.look.verify import Verify
from sira_cli.pictures.picture import Picture
from sira_cli.run.lvlm import Lvlm

BATCH = 25


def scene_report(lvlm: Lvlm, count: int, on_progress: Callable[[int], None] = lambda done: None) -> SupportReport:
    """Find the threshold of support on the model's captions of the first validation scenes."""
    look = SecondLook(lvlm)
    verify = Verify().settings(lvlm.preset)
    del verify["min_support"]
    scenes = {str(seed): held_out(seed) for seed in VALIDATION_SEEDS[:count]}
    captions: list[Caption] = []
    for scene, image, text in described(lvlm, list(scenes.values())):
        claims, name = look.check(image, text).objects, str(scene.seed)
        captions.append(Caption(f"scene {name}", name, {claim.thing: claim.support for claim in claims}))
        on_progress(len(captions))
    labelled = labelled_by(captions, lambda caption: scenes[caption.file_name].objects)
    return SupportReport.of(Source(lvlm.preset.model, lvlm.revision, verify), count, labelled)


def captioned_scenes(lvlm: Lvlm, count: int, on_progress: Callable[[int], None] = lambda done: None) -> list[Picture]:
    """Return the first validation scenes as pictures with the model's captions; arguments as for `scene_report`."""
    found: list[Picture] = []
    for scene, _, text in described(lvlm, [held_out(seed) for seed in VALIDATION_SEEDS[:count]]):
        found.append(replace(scene_picture(scene), caption=text))
        on_progress(len(found))
    return found


def described(lvlm: Lvlm, scenes: Sequence[Scene]) -> Iterator[tuple[Scene, Image.Image, str]]:
    """Yield scenes, each with its picture and the model's caption."""
    for batch in batches(scenes, BATCH):
        images = [render(scene)[0] for scene in batch]
        answers = lvlm.answer(lvlm.prepare(images, [lvlm.preset.prompts.caption] * len(batch)))
        yield from ((scene, image, answer.text) for scene, image, answer in zip(batch, images, answers, strict=True))
