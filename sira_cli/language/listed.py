"""The objects that texts in any language name: words of a list, in the forms that the list has.

No rules make singulars here. A line of a list is an object, with its other forms and its synonyms after commas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from sira_cli.language.scripts import UNSPACED, bounded, folded
from sira_cli.language.things import Thing, Words, digested, groups_of, lines_of
from sira_cli.language.wordings import ENGLISH, Wording

ASK = "ask"
_DENIED = 2  # words between an object and the word that denies it
_BULLET = re.compile(r"^[\s\-*\u2022\u30fb]*(?:\d+[.):\u3001]\s*)?")
_QUOTES = " .\u3002\"'`*\u00ab\u00bb\u201c\u201d\u201e\u300c\u300d"


class PlainWords(Words):
    """A list of words without rules for plurals.

    Attributes:
        name: name of the list, for the record.
    """

    def __init__(self, groups: Mapping[str, str], name: str, wording: Wording) -> None:
        """Read a list's words.

        Args:
            groups: every word, with the object that it names.
            name: name of the list.
            wording: the language; it has the words that deny an object.
        """
        self.name = name
        others = dict.fromkeys(wording.compounds.split(), "")
        self._groups = {folded(word): head for word, head in (others | {**groups}).items()}
        self._pattern = bounded([*others, *groups])
        self._denied = _denied(wording.denials.split(), wording.denial_ends.split())
        self._denied_after = re.compile(wording.denied_after or r"(?!)", re.IGNORECASE)

    @classmethod
    def read(cls, path: Path, wording: Wording) -> PlainWords:
        """Read a list from a file.

        Raises:
            DataError: the file cannot be read, or has no objects.
        """
        groups = groups_of(lines_of(path), path.name)
        return cls(groups, digested(path.name, groups), wording)

    def group(self, name: str) -> str:
        """Return the name as it is: inflected forms were replaced earlier."""
        return name

    def things(self, text: str) -> list[Thing]:
        """Return the objects that a text names, in the order of their first mentions."""
        found: dict[str, list[tuple[int, int]]] = {}
        for match in self._pattern.finditer(text):
            name = self._groups[folded(match[0])]
            if name and not self._is_denied(text, *match.span()):
                found.setdefault(name, []).append(match.span())
        return [Thing(name, tuple(spans), name) for name, spans in found.items()]

    def _is_denied(self, text: str, start: int, end: int) -> bool:
        return bool(self._denied.search(text, 0, start) or self._denied_after.match(text, end))

    def named_by(self, word: str) -> str:
        """Return the object that a single word names; empty without one."""
        return self._groups.get(folded(word), "")

    def compounds(self) -> Iterable[str]:
        """Return the names that have several words."""
        return (word for word in self._groups if " " in word)


class Asked(Words):
    """The objects that the model itself finds in a text, when it is asked (`models.look.second_look`)."""

    name = ASK

    def __init__(self, wording: Wording) -> None:
        """Note the language of the request."""
        self._wording = wording

    def group(self, name: str) -> str:
        """Return `name`: nothing is known about synonyms."""
        return name

    def things(self, text: str) -> list[Thing]:
        """Return no objects: only the model can tell which words are objects."""
        return []

    def request(self, text: str) -> str:
        """Return the prompt that asks the model for the objects of a text."""
        return f"{self._wording.list}\n\n{text}"

    def found(self, answer: str, text: str) -> list[Thing]:
        """Return the objects in the model's answer that the text really names.

        Args:
            answer: a list, one object per line or between commas.
            text: the text that was asked about.
        """
        parts = re.split(r"[\n,;\uff0c\u3001\uff1b]", answer)
        names = [_BULLET.sub("", part).strip(_QUOTES) for part in parts]
        if self._wording.code == ENGLISH:
            names = [re.sub(r"^(?:an?|the) ", "", name.lower()) for name in names]
        return PlainWords({name: name for name in names if name}, ASK, self._wording).things(text)


def _denied(words: Iterable[str], ends: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of a text before a denied word: "no big" before "dog", but not "not far from a"."""
    between = rf"(?!(?:{'|'.join(map(re.escape, ends)) or '(?!)'})\b)\w+\s+"
    parts = [
        f"{re.escape(word)}$" if UNSPACED.match(word) else rf"(?<!\w){re.escape(word)}\s+(?:{between}){{0,{_DENIED}}}$"
        for word in words
    ]
    return re.compile("|".join(parts) or r"(?!)", re.IGNORECASE)
