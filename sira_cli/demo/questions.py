"""POPE-style questions about drawn scenes, in its three splits, and the scenes that no model was trained on.

In every second scene co-occurrence is broken: the objects are not typical of the place.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sira_cli.analysis.sweep.questions import Question, QuestionSet
from sira_cli.demo.language import mentions, yes_no_question
from sira_cli.demo.scenes import (
    TRAINING_SEEDS,
    VALIDATION_SEEDS,
    Scene,
    make_scene,
    scene_picture,
)
from sira_cli.demo.world import OBJECTS
from sira_cli.eval.stats.chair import mention_counts
from sira_cli.eval.stats.tally import Counts
from sira_cli.pictures.picture import Picture

Split = Literal["random", "popular", "adversarial"]
SPLITS: tuple[Split, ...] = ("random", "popular", "adversarial")
PER_ANSWER = 3  # questions about present objects, and per split about absent ones
SWEPT = 200  # validation scenes in a sweep, unless a limit is given


@dataclass(frozen=True)
class SceneQuestion:
    """POPE's question about one object.

    Attributes:
        name: name of the object.
        expected: whether it is in the picture.
        splits: splits that the question belongs to.
    """

    name: str
    expected: bool
    splits: tuple[Split, ...]


class Questions:
    """POPE's three splits (Li et al. 2023, Section 5.1), with co-occurrence as it is in training.

    For every scene: PER_ANSWER present objects and, in each split, as many absent ones: `random`: any;
    `popular`: the most frequent ones; `adversarial`: those that most often occur with the picture's objects, its place
    included.
    """

    def __init__(self, sample: int = 2_000) -> None:
        self._frequency, self._together = _co_occurrence(sample)

    def about(self, scene: Scene) -> list[SceneQuestion]:
        """Return the questions about one scene, each once: questions with the answer yes first."""
        rng = np.random.default_rng([scene.seed, scene.broken, 3])
        present = [str(name) for name in rng.permutation(list(scene.objects))]
        absent = [str(name) for name in rng.permutation([name for name in OBJECTS if name not in scene.objects])]
        ranked: dict[Split, list[str]] = {
            "random": absent,
            "popular": sorted(absent, key=lambda name: -self._frequency[name]),
            "adversarial": sorted(absent, key=lambda name: -self._affinity(name, scene)),
        }
        splits: dict[str, list[Split]] = {}
        for split, names in ranked.items():
            for name in names[:PER_ANSWER]:
                splits.setdefault(name, []).append(split)
        return [SceneQuestion(name, True, SPLITS) for name in present[:PER_ANSWER]] + [
            SceneQuestion(name, False, tuple(chosen)) for name, chosen in splits.items()
        ]

    def _affinity(self, name: str, scene: Scene) -> float:
        contexts = [self._together[context] for context in (scene.place, *scene.objects) if context in self._together]
        return sum(together[name] / together.total() for together in contexts)


def held_out(seed: int) -> Scene:
    """Return the scene of a seed, with broken co-occurrence if the seed is odd."""
    return make_scene(seed, broken=seed % 2 == 1)


def hallucinated(scene: Scene, text: str) -> list[tuple[int, int]]:
    """Return start and end of every mention of an absent object."""
    return [(start, end) for start, end, name in mentions(text) if name not in scene.objects]


def caption_counts(scene: Scene, caption: str) -> Counts:
    """Count the mentions in a scene's caption, and its words."""
    named = [name for _, _, name in mentions(caption)]
    return mention_counts(named, list(scene.objects)) | {"words": len(caption.split())}


def validation_pictures() -> Iterator[Picture]:
    """Yield the validation scenes as pictures, which are drawn when they are opened."""
    return (scene_picture(held_out(seed)) for seed in VALIDATION_SEEDS)


def validation_questions(limit: int | None = None) -> QuestionSet:
    """Return the questions about the first validation scenes, for a sweep."""
    scenes = {str(seed): held_out(seed) for seed in VALIDATION_SEEDS[: limit or SWEPT]}
    about = Questions().about
    questions = (
        Question(picture, yes_no_question(question.name), question.expected, question.splits)
        for picture, scene in scenes.items()
        for question in about(scene)
    )
    return QuestionSet(
        SPLITS,
        tuple(questions),
        picture=lambda name: scene_picture(scenes[name]),
        count_caption=lambda picture, caption: caption_counts(scenes[picture], caption),
    )


@functools.cache
def _co_occurrence(sample: int) -> tuple[Counter[str], dict[str, Counter[str]]]:
    """Count objects in training scenes, and co-occurrences with a place or another object."""
    frequency: Counter[str] = Counter()
    together: dict[str, Counter[str]] = {}
    for seed in TRAINING_SEEDS[:sample]:
        scene = make_scene(seed)
        names = list(scene.objects)
        frequency.update(names)
        for context in (scene.place, *names):
            together.setdefault(context, Counter()).update(names)
    return frequency, together
