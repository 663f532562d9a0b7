"""The objects that a text names: nouns of a word list, in singular and plural, compounds first.

The bundled one is CHAIR's synonyms for COCO's objects and AMBER's vocabulary, without words that are no visible objects
or often another part of speech: an object that is not asked about is neither supported nor doubted.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import yaml

from sira_cli.errors import DataError
from sira_cli.language import AMBER_WORDS, CHAIR_WORDS, function_words, singular

LONGEST = 3  # words of a compound
_DENIED = 3  # words before an object that may deny it: "no people or cars"
_WORD = re.compile(r"\w+(?:-\w+)*")
_APOSTROPHES = ("'", "\N{RIGHT SINGLE QUOTATION MARK}")


@dataclass(frozen=True)
class Thing:
    """A kind of object that a text names."""

    name: str  # in the singular, lower case
    spans: tuple[tuple[int, int], ...]  # start and end of every mention, in characters of the text
    group: str  # the head of its synonyms in the list; the name itself where it has none


class Word(NamedTuple):
    """A word of a text in lower case, and its place in the text."""

    lower: str
    start: int
    end: int


class Naming(NamedTuple):
    """A place in a text, and the object that it names."""

    start: int
    end: int
    name: str


class WordList:
    """Words that name objects, each with the head of its synonyms; a `guarded` one is often another part of speech."""

    def __init__(self, groups: Mapping[str, str], name: str, guarded: frozenset[str] = frozenset()) -> None:
        self.name = name  # in records
        self._groups = groups
        self._guarded = guarded
        self._no_things = lists()["compounds_of_no_thing"] - set(groups)

    @classmethod
    def of(cls, lines: Iterable[str], name: str) -> WordList:
        """Read a user's list: one object per line, then its synonyms after commas; `#` begins a comment."""
        groups: dict[str, str] = {}
        for line in lines:
            plain = unicodedata.normalize("NFC", line.partition("#")[0]).lower()
            words = [word for word in map(str.strip, plain.split(",")) if word]
            if words:
                groups |= dict.fromkeys(words, words[0])
        if not groups:
            raise DataError(f"{name}: names no objects; expected one object per line")
        pairs = "\n".join(f"{word}:{head}" for word, head in sorted(groups.items()))
        digest = hashlib.sha256(pairs.encode()).hexdigest()
        return cls(groups, f"{name} {digest[:8]}")

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def group(self, name: str) -> str:
        """Return the head of an object's synonyms; its own name without synonyms."""
        return self._groups.get(name, name)

    def things(self, text: str) -> list[Thing]:
        """Return the objects that a text names, in the order of their first mentions."""
        words = words_of(text)
        namings = []
        place = 0
        while place < len(words):
            length, name = self._longest(words, place, text)
            if name and not is_denied(words, place, text):
                last = words[place + length - 1]
                namings.append(Naming(words[place].start, last.end, name))
            place += length
        return self.collected(namings)

    def named_by(self, word: str) -> str:
        """Return the object that a single word names as a noun; empty without one."""
        lower = word.lower()
        for form in (in_singular(lower), lower):
            if form in self:
                return form
        return ""

    def is_doubtful(self, name: str, *, introduced: bool) -> bool:
        """Return whether a name is often another part of speech at its place."""
        return name in self._guarded and (not introduced or name in lists()["adjectives"])

    def compounds(self) -> Iterable[str]:
        """Return the names that have several words."""
        return (name for name in self._groups if " " in name)

    @functools.cached_property
    def beginnings(self) -> frozenset[str]:
        """The beginnings of compounds, in words: "palm" and "palm tree" of "palm tree trunk"."""
        beginnings = set()
        for name in self.compounds():
            words = name.split()
            for count in range(1, len(words)):
                beginnings.add(" ".join(words[:count]))
        return frozenset(beginnings)

    def collected(self, namings: Iterable[Naming]) -> list[Thing]:
        """Return the objects that are named, each once with all its mentions."""
        spans: dict[str, list[tuple[int, int]]] = {}
        for start, end, name in namings:
            spans.setdefault(name, []).append((start, end))
        return [Thing(name, tuple(mentions), self.group(name)) for name, mentions in spans.items()]

    def _longest(self, words: Sequence[Word], place: int, text: str) -> tuple[int, str]:
        """Return the longest name that starts at `place`: its number of words, and its object, if any."""
        for length in range(min(LONGEST, len(words) - place), 0, -1):
            part = words[place : place + length]
            if not _is_phrase(part, text):
                continue
            plain = " ".join(word.lower.replace("-", " ") for word in part)
            for form in (in_singular(plain), plain):
                if form in self._no_things:
                    return length, ""
                if form in self and (form not in self._guarded or _is_noun(words, place, text)):
                    return length, form
        return 1, ""


@functools.cache
def lists() -> dict[str, frozenset[str]]:
    """Return the lists of words.yaml."""
    path = Path(__file__).with_name("words.yaml")
    texts: dict[str, str] = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = {}
    for kind, text in texts.items():
        parts = text.split(",") if "," in text else text.split()
        found[kind] = frozenset(map(str.strip, parts))
    return found


@functools.cache
def shipped() -> WordList:
    """Return the bundled list: CHAIR's and AMBER's words."""
    groups: dict[str, str] = {}
    for line in CHAIR_WORDS.read_text(encoding="utf-8").splitlines():
        words = [word.strip().lower() for word in line.split(",")]
        groups |= dict.fromkeys(words, words[0])
    for word in AMBER_WORDS.read_text(encoding="utf-8").lower().split():
        groups.setdefault(word, word)
    for word in lists()["compounds"]:
        groups.setdefault(word, word)
    for word in lists()["no_things"] | lists()["places"]:
        groups.pop(word, None)
    return WordList(groups, "chair+amber/1", lists()["other_words"])


def words_of(text: str) -> list[Word]:
    """Return the words of a text."""
    return [Word(match[0].lower(), *match.span()) for match in _WORD.finditer(text)]


def _is_phrase(words: Sequence[Word], text: str) -> bool:
    """Return whether words follow each other with nothing but a blank or a hyphen between them."""
    pairs = itertools.pairwise(words)
    return all(text[word.end : following.start] in (" ", "-", "\n") for word, following in pairs)


def in_singular(plain: str) -> str:
    """Return words with the last of them in the singular, unless it is a pair, such as scissors."""
    if plain in lists()["pairs"]:
        return plain
    *first, last = plain.split()
    return " ".join([*first, singular(last)])


def _is_noun(words: Sequence[Word], place: int, text: str) -> bool:
    """Return whether a word is likely the head of a noun phrase: it follows an article, or one and an adjective."""
    articles = lists()["before_nouns"]
    before = [word.lower for word in words[max(0, place - 2) : place]]
    if not before:
        return False
    has_adjective = before[0] in articles and before[-1] not in function_words()
    if before[-1] not in articles and not has_adjective:
        return False
    if place + 1 == len(words):
        return True
    following = words[place + 1]
    if text[words[place].end : following.start] != " ":
        return True
    return following.lower in function_words() or following.lower.endswith(("ing", "ed"))


def is_denied(words: Sequence[Word], place: int, text: str) -> bool:
    """Return whether a text denies an object: "no dog", "without any cars", "isn't a cat"; not "not far from a dog"."""
    following = words[place]
    for word in reversed(words[max(0, place - _DENIED) : place]):
        between = text[word.end : following.start].strip()
        if between and between not in _APOSTROPHES:
            return False
        if word.lower in lists()["denial_ends"]:
            return False
        if word.lower in lists()["denials"]:
            return True
        following = word
    return False


def with_article(name: str) -> str:
    """Return an object as a question names it: `a dog`, `an umbrella`, `grass`, `a pair of scissors`."""
    last = name.split()[-1]
    if last in lists()["pairs"]:
        return f"a pair of {name}"
    if last in lists()["uncountable"]:
        return name
    return f"an {name}" if takes_an(name) else f"a {name}"


def takes_an(word: str) -> bool:
    """Return whether the English article before a word is `an`."""
    lower = word.lower()
    if lower.startswith(("uni", "use", "uku", "euro", "one")):
        return False
    return lower.startswith((*"aeiou", "hour", "suv"))
