"""Two files of records about the same pictures: their differences, per picture and in total.

comparison = compare("captions-greedy.jsonl", "captions-sira.jsonl")
print(comparison.equal, "of", len(comparison.pairs), "texts are equal")
for pair in comparison.changed:
    print(pair.name, pair.marked())
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from sira_cli.analysis.record_file import Record, RecordFile, Records, aligned, name_of
from sira_cli.data.records.record import configuration_of, flat
from sira_cli.errors import DataError

SCHEMA = "sira.compare/1"
# A word or a mark with the white space before it; Chinese and Japanese characters stand alone.
_PIECE = re.compile(r"\s*(?:[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+(?:['\u2019-]\w+)*|[^\w\s])")
_FIGURES = {"words": "words per text", "output_tokens": "tokens per text", "duration_ms": "ms per picture"}


@dataclass(frozen=True)
class Stretch:
    """A piece of two texts, word by word: `equal`, or the words of the first (`a`) and the second (`b`)."""

    equal: bool
    a: str
    b: str


def differences(a: str, b: str) -> list[Stretch]:
    """Return both texts from beginning to end, in stretches of words that are equal or not."""
    in_a, in_b = _PIECE.findall(a), _PIECE.findall(b)
    matcher = SequenceMatcher(
        None, [piece.strip() for piece in in_a], [piece.strip() for piece in in_b], autojunk=False
    )
    return [
        Stretch(kind == "equal", "".join(in_a[first:last]), "".join(in_b[start:end]))
        for kind, first, last, start, end in matcher.get_opcodes()
    ]


@dataclass(frozen=True)
class Pair:
    """The records of one picture in both files."""

    name: str
    a: Record
    b: Record

    @property
    def equal(self) -> bool:
        """Whether both have the same text, or neither has one."""
        return bool(self.a["text"] == self.b["text"] and self.a["status"] == self.b["status"])

    @property
    def ok(self) -> bool:
        """Whether both have a text."""
        return bool(self.a["status"] == self.b["status"] == "ok")

    @cached_property
    def stretches(self) -> list[Stretch]:
        """Both texts, from beginning to end."""
        return differences(self.a["text"], self.b["text"])

    def marked(self) -> str:
        """Return both texts in one, differences marked as `git diff --word-diff` does: `a [-red-]{+blue+} ball`."""
        line = ""
        for stretch in self.stretches:
            if stretch.equal:  # the first word of one text may have a space before it in the other
                line += stretch.b if stretch.b[:1].isspace() or not line else stretch.a
                continue
            first = stretch.a or stretch.b
            line += first[: len(first) - len(first.lstrip())]
            line += f"[-{stretch.a.strip()}-]" if stretch.a else ""
            line += f"{{+{stretch.b.strip()}+}}" if stretch.b else ""
        return line.strip()

    def to_record(self) -> dict[str, Any]:
        """Return both texts and their differences, ready for JSON."""
        return {
            "file_name": self.name,
            "a": self.a["text"],
            "b": self.b["text"],
            "error_a": self.a["error"],
            "error_b": self.b["error"],
            "marked": self.marked(),
        }


class Pairs(Sequence[Pair]):
    """Records of the same pictures in both files, read on access."""

    def __init__(self, a: Records, b: Records) -> None:
        """Combine records in pairs; both sides have the same length."""
        self._a, self._b = a, b

    def __len__(self) -> int:
        return len(self._a)

    def __getitem__(self, place: Any) -> Any:
        if not isinstance(place, int):
            return Pairs(self._a[place], self._b[place])
        a = self._a[place]
        return Pair(name_of(a), a, self._b[place])


@dataclass(frozen=True)
class Side:
    """One of the two files.

    Attributes:
        path: the file.
        records: the newest record of each picture.
    """

    path: Path
    records: Records

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The fields that are equal in all its records."""
        return configuration_of(self.records[0])


@dataclass(frozen=True)
class _Sums:
    """The result of one pass over all pairs: the places of those that differ, and sums for `Comparison`."""

    changed: array[int]
    figures: dict[str, tuple[array[float], array[float]]]
    finish_reasons: tuple[Counter[str], Counter[str]]
    words: tuple[Counter[str], Counter[str]]


@dataclass(frozen=True)
class Comparison:
    """The differences of two files of records, which stay on disk.

    Attributes:
        a, b: the files.
        pairs: the pictures that both have, in the order of the first.
        only_a, only_b: names of the pictures that one of them has.
    """

    a: Side
    b: Side
    pairs: Pairs
    only_a: list[str]
    only_b: list[str]

    @cached_property
    def _sums(self) -> _Sums:
        figures = {title: (array("d"), array("d")) for title in _FIGURES.values()}
        sums = _Sums(array("q"), figures, (Counter(), Counter()), (Counter(), Counter()))
        for number, pair in enumerate(self.pairs):
            for reasons, record in zip(sums.finish_reasons, (pair.a, pair.b), strict=True):
                reasons[str(record["finish_reason"])] += 1
            if pair.ok:
                for name, title in _FIGURES.items():
                    for values, record in zip(sums.figures[title], (pair.a, pair.b), strict=True):
                        values.append(_figure(record, name))
            if not pair.equal:
                sums.changed.append(number)
                if pair.ok:
                    a, b = (_vocabulary(record["text"]) for record in (pair.a, pair.b))
                    sums.words[0].update(a - b)
                    sums.words[1].update(b - a)
        return sums

    @property
    def changed(self) -> Pairs:
        """The pictures whose texts differ."""
        changed: Pairs = self.pairs[np.array(self._sums.changed, dtype=np.int64)]
        return changed

    @property
    def equal(self) -> int:
        """Number of pictures with the same text in both."""
        return len(self.pairs) - len(self._sums.changed)

    @property
    def settings(self) -> dict[str, tuple[Any, Any]]:
        """Settings that differ, with both values; nested ones by name, such as `verify.mode`."""
        a, b = flat(self.a.settings), flat(self.b.settings)
        names = dict.fromkeys([*a, *b])
        return {name: (a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)}

    @property
    def figures(self) -> dict[str, tuple[float, float]]:
        """Means over the pictures that have a text in both; empty without any."""
        return {title: (fmean(a), fmean(b)) for title, (a, b) in self._sums.figures.items() if a}

    @property
    def finish_reasons(self) -> dict[str, tuple[int, int]]:
        """Finish reasons of the pictures that both have."""
        a, b = self._sums.finish_reasons
        return {reason: (a[reason], b[reason]) for reason in sorted(a | b)}

    @property
    def words(self) -> dict[str, tuple[int, int]]:
        """Words in only one text of a picture: the number of such texts in the first file, and in the second.

        Words with the largest difference come first.
        """
        gone, new = self._sums.words
        order = sorted(gone | new, key=lambda word: (-abs(gone[word] - new[word]), -gone[word] - new[word], word))
        return {word: (gone[word], new[word]) for word in order}

    def to_record(self) -> dict[str, Any]:
        """Return the whole comparison, ready for JSON."""
        return self._head() | {"changed": [pair.to_record() for pair in self.changed]}

    def json_parts(self) -> Iterator[str]:
        """Yield the JSON of `to_record`, part by part: all texts together may not fit into memory."""
        yield json.dumps(self._head(), ensure_ascii=False)[:-1] + ', "changed": ['
        for number, pair in enumerate(self.changed):
            yield ", " * bool(number) + json.dumps(pair.to_record(), ensure_ascii=False)
        yield "]}"

    def _head(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "a": str(self.a.path),
            "b": str(self.b.path),
            "settings": self.settings,
            "pictures": {"both": len(self.pairs), "only_a": self.only_a, "only_b": self.only_b},
            "equal": self.equal,
            "figures": self.figures,
            "finish_reasons": self.finish_reasons,
            "words": self.words,
        }


def compare(a: str | Path, b: str | Path) -> Comparison:
    """Compare two files of records.

    Pictures are paired by name, or, if that pairs more, by path (files in different folders) or by content (moved
    pictures).

    Raises:
        DataError: one file is not a file of records, or they have no picture in common.
    """
    first, second = Path(a), Path(b)
    found = aligned(RecordFile(first), RecordFile(second))
    if found is None:
        raise DataError(f"{first} and {second} have no picture in common: give records about the same pictures")
    in_a, in_b, places_a, places_b = found
    only_a, only_b = (
        [name_of(record) for record in records[np.delete(np.arange(len(records)), places)]]
        for records, places in ((in_a, places_a), (in_b, places_b))
    )
    return Comparison(Side(first, in_a), Side(second, in_b), Pairs(in_a[places_a], in_b[places_b]), only_a, only_b)


def _figure(record: Record, name: str) -> float:
    return len(record["text"].split()) if name == "words" else float(record.get(name, 0))


def _vocabulary(text: str) -> set[str]:
    pieces = (piece.strip() for piece in _PIECE.findall(text))
    return {piece.casefold() for piece in pieces if piece[0].isalnum()}
