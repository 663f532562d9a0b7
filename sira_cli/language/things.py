"""The objects that a text names: nouns of a word list, in singular and plural, compounds first.

The bundled list needs no download: CHAIR's synonyms for COCO's objects and AMBER's vocabulary, without words that are
not visible objects or often another part of speech. Words that the rules do not cover are left out: an object that is
not asked about is neither supported nor doubted.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import yaml

from sira_cli.errors import DataError
from sira_cli.language import AMBER_WORDS, CHAIR_WORDS, function_words
from sira_cli.language.fallback import singular

_WORD = re.compile(r"\w+(?:-\w+)*")
LONGEST = 3  # words of a compound
_DENIED = 3  # words before an object that may deny it: "no people or cars"


@functools.cache
def lists() -> dict[str, frozenset[str]]:
    """Return the lists of things.yaml."""
    texts: dict[str, str] = yaml.safe_load(Path(__file__).with_name("things.yaml").read_text(encoding="utf-8"))
    return {
        kind: frozenset(part.strip() for part in (text.split(",") if "," in text else text.split()))
        for kind, text in texts.items()
    }


@dataclass(frozen=True)
class Thing:
    """A kind of object that a text names.

    Attributes:
        name: in the singular, lower case.
        spans: start and end of every mention, in characters of the text.
        group: the head of its synonyms in the list; the name itself where it has none.
    """

    name: str
    spans: tuple[tuple[int, int], ...]
    group: str


class Words(Protocol):
    """A finder of the objects that a text names.

    Attributes:
        name: of the vocabulary, for the record.
    """

    name: str

    def group(self, name: str) -> str:
        """Return the head of an object's synonyms; its own name without synonyms."""
        ...

    def things(self, text: str) -> list[Thing]:
        """Return the objects that a text names, in the order of their first mentions."""
        ...

    def named_by(self, word: str) -> str:
        """Return the object that a single word names as a noun; empty without one."""
        return ""

    def is_doubtful(self, name: str, *, introduced: bool) -> bool:
        """Return whether a name is often another part of speech at its place."""
        return False

    def compounds(self) -> Iterable[str]:
        """Return the names that have several words."""
        return ()


class WordList(Words):
    """Words that name objects.

    Attributes:
        name: which list it is, for the record.
    """

    def __init__(self, groups: Mapping[str, str], name: str, guarded: frozenset[str] = frozenset()) -> None:
        """Take a list."""
        self.name = name
        self._groups, self._guarded = groups, guarded
        self._dull = lists()["compounds_of_no_thing"] - set(groups)

    @classmethod
    def of(cls, lines: Iterable[str], name: str) -> WordList:
        """Read a user's list: one object per line, then its synonyms after commas; `#` begins a comment."""
        groups: dict[str, str] = {}
        for line in lines:
            words = [unicodedata.normalize("NFC", word.strip()).lower() for word in line.partition("#")[0].split(",")]
            words = [word for word in words if word]
            groups |= dict.fromkeys(words, next(iter(words), ""))
        if not groups:
            raise DataError(f"{name}: names no objects; expected one object per line")
        digest = hashlib.sha256("\n".join(f"{word}:{head}" for word, head in sorted(groups.items())).encode())
        return cls(groups, f"{name} {digest.hexdigest()[:8]}")

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def group(self, name: str) -> str:
        """Return the head of an object's synonyms."""
        return self._groups.get(name, name)

    def things(self, text: str) -> list[Thing]:
        """Return the objects that a text names, in the order of their first mentions."""
        words = words_of(text)
        found: dict[str, list[tuple[int, int]]] = {}
        place = 0
        while place < len(words):
            length, name = self._longest(words, place, text)
            if name and not is_denied(words, place, text):
                found.setdefault(name, []).append((words[place][1], words[place + length - 1][2]))
            place += length
        return [Thing(name, tuple(spans), self.group(name)) for name, spans in found.items()]

    def named_by(self, word: str) -> str:
        """Return the object that a single word names as a noun; empty without one."""
        plain = word.lower()
        name = plain if plain in lists()["pairs"] else singular(plain)
        return next((each for each in (name, plain) if each in self._groups), "")

    def is_doubtful(self, name: str, *, introduced: bool) -> bool:
        """Return whether a name is often another part of speech at its place."""
        return name in self._guarded and (not introduced or name in lists()["adjectives"])

    def compounds(self) -> Iterable[str]:
        """Return the names that have several words."""
        return (name for name in self._groups if " " in name)

    def _longest(self, words: list[tuple[str, int, int]], place: int, text: str) -> tuple[int, str]:
        """Return the longest name that starts at `place`: its number of words, and its object, if any."""
        for length in range(min(LONGEST, len(words) - place), 0, -1):
            part = words[place : place + length]
            between = [text[one[2] : two[1]] for one, two in itertools.pairwise(part)]
            if any(gap not in (" ", "-", "\n") for gap in between):
                continue
            plain = " ".join(word.replace("-", " ") for word, _, _ in part)
            *first, last = plain.split()
            name = " ".join([*first, last if plain in lists()["pairs"] else singular(last)])
            for known in (name, plain):
                if known in self._dull:
                    return length, ""
                if known in self._groups and (known not in self._guarded or _is_noun(words, place, text)):
                    return length, known
        return 1, ""


def words_of(text: str) -> list[tuple[str, int, int]]:
    """Return each word in lower case, with its start and end in the text."""
    return [(match[0].lower(), match.start(), match.end()) for match in _WORD.finditer(text)]


def _is_noun(words: list[tuple[str, int, int]], place: int, text: str) -> bool:
    """Return whether a word that may be another part of speech is likely the head of a noun phrase.

    An article or the like precedes it, perhaps before an adjective, and no noun or adjective follows.
    """
    before = [word for word, _, _ in words[max(0, place - 2) : place]]
    if not before or not (
        before[-1] in lists()["before_nouns"]
        or (before[0] in lists()["before_nouns"] and before[-1] not in function_words())
    ):
        return False
    if place + 1 == len(words) or text[words[place][2] : words[place + 1][1]] != " ":
        return True
    following = words[place + 1][0]
    return following in function_words() or following.endswith(("ing", "ed"))


def is_denied(words: list[tuple[str, int, int]], place: int, text: str) -> bool:
    """Return whether a text denies an object: "no dog", "without any cars", "isn't a cat"; not "not far from a dog"."""
    for behind in range(place, max(0, place - _DENIED), -1):
        word, _, end = words[behind - 1]
        if text[end : words[behind][1]].strip() not in ("", "'", "\N{RIGHT SINGLE QUOTATION MARK}"):
            return False
        if word in lists()["denial_ends"]:
            return False
        if word in lists()["denials"]:
            return True
    return False


@functools.cache
def shipped() -> WordList:
    """Return the bundled list: CHAIR's and AMBER's words."""
    groups: dict[str, str] = {}
    for line in CHAIR_WORDS.read_text(encoding="utf-8").splitlines():
        words = [word.strip().lower() for word in line.split(",")]
        groups |= dict.fromkeys(words, words[0])
    for word in AMBER_WORDS.read_text(encoding="utf-8").lower().split():
        groups.setdefault(word, word)
    for compound in lists()["compounds"]:
        groups.setdefault(compound, compound)
    kept = {word: head for word, head in groups.items() if word not in lists()["no_things"] | lists()["places"]}
    return WordList(kept, "chair+amber/1", lists()["other_words"])


def read(path: Path) -> WordList:
    """Read a user's list from a file (`WordList.of`)."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    return WordList.of(lines, path.name)


def with_article(name: str) -> str:
    """Return an object as a question names it: `a dog`, `an umbrella`, `grass`, `a pair of scissors`."""
    last = name.split()[-1]
    if last in lists()["pairs"]:
        return f"a pair of {name}"
    if last in lists()["uncountable"]:
        return name
    return f"{'an' if takes_an(name) else 'a'} {name}"


def takes_an(word: str) -> bool:
    """Return whether the English article before a word is `an`."""
    lower = word.lower()
    sounds_open = lower.startswith(tuple("aeiou")) and not lower.startswith(("uni", "use", "uku", "euro", "one"))
    return sounds_open or lower.startswith(("hour", "suv"))
