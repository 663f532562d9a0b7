"""The strict language of the drawn captions: any other sentence is broken.

    The image shows a park.
    There is a dog and a cat, one of two.
    There is also a bird, one of three, which are red.

Articles fit nouns; relative clauses fit numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sira_cli.demo.questions import NUMBERS, OPENINGS, article, hallucinated
from sira_cli.demo.scenes import COLORS, OBJECTS, PLACES, Scene


def _any(words: Iterable[str]) -> str:
    return "|".join(sorted(words, key=len, reverse=True))


def _place_sentences() -> dict[str, str]:
    """Return the place of each sentence that begins a caption."""
    sentences = {}
    for name, place in PLACES.items():
        for opening in OPENINGS:
            sentences[opening.format(preposition=place.preposition, a=article(name), place=name)] = name
    return sentences


_PLACES = _place_sentences()
_PHRASE = rf"an? (?:{_any(OBJECTS)})(?:, one of (?:{_any(NUMBERS[2:])}))?"
_COLOR = rf"(?:, which (?:is|are) (?:{_any(COLORS)}))?"
_OBJECTS = re.compile(rf"There is (?:also )?{_PHRASE}(?:,? and {_PHRASE})?{_COLOR}\.")
_SAID = re.compile(
    rf"\b(?P<article>an?) (?P<name>{_any(OBJECTS)})\b"
    rf"(?:, one of (?P<number>{_any(NUMBERS[2:])}))?(?P<joined>,? and)?(?:, which (?P<verb>is|are) (?P<color>\w+))?"
)
_SENTENCE = re.compile(r"[^.]*\.?")


@dataclass(frozen=True)
class Said:
    """What a caption says about the objects of a kind."""

    name: str
    count: int
    color: str | None
    is_grammatical: bool  # article, comma and verb fit


def said(text: str) -> list[Said]:
    """Return the statements of a caption about objects, one for each kind, in its order."""
    found = []
    for match in _SAID.finditer(text):
        count = NUMBERS.index(match["number"]) if match["number"] else 1
        fits = (
            match["article"] == article(match["name"])
            and match["verb"] in (None, "is" if count == 1 else "are")
            and match["joined"] in (None, " and" if count == 1 else ", and")
        )
        found.append(Said(match["name"], count, match["color"], fits))
    return found


def broken_sentences(text: str) -> list[str]:
    """Return the sentences of a caption that are not in the drawn language."""
    broken = []
    for number, sentence in enumerate(_sentences(text)):
        if number == 0:
            fits = sentence in _PLACES
        else:
            fits = _OBJECTS.fullmatch(sentence) is not None and all(each.is_grammatical for each in said(sentence))
        if not fits:
            broken.append(sentence)
    return broken


def is_broken(text: str) -> bool:
    """Return whether a caption has a broken sentence, or no sentence."""
    return not text.strip() or bool(broken_sentences(text))


def instances(scene: Scene, text: str) -> tuple[int, int]:
    """Count the instances that a caption names of the scene's kinds of objects, and those that do not exist."""
    named: Counter[str] = Counter()
    for each in said(text):
        if each.name in scene.objects:
            named[each.name] += each.count
    extra = sum(max(0, count - len(scene.objects[name])) for name, count in named.items())
    return named.total(), extra


def is_right_about_present(scene: Scene, text: str) -> bool:
    """Return whether all that a caption says is right, but for objects that are not there.

    It is not broken, names the place, and no kind of object twice; numbers and colours are those of the scene.
    """
    if is_broken(text) or _PLACES[_sentences(text)[0]] != scene.place:
        return False
    named = set()
    for each in said(text):
        if each.name in named:
            return False
        named.add(each.name)
        things = scene.objects.get(each.name)
        if things and (each.count != len(things) or each.color not in (None, things[0].color)):
            return False
    return True


def is_right(scene: Scene, text: str) -> bool:
    """Return whether all that a caption says is right."""
    return is_right_about_present(scene, text) and not hallucinated(scene, text)


def _sentences(text: str) -> list[str]:
    return [sentence for match in _SENTENCE.findall(text) if (sentence := match.strip())]
