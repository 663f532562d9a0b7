"""Labelled questions and captions of validation scenes, for the calibrations of the bundled model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from sira_cli.analysis.calibration.support import Caption, Source, SupportReport, labelled_by
from sira_cli.analysis.calibration.vti import CaptionPair, CaptionPairs
from sira_cli.analysis.questions import Outline, Question, QuestionSet
from sira_cli.demo.measure import batches
from sira_cli.demo.questions import SPLITS, Questions, caption, held_out, yes_no_question
from sira_cli.demo.scenes import VALIDATION_SEEDS, Scene, render, scene_picture
from sira_cli.look.claims import Verify
from sira_cli.look.second_look import SecondLook
from sira_cli.run.lvlm import Lvlm

BATCH = 25  # captions decoded together


def labelled_questions(limit: int) -> QuestionSet:
    """Return the first questions: yes and no alternate, and each no is from the next POPE split."""
    asked = [*islice(_asked(), limit)]
    scenes = {str(scene.seed): scene for scene, _, _ in asked}
    names = {(str(scene.seed), yes_no_question(name)): name for scene, name, _ in asked}
    questions = tuple(Question(str(scene.seed), yes_no_question(name), expected) for scene, name, expected in asked)

    def outlines(question: Question) -> list[Outline]:
        things = scenes[question.picture].objects[names[question.picture, question.text]]
        return [(x0, y0, x1, y0, x1, y1, x0, y1) for x0, y0, x1, y1 in (thing.box for thing in things)]

    made_from = {"scenes": f"{asked[0][0].seed}-{asked[-1][0].seed}"}
    return QuestionSet((), questions, lambda name: scene_picture(scenes[name]), outlines=outlines, made_from=made_from)


def _asked() -> Iterator[tuple[Scene, str, bool]]:
    """Yield scenes, each with the name of an object and whether it is in the scene."""
    about = Questions().about
    for seed in VALIDATION_SEEDS:
        scene = held_out(seed)
        questions = about(scene)
        present = [question.name for question in questions if question.expected]
        absent: list[str] = []
        for split in SPLITS:
            names = [each.name for each in questions if not each.expected and split in each.splits]
            absent += [name for name in names if name not in absent][:1]
        for there, missing in zip(present, absent, strict=False):  # few scenes have fewer objects than splits
            yield scene, there, True
            yield scene, missing, False


def caption_pairs(prompt: str, count: int) -> CaptionPairs:
    """Return the first scenes, each with its true caption and one that differs in the names of 1 to 3 kinds of objects.

    The names in their place are those of absent kinds that most often occur with the scene's.
    """
    about = Questions().about
    seeds = VALIDATION_SEEDS[:count]
    pairs = []
    for seed in seeds:
        scene = held_out(seed)
        absent = [each.name for each in about(scene) if not each.expected and "adversarial" in each.splits]
        rng = np.random.default_rng([seed, scene.broken, 5])
        wrong = int(rng.integers(1, 1 + min(len(absent), len(scene.objects))))
        present = rng.permutation(list(scene.objects))[:wrong].tolist()
        renamed = dict(zip(present, rng.permutation(absent)[:wrong].tolist(), strict=True))
        things = tuple(replace(thing, name=renamed.get(thing.name, thing.name)) for thing in scene.things)
        texts = [caption(each, np.random.default_rng(seed)) for each in (scene, replace(scene, things=things))]
        pairs.append(CaptionPair(scene_picture(scene), prompt, *texts))
    return CaptionPairs(pairs, {"scenes": f"{seeds[0]}-{seeds[-1]}"})


def scene_report(lvlm: Lvlm, count: int, on_progress: Callable[[int], None] = lambda done: None) -> SupportReport:
    """Find the threshold of support on the model's captions of the first scenes."""
    look = SecondLook(lvlm)
    verify = Verify().settings(lvlm.preset)
    del verify["min_support"]
    scenes = {str(seed): held_out(seed) for seed in VALIDATION_SEEDS[:count]}
    captions: list[Caption] = []
    for batch in batches(list(scenes.values()), BATCH):
        images = [render(scene)[0] for scene in batch]
        answers = lvlm.answer(lvlm.prepare(images, [lvlm.preset.prompts.caption] * len(batch)))
        for scene, image, answer in zip(batch, images, answers, strict=True):
            claims, name = look.check(image, answer.text).objects, str(scene.seed)
            captions.append(Caption(f"scene {name}", name, {claim.thing: claim.support for claim in claims}))
            on_progress(len(captions))
    labelled = labelled_by(captions, {name: scene.objects for name, scene in scenes.items()})
    return SupportReport.of(Source(lvlm.preset.model, lvlm.revision, verify), "labels", labelled, count)
