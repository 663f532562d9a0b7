"""English words without any data: tokens and singulars by plain rules, and the bundled lists.

The rules are made for captions, and give the same words on every machine. Most common plurals agree with the official
scripts; other words may differ.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

CHAIR_WORDS = Path(__file__).with_name("chair.txt")  # a category of COCO a line, with its synonyms
AMBER_WORDS = Path(__file__).with_name("amber.txt")  # a word a line
VERSION = 1  # of the rules; it stands in every record, so that figures by other rules are not mixed up with these

# Like NLTK's tokens, as far as captions need it: n't and 's alone, hyphens inside words, every other sign alone.
_TOKEN = re.compile(r"\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\w+(?:-\w+)*|[^\w\s]", re.IGNORECASE)

_PLURALS = """
men:man women:woman children:child people:person feet:foot teeth:tooth geese:goose mice:mouse oxen:ox knives:knife
wives:wife lives:life shelves:shelf leaves:leaf loaves:loaf wolves:wolf calves:calf halves:half scarves:scarf elves:elf
thieves:thief hooves:hoof buses:bus gases:gas lenses:lens skis:ski taxis:taxi shoes:shoe horseshoes:horseshoe
canoes:canoe toes:toe cookies:cookie movies:movie doggies:doggie collies:collie hoodies:hoodie veggies:veggie
smoothies:smoothie selfies:selfie
"""
_IRREGULAR = dict(pair.split(":") for pair in _PLURALS.split())
_COMPOUND = re.compile(r"(men|women|children|people|knives|wives|shelves|buses)$")  # policemen, bookshelves
_UNCHANGED = {"scissors", "series", "species", "sunglasses", "jeans", "always", "perhaps", "towards"}


def tokens(text: str) -> list[str]:
    """Return words and signs of a text, in its case."""
    return _TOKEN.findall(text)


def singular(word: str) -> str:
    """Return the singular of a noun; other words stay as they are."""
    lower = word.lower()
    if lower in _IRREGULAR:
        return _like(word, _IRREGULAR[lower])
    if ending := _COMPOUND.search(lower):
        return word[: ending.start()] + _IRREGULAR[ending[1]]
    if len(word) < 4 or lower in _UNCHANGED or not lower.endswith("s") or lower.endswith(("ss", "us", "is")):
        return word
    if lower.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if lower.endswith(("ches", "shes", "sses", "xes", "oes")):
        return word[:-2]
    return word[:-1]


def _like(word: str, singular: str) -> str:
    return singular.capitalize() if word[0].isupper() else singular


@functools.cache
def function_words() -> frozenset[str]:
    """Return English function words."""
    return frozenset(Path(__file__).with_name("function_words.txt").read_text(encoding="utf-8").split())
