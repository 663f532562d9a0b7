"""Texts about scenes: captions, questions, and the objects that a text mentions."""

from __future__ import annotations

import re

import numpy as np

from sira_cli.demo.scenes import Scene, SceneObject
from sira_cli.demo.world import OBJECTS

NUMBERS = ("no", "one", "two", "three")
_OPENINGS = (
    "The image shows {a} {place}.",
    "This is a picture of {a} {place}.",
    "The picture was taken in {a} {place}.",
)


def caption(scene: Scene, rng: np.random.Generator) -> str:
    """Write two to five sentences that name every kind of object, the most conspicuous first."""
    groups = sorted(scene.objects.values(), key=_salience, reverse=True)
    sentences = [choose(rng, _OPENINGS).format(a=article(scene.place), place=scene.place)]
    while groups:
        fewest = 2 if len(groups) > 4 - (len(sentences) - 1) else 1  # five sentences at most
        size = min(len(groups), int(rng.integers(fewest, 3)))
        sentences.append(_sentence([groups.pop(0) for _ in range(size)], rng))
    return " ".join(sentences)


def yes_no_question(name: str, template: str = "Is there {a} {name} in the image?") -> str:
    """Return POPE's question about an object, or another one by a template."""
    return template.format(a=article(name), name=name)


def article(noun: str) -> str:
    """Return `a` or `an`."""
    return "an" if noun[0] in "aeiou" else "a"


def mentions(text: str) -> list[tuple[int, int, str]]:
    """Find every mention of an object in a text: start, end and the object's name.

    Singular, plural and synonyms count: whole words, the longest match first, ignoring case.
    """
    return [(match.start(), match.end(), LEXICON[match[0].lower()]) for match in _MENTION.finditer(text)]


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
    phrases = [f"{_noun_phrase(things)} {place_of(things[0]) if len(things) == 1 else ''}".strip() for things in groups]
    color = f", which {verb} {groups[0][0].color}" if len(groups) == 1 else ""
    return f"There {verb} {also}{' and '.join(phrases)}{color}."


def _noun_phrase(things: list[SceneObject]) -> str:
    name = things[0].name
    return f"{article(name)} {name}" if len(things) == 1 else f"{NUMBERS[len(things)]} {OBJECTS[name].plural}"


def place_of(thing: SceneObject) -> str:
    """Return where in the picture a thing is."""
    return "in the middle" if thing.where == "middle" else f"on the {thing.where}"


def choose(rng: np.random.Generator, among: tuple[str, ...] | list[str]) -> str:
    """Draw one of some texts."""
    return among[int(rng.integers(len(among)))]


LEXICON = {
    word: name
    for name, kind in OBJECTS.items()
    for base in (name, *kind.synonyms)
    for word in (base, kind.plural if base == name else f"{base}s")
}
_MENTION = re.compile(rf"\b({'|'.join(sorted(LEXICON, key=len, reverse=True))})\b", re.IGNORECASE)
