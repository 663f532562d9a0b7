"""The strict language of the drawn captions: any other sentence is broken.

    The image shows a park.
    There is a dog on the left and two cats.
    There are also three birds, which are red.

Articles fit nouns; verbs and relative clauses fit numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sira_cli.demo.questions import NUMBERS, article, mentions
from sira_cli.demo.scenes import COLORS, OBJECTS, PLACES, SIDE, Scene


def _any(words: Iterable[str]) -> str:
    return "|".join(sorted(words, key=len, reverse=True))


_WORDS = {
    word: plural
    for name, kind in OBJECTS.items()
    for plural, words in (
        (False, (name, *kind.synonyms)),
        (True, (kind.plural, *(f"{each}s" for each in kind.synonyms))),
    )
    for word in words
}
_PLACE = re.compile(rf"(?:The image shows|This is a picture of|The picture was taken in) (an?) ({_any(PLACES)})\.")
_PHRASE = rf"(?:(?:an?|{_any(NUMBERS[2:])}) (?:{_any(_WORDS)})(?: on the left| on the right| in the middle)?)"
_OBJECTS = re.compile(
    rf"There (is|are) (?:also )?({_PHRASE}(?: and {_PHRASE})?)(?:, which (is|are) (?:{_any(COLORS)}))?\."
)
_NOUN = re.compile(rf"\b(an?|{_any(NUMBERS[2:])}) ({_any(_WORDS)})\b")
_SIDES = {"": (0, 1), "on the left": (0, 0.5), "in the middle": (0.25, 0.75), "on the right": (0.5, 1)}  # of the width
_THING = re.compile(_NOUN.pattern[:-2] + rf"(?: ({_any(_SIDES)[:-1]}))?(?:, which (?:is|are) (\w+))?")
_SENTENCE = re.compile(r"[^.]*\.?")


def broken_sentences(text: str) -> list[str]:
    """Return the sentences of a caption that are not in the drawn language."""
    sentences = [sentence for match in _SENTENCE.findall(text) if (sentence := match.strip())]
    right = (_is_about_objects if number else _is_place for number in range(len(sentences)))
    return [sentence for sentence, fits in zip(sentences, right, strict=True) if not fits(sentence)]


def is_broken(text: str) -> bool:
    """Return whether a caption has a broken sentence, or no sentence."""
    return not text.strip() or bool(broken_sentences(text))


def instances(scene: Scene, text: str) -> tuple[int, int]:
    """Count the instances that a caption names of the scene's kinds of objects, and those that do not exist."""
    named: dict[str, int] = {}
    for match in _NOUN.finditer(text):
        ((_, _, name),) = mentions(match[2])
        named[name] = named.get(name, 0) + (NUMBERS.index(match[1]) if match[1] in NUMBERS else 1)
    there = {name: len(things) for name, things in scene.objects.items()}
    counts = {name: count for name, count in named.items() if name in there}
    return sum(counts.values()), sum(max(0, count - there[name]) for name, count in counts.items())


def is_right(scene: Scene, text: str) -> bool:
    """Return whether a caption is right throughout.

    It names the place and each object once, no other object, in its number, in its colour, on its side of the picture.
    """
    place, *rest = [sentence.strip() for sentence in _SENTENCE.findall(text) if sentence.strip()]
    if is_broken(text) or scene.place not in place:
        return False
    named = []
    for word, noun, side, color in _THING.findall(" ".join(rest)):
        ((_, _, name),) = mentions(noun)
        things = scene.objects.get(name, [])
        named.append(name)
        if len(things) != (NUMBERS.index(word) if word in NUMBERS else 1) or (
            color and {color} != {t.color for t in things}
        ):
            return False
        if not all(
            low <= (thing.box[0] + thing.box[2]) / 2 / SIDE <= high for thing in things for low, high in [_SIDES[side]]
        ):
            return False
    return sorted(named) == sorted(scene.objects)


def _is_place(sentence: str) -> bool:
    match = _PLACE.fullmatch(sentence)
    return match is not None and match[1] == article(match[2])


def _is_about_objects(sentence: str) -> bool:
    match = _OBJECTS.fullmatch(sentence)
    if match is None:
        return False
    nouns = [(one[1], one[2]) for one in _NOUN.finditer(match[2])]
    if not all(_agrees(word, noun) for word, noun in nouns):
        return False
    verbs = {False: "is", True: "are"}
    clause = match[3] is None or match[3] == verbs[_WORDS[nouns[-1][1]]]
    return match[1] == verbs[_WORDS[nouns[0][1]]] and clause


def _agrees(word: str, noun: str) -> bool:
    """Return whether an article or a number fits the noun after it."""
    return _WORDS[noun] == (word in NUMBERS) and (word in NUMBERS or word == article(noun))
