"""Labelled questions and captions of validation scenes, for the calibrations of the bundled model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from sira_cli.analysis.calibration.support import Caption, Source, SupportReport, labelled_by
from sira_cli.analysis.calibration.vti import CaptionPair, CaptionPairs
from sira_cli.analysis.questions import Outline, Question, QuestionSet, corners
from sira_cli.demo.measure import with_texts
from sira_cli.demo.questions import SPLITS, Questions, caption, held_out, yes_no_question
from sira_cli.demo.scenes import VALIDATION_SEEDS, Scene, render, scene_picture
from sira_cli.look.claims import Verify
from sira_cli.look.second_look import SecondLook
from sira_cli.run.lvlm import Lvlm

BATCH = 25  # captions decoded together


def labelled_questions(limit: int) -> QuestionSet:
    """Return the first questions: yes and no alternate, and each no is from the next POPE split."""
    scenes: dict[str, Scene] = {}  # by picture
    names: dict[Question, str] = {}  # of the objects that are asked about
    for scene, name, expected in islice(_asked(), limit):
        picture = str(scene.seed)
        scenes[picture] = scene
        names[Question(picture, yes_no_question(name), expected)] = name

    def outlines(question: Question) -> list[Outline]:
        things = scenes[question.picture].objects[names[question]]
        return [corners(*thing.box) for thing in things]

    seeds = list(scenes)
    return QuestionSet(
        (),
        tuple(names),
        lambda name: scene_picture(scenes[name]),
        outlines=outlines,
        made_from={"scenes": f"{seeds[0]}-{seeds[-1]}"},
    )


def _asked() -> Iterator[tuple[Scene, str, bool]]:
    """Yield scenes, each with the name of an object and whether it is in the scene."""
    about = Questions().about
    for seed in VALIDATION_SEEDS:
        scene = held_out(seed)
        questions = about(scene)
        present = [question.name for question in questions if question.expected]
        absent: list[str] = []
        for split in SPLITS:
            for question in questions:
                if not question.expected and split in question.splits and question.name not in absent:
                    absent.append(question.name)
                    break
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
        present = list(scene.objects)
        absent = []
        for question in about(scene):
            if not question.expected and "adversarial" in question.splits:
                absent.append(question.name)
        rng = np.random.default_rng([seed, scene.broken, 5])
        wrong = int(rng.integers(1, 1 + min(len(absent), len(present))))
        replaced = rng.permutation(present)[:wrong].tolist()
        names = dict(zip(replaced, rng.permutation(absent)[:wrong].tolist(), strict=True))
        things = []
        for thing in scene.things:
            things.append(replace(thing, name=names.get(thing.name, thing.name)))
        truth = caption(scene, np.random.default_rng(seed))
        changed = caption(replace(scene, things=tuple(things)), np.random.default_rng(seed))
        pairs.append(CaptionPair(scene_picture(scene), prompt, truth, changed))
    return CaptionPairs(pairs, {"scenes": f"{seeds[0]}-{seeds[-1]}"})


def scene_report(lvlm: Lvlm, count: int, on_progress: Callable[[int], None] = lambda done: None) -> SupportReport:
    """Find the threshold of support on the model's captions of the first scenes."""
    look = SecondLook(lvlm)
    verify = Verify().settings(lvlm.preset)
    del verify["min_support"]
    scenes = {str(seed): held_out(seed) for seed in VALIDATION_SEEDS[:count]}
    captions: list[Caption] = []
    images = [render(scene)[0] for scene in scenes.values()]
    writer = lvlm.under(lvlm.decoder, lvlm.preset.without_text())
    results = with_texts(writer.caption_many(images, batch_size=BATCH))
    for name, image, result in zip(scenes, images, results, strict=True):
        support = {claim.thing: claim.support for claim in look.check(image, result.text).objects}
        captions.append(Caption(f"scene {name}", name, support))
        on_progress(len(captions))
    labelled = labelled_by(captions, {name: scene.objects for name, scene in scenes.items()})
    return SupportReport.of(Source(lvlm.preset.model, lvlm.revision, verify), "labels", labelled, count)
