"""Labelled questions about validation scenes, with the places of their objects."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from sira_cli.analysis.calibration.questions import LabelledQuestions
from sira_cli.analysis.calibration.regions import Outline
from sira_cli.analysis.sweep.questions import Question
from sira_cli.demo.language import yes_no_question
from sira_cli.demo.questions import SPLITS, Questions, held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, Scene, scene_picture


def labelled_questions(limit: int) -> LabelledQuestions:
    """Return the first questions about validation scenes: yes and no alternate, and each no is from the next POPE
    split.
    """
    asked = [*islice(_asked(), limit)]
    scenes = {str(scene.seed): scene for scene, _, _ in asked}
    names = {(str(scene.seed), yes_no_question(name)): name for scene, name, _ in asked}
    questions = tuple(Question(str(scene.seed), yes_no_question(name), expected) for scene, name, expected in asked)

    def outlines(question: Question) -> list[Outline]:
        things = scenes[question.picture].objects[names[question.picture, question.text]]
        return [(x0, y0, x1, y0, x1, y1, x0, y1) for x0, y0, x1, y1 in (thing.box for thing in things)]

    seeds = [scene.seed for scene, _, _ in asked]
    made_from = {"scenes": f"{seeds[0]}-{seeds[-1]}"}
    return LabelledQuestions(
        (), questions, lambda name: scene_picture(scenes[name]), outlines=outlines, made_from=made_from
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
            names = [each.name for each in questions if not each.expected and split in each.splits]
            absent += [name for name in names if name not in absent][:1]
        for there, missing in zip(present, absent, strict=False):  # few scenes have fewer objects than splits
            yield scene, there, True
            yield scene, missing, False
