"""Texts about drawn scenes: captions, the objects that a text mentions, and POPE-style questions in its three splits.

In every second held-out scene co-occurrence is broken: the objects are not typical of the place.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sira_cli.analysis.questions import Question, QuestionSet
from sira_cli.demo.scenes import (
    OBJECTS,
    PLACES,
    TRAINING_SEEDS,
    VALIDATION_SEEDS,
    Scene,
    SceneObject,
    make_scene,
    scene_picture,
)
from sira_cli.eval.figures import mention_counts
from sira_cli.eval.statistics import Counts
from sira_cli.pictures.picture import Picture

Split = Literal["random", "popular", "adversarial"]
SPLITS: tuple[Split, ...] = ("random", "popular", "adversarial")
PER_ANSWER = 3  # questions about present objects, and per split about absent ones
SWEPT = 200  # validation scenes in a sweep, unless a limit is given
NUMBERS = ("no", "one", "two", "three")
OPENINGS = (
    "The image shows {a} {place}.",
    "This is a picture of {a} {place}.",
    "The picture was taken {preposition} {a} {place}.",
)


def caption(scene: Scene, rng: np.random.Generator) -> str:
    """Write two to five sentences that name every kind of object, in the order of `kinds_in_order`."""
    groups = [scene.objects[name] for name in kinds_in_order(scene)]
    opening = choose(rng, OPENINGS)
    preposition = PLACES[scene.place].preposition
    sentences = [opening.format(preposition=preposition, a=article(scene.place), place=scene.place)]
    while groups:
        sentences_left = 5 - len(sentences)
        fewest = 2 if len(groups) > sentences_left else 1
        size = min(len(groups), int(rng.integers(fewest, 3)))
        sentences.append(_sentence(groups[:size], rng))
        groups = groups[size:]
    return " ".join(sentences)


def kinds_in_order(scene: Scene) -> list[str]:
    """Return the kinds of objects in a scene, in the world's order: one that is the same for all scenes.

    So a text that goes on says nothing twice. A small model that may name objects in any order does not learn it.
    """
    return [name for name in OBJECTS if name in scene.objects]


def contents(scene: Scene) -> str:
    """Return the kinds of objects in a scene with their numbers: `bus, 2 cars`."""
    names = []
    for name, things in sorted(scene.objects.items()):
        names.append(name if len(things) == 1 else f"{len(things)} {OBJECTS[name].plural}")
    return ", ".join(names)


def yes_no_question(name: str, template: str = "Is there {a} {name} in the image?") -> str:
    """Return POPE's question about an object, or another one by a template."""
    return template.format(a=article(name), name=name)


def article(noun: str) -> str:
    """Return `a` or `an`."""
    return "an" if noun[0] in "aeiou" else "a"


def mentions(text: str) -> list[tuple[int, int, str]]:
    """Find each mention of an object, by any of its names, as a whole word: start, end and the object's name."""
    return [(*match.span(), LEXICON[match[0].lower()]) for match in _MENTION.finditer(text)]


def _sentence(groups: list[list[SceneObject]], rng: np.random.Generator) -> str:
    """Return a sentence that names groups of objects.

    All begin with There is, so that one choice between two tokens decides whether the text ends: many openings would
    each be less probable than the end. For the same reason a name precedes its number and its colour: one token decides
    the object.
    """
    first = groups[0]
    also = "also " if rng.random() < 0.25 else ""
    verb = "are" if len(first) > 1 else "is"
    color = f", which {verb} {first[0].color}" if len(groups) == 1 else ""
    phrases = list(map(_phrase, groups))
    joint = ", and " if "," in phrases[0] else " and "
    return f"There is {also}{joint.join(phrases)}{color}."


def _phrase(things: list[SceneObject]) -> str:
    """Return a phrase for the objects of a kind: `a car`, or `a car, one of two`."""
    name = things[0].name
    number = f", one of {NUMBERS[len(things)]}" if len(things) > 1 else ""
    return f"{article(name)} {name}{number}"


def choose(rng: np.random.Generator, among: Sequence[str]) -> str:
    """Draw one of some texts."""
    return among[int(rng.integers(len(among)))]


def _lexicon() -> dict[str, str]:
    """Return the object of each word, singular or plural."""
    lexicon = {}
    for name, kind in OBJECTS.items():
        for word in (name, kind.plural):
            lexicon[word] = name
        for synonym in kind.synonyms:
            lexicon[synonym] = name
            lexicon[f"{synonym}s"] = name
    return lexicon


LEXICON = _lexicon()
_MENTION = re.compile(rf"\b({'|'.join(sorted(LEXICON, key=len, reverse=True))})\b", re.IGNORECASE)


@dataclass(frozen=True)
class SceneQuestion:
    """POPE's question about one object."""

    name: str
    expected: bool  # whether it is in the picture
    splits: tuple[Split, ...]  # splits that the question belongs to


class Questions:
    """POPE's three splits (Li et al. 2023, Section 5.1), with co-occurrence as it is in training.

    For every scene: PER_ANSWER present objects and, in each split, as many absent ones: any, the most frequent ones, or
    those that most often occur with the picture's objects, its place included.
    """

    def __init__(self, sample: int = 2_000) -> None:
        self._frequency, self._company = _co_occurrence(sample)

    def about(self, scene: Scene) -> list[SceneQuestion]:
        """Return the questions about one scene, each once: questions with the answer yes first."""
        rng = np.random.default_rng([scene.seed, scene.broken, 3])
        present = rng.permutation(list(scene.objects)).tolist()
        absent = rng.permutation([name for name in OBJECTS if name not in scene.objects]).tolist()
        ranked: dict[Split, list[str]] = {
            "random": absent,
            "popular": sorted(absent, key=lambda name: -self._frequency[name]),
            "adversarial": sorted(absent, key=lambda name: -self._affinity(name, scene)),
        }
        splits: dict[str, list[Split]] = {}
        for split, names in ranked.items():
            for name in names[:PER_ANSWER]:
                splits.setdefault(name, []).append(split)
        questions = [SceneQuestion(name, True, SPLITS) for name in present[:PER_ANSWER]]
        for name, belongs_to in splits.items():
            questions.append(SceneQuestion(name, False, tuple(belongs_to)))
        return questions

    def _affinity(self, name: str, scene: Scene) -> float:
        """Return how often an object is among those of the scene's place, and of its objects."""
        affinity = 0.0
        for context in (scene.place, *scene.objects):
            if context in self._company:
                company = self._company[context]
                affinity += company[name] / company.total()
        return affinity


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
    questions = []
    for picture, scene in scenes.items():
        for question in about(scene):
            text = yes_no_question(question.name)
            questions.append(Question(picture, text, question.expected, question.splits))
    return QuestionSet(
        SPLITS,
        tuple(questions),
        picture_of=lambda name: scene_picture(scenes[name]),
        count_caption=lambda picture, caption: caption_counts(scenes[picture], caption),
    )


@functools.cache
def _co_occurrence(sample: int) -> tuple[Counter[str], dict[str, Counter[str]]]:
    """Count objects in training scenes, and co-occurrences with a place or another object."""
    frequency: Counter[str] = Counter()
    company: dict[str, Counter[str]] = {}
    for seed in TRAINING_SEEDS[:sample]:
        scene = make_scene(seed)
        names = list(scene.objects)
        frequency.update(names)
        for context in (scene.place, *names):
            company.setdefault(context, Counter()).update(names)
    return frequency, company
