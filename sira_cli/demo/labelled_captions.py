"""Captions of validation scenes with a second look, and the ground truth."""

from __future__ import annotations

from collections.abc import Callable

from sira_cli.analysis.calibration.support import Caption, Source, SupportReport, labelled_by
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.models.look.second_look import SecondLook
from sira_cli.models.look.verify import Verify
from sira_cli.models.lvlm import Lvlm

BATCH = 25


def scene_report(
    lvlm: Lvlm, count: int, false_alarms: float, on_progress: Callable[[int], None] = lambda done: None
) -> SupportReport:
    """Find the line between supported and not on the first validation scenes, as the model captions them.

    Args:
        lvlm: the bundled model under the decoder whose captions are looked at.
        count: number of scenes.
        false_alarms: the allowed share of real objects below the line.
        on_progress: called with the number of scenes that are done.
    """
    look = SecondLook(lvlm)
    verify = Verify().settings(lvlm.preset)
    del verify["min_support"]
    scenes = {str(seed): held_out(seed) for seed in VALIDATION_SEEDS[:count]}
    captions: list[Caption] = []
    while len(captions) < count:
        batch = list(scenes)[len(captions) : len(captions) + BATCH]
        images = [render(scenes[name])[0] for name in batch]
        answers = lvlm.answer(lvlm.prepare(images, [lvlm.preset.prompts.caption] * len(batch)))
        for name, image, answer in zip(batch, images, answers, strict=True):
            claims = look.check(image, answer.text).objects
            captions.append(Caption(f"scene {name}", name, {claim.thing: claim.support for claim in claims}))
        on_progress(len(captions))
    labelled = labelled_by(captions, lambda caption: scenes[caption.file_name].objects)
    return SupportReport.of(
        Source(lvlm.preset.model, lvlm.revision, verify), count, labelled, false_alarms=false_alarms
    )
