"""Texts about scenes: captions, questions with answers, and the objects that a text mentions."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from sira_cli.demo.scenes import Scene, SceneObject, make_scene
from sira_cli.demo.world import COLORS, OBJECTS, PLACES
from sira_cli.eval.base import ONE_WORD

CAPTION_PROMPTS = (
    "Please describe this image in detail.",
    "Describe this image.",
    "Please help me describe the image in detail.",
    "What is in this picture?",
    "Write a caption for this image.",
)

YES_NO = (
    "Is there {a} {name} in the image?",
    "Is there {a} {name} in this picture?",
    "Does the image show {a} {name}?",
    "Can you see {a} {name}?",
    "Is there {a} {name}?",
)
COLOR = ("What color is the {name}?", "What is the color of the {name}?", "Which color does the {name} have?")
COUNT = ("How many {names} are there?", "How many {names} are in the image?", "How many {names} can you see?")
WHERE = ("Where is the {name}?", "Where can you see the {name}?", "In which part of the image is the {name}?")
PLACE = ("What place is this?", "Where was this picture taken?", "What kind of place does the image show?")

TYPICAL_SHARE = 0.15  # share of questions about absent objects that ask for a typical object of the place
NUMBERS = ("no", "one", "two", "three")
_OPENINGS = (
    "The image shows {a} {place}.",
    "This is a picture of {a} {place}.",
    "The picture was taken in {a} {place}.",
)


@dataclass(frozen=True)
class Exchange:
    """A question or request, and the answer to it."""

    prompt: str
    answer: str


def caption(scene: Scene, rng: np.random.Generator) -> str:
    """Write two to five sentences that name every kind of object, the most conspicuous first."""
    groups = sorted(scene.objects.values(), key=_salience, reverse=True)
    sentences = [_choose(rng, _OPENINGS).format(a=article(scene.place), place=scene.place)]
    while groups:
        fewest = 2 if len(groups) > 4 - (len(sentences) - 1) else 1  # five sentences at most
        size = min(len(groups), int(rng.integers(fewest, 3)))
        sentences.append(_sentence([groups.pop(0) for _ in range(size)], rng))
    return " ".join(sentences)


def questions(
    scene: Scene, rng: np.random.Generator, yes_no: int = 6, others: int = 4, unasked: Collection[str] = ()
) -> list[Exchange]:
    """Ask `yes_no` questions whether something is in the scene, as often yes as no, and at most `others` other ones.

    The others ask for a colour, a number, a position and the kind of place: one of each. No yes/no question is about an
    object of `unasked`; a scene with only such objects gets no question with answer yes.
    """
    present = [name for name in scene.objects if name not in unasked]
    absent = [name for name in OBJECTS if name not in scene.objects and name not in unasked]
    typical = [name for name in PLACES[scene.place].objects if name in absent]
    turns = []
    for number in range(yes_no):
        missing = typical if typical and rng.random() < TYPICAL_SHARE else absent
        if number % 2 and not present:
            continue
        name = _choose(rng, present if number % 2 else missing)
        suffix = ONE_WORD if rng.random() < 0.3 else ""
        turns.append(Exchange(yes_no_question(name, _choose(rng, YES_NO)) + suffix, "Yes" if number % 2 else "No"))
    return turns + _other_questions(scene, rng)[:others]


def _other_questions(scene: Scene, rng: np.random.Generator) -> list[Exchange]:
    """Ask one question of each other kind, shuffled."""
    present = list(scene.objects)
    name = _choose(rng, present)
    turns = [Exchange(_choose(rng, COLOR).format(name=name), scene.objects[name][0].color.capitalize())]
    name = _choose(rng, present if rng.random() < 0.85 else [name for name in OBJECTS if name not in present])
    amount = NUMBERS[len(scene.objects.get(name, ()))]
    turns.append(Exchange(_choose(rng, COUNT).format(names=OBJECTS[name].plural), amount.capitalize()))
    single = [name for name, things in scene.objects.items() if len(things) == 1]
    if single:
        name = _choose(rng, single)
        turns.append(Exchange(_choose(rng, WHERE).format(name=name), _place(scene.objects[name][0]).capitalize() + "."))
    turns.append(Exchange(_choose(rng, PLACE), f"{article(scene.place).capitalize()} {scene.place}."))
    return [turns[index] for index in rng.permutation(len(turns))]


def yes_no_question(name: str, template: str = YES_NO[0]) -> str:
    """Return POPE's question about an object, or another one by a template."""
    return template.format(a=article(name), name=name)


def article(noun: str) -> str:
    """Return `a` or `an`."""
    return "an" if noun[0] in "aeiou" else "a"


def mentions(text: str) -> list[tuple[int, int, str]]:
    """Find every mention of an object in a text: start, end and the object's name.

    Singular, plural and synonyms count: whole words, the longest match first, ignoring case.
    """
    return [(match.start(), match.end(), _LEXICON[match[0].lower()]) for match in _MENTION.finditer(text)]


def corpus(seed: int, size: int) -> list[str]:
    """Return texts to train a tokenizer on, with every word of the world."""
    texts = [*CAPTION_PROMPTS, ONE_WORD, *COLORS, *NUMBERS, *PLACES, *_LEXICON]
    for name in OBJECTS:
        texts += [yes_no_question(name, template) for template in YES_NO]
    for index in range(size):
        rng = np.random.default_rng([seed, index, 2])
        scene = make_scene(index)
        texts += [caption(scene, rng), *(f"{turn.prompt} {turn.answer}" for turn in questions(scene, rng))]
    return texts


def _salience(things: list[SceneObject]) -> float:
    return sum(t.strength * (t.box[2] - t.box[0]) * (t.box[3] - t.box[1]) for t in things)


def _sentence(groups: list[list[SceneObject]], rng: np.random.Generator) -> str:
    """Return a sentence that names groups of objects.

    Every sentence about objects begins with There, so that one choice between two tokens decides whether the text ends.
    With many openings, each would be less probable than the end, and greedy decoding would stop early. For the same
    reason a name precedes its colour: one token decides the object.
    """
    verb = "are" if len(groups[0]) > 1 else "is"
    also = "also " if rng.random() < 0.25 else ""
    phrases = [f"{_noun_phrase(things)} {_place(things[0]) if len(things) == 1 else ''}".strip() for things in groups]
    color = f", which {verb} {groups[0][0].color}" if len(groups) == 1 else ""
    return f"There {verb} {also}{' and '.join(phrases)}{color}."


def _noun_phrase(things: list[SceneObject]) -> str:
    name = things[0].name
    return f"{article(name)} {name}" if len(things) == 1 else f"{NUMBERS[len(things)]} {OBJECTS[name].plural}"


def _place(thing: SceneObject) -> str:
    return "in the middle" if thing.where == "middle" else f"on the {thing.where}"


def _choose(rng: np.random.Generator, among: tuple[str, ...] | list[str]) -> str:
    return among[int(rng.integers(len(among)))]


_LEXICON = {
    word: name
    for name, kind in OBJECTS.items()
    for base in (name, *kind.synonyms)
    for word in (base, kind.plural if base == name else f"{base}s")
}
_MENTION = re.compile(rf"\b({'|'.join(sorted(_LEXICON, key=len, reverse=True))})\b", re.IGNORECASE)
