"""Two files of records about the same pictures: their differences, per picture and in total.

comparison = compare("captions-greedy.jsonl", "captions-sira.jsonl")
print(comparison.equal, "of", len(comparison.pairs), "texts are equal")
for pair in comparison.changed:
    print(pair.name, pair.marked())
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from sira_cli.analysis.record_file import SCHEMAS, Record, RecordFile, name_of
from sira_cli.errors import DataError
from sira_cli.run.records import configuration_of, flat

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


@dataclass(frozen=True)
class Comparison:
    """The differences of two files of records.

    Attributes:
        paths: the files.
        settings: settings that differ, with both values; nested ones by name, such as `verify.mode`.
        pairs: the pictures that both have, in the order of the first.
        only_a, only_b: names of the pictures that one of them has.
    """

    paths: tuple[Path, Path]
    settings: dict[str, tuple[Any, Any]]
    pairs: list[Pair]
    only_a: list[str]
    only_b: list[str]

    @cached_property
    def changed(self) -> list[Pair]:
        """The pictures whose texts differ."""
        return [pair for pair in self.pairs if not pair.equal]

    @property
    def equal(self) -> int:
        """Number of pictures with the same text in both."""
        return len(self.pairs) - len(self.changed)

    @property
    def figures(self) -> dict[str, tuple[float, float]]:
        """Means over the pictures that have a text in both; empty without any."""
        both = [pair for pair in self.pairs if pair.ok]
        return {
            title: (fmean(_figure(pair.a, name) for pair in both), fmean(_figure(pair.b, name) for pair in both))
            for name, title in _FIGURES.items()
            if both
        }

    @property
    def finish_reasons(self) -> dict[str, tuple[int, int]]:
        """Finish reasons of the pictures that both have."""
        a = Counter(str(pair.a["finish_reason"]) for pair in self.pairs)
        b = Counter(str(pair.b["finish_reason"]) for pair in self.pairs)
        return {reason: (a[reason], b[reason]) for reason in sorted(a | b)}

    @property
    def words(self) -> dict[str, tuple[int, int]]:
        """Words in only one text of a picture: the number of such texts in the first file, and in the second.

        Words with the largest difference come first.
        """
        gone, new = Counter[str](), Counter[str]()
        for a, b in ((_vocabulary(pair.a["text"]), _vocabulary(pair.b["text"])) for pair in self.changed if pair.ok):
            gone.update(a - b)
            new.update(b - a)
        order = sorted(gone | new, key=lambda word: (-abs(gone[word] - new[word]), -gone[word] - new[word], word))
        return {word: (gone[word], new[word]) for word in order}

    def to_record(self) -> dict[str, Any]:
        """Return the whole comparison, ready for JSON."""
        return {
            "schema": SCHEMA,
            "a": str(self.paths[0]),
            "b": str(self.paths[1]),
            "settings": self.settings,
            "pictures": {"both": len(self.pairs), "only_a": self.only_a, "only_b": self.only_b},
            "equal": self.equal,
            "figures": self.figures,
            "finish_reasons": self.finish_reasons,
            "words": self.words,
            "changed": [pair.to_record() for pair in self.changed],
        }


def compare(a: str | Path, b: str | Path) -> Comparison:
    """Compare two files of records.

    Pictures are paired by name, or, if that pairs more, by path (files in different folders) or by content (moved
    pictures).

    Raises:
        DataError: one file is not a file of records, or they have no picture in common.
    """
    paths = Path(a), Path(b)
    in_a, in_b = by_picture(*paths)
    one, other = (flat(configuration_of(next(iter(records.values())))) for records in (in_a, in_b))
    return Comparison(
        paths,
        {name: (one.get(name), other.get(name)) for name in {**one, **other} if one.get(name) != other.get(name)},
        [Pair(name_of(record), record, in_b[key]) for key, record in in_a.items() if key in in_b],
        [name_of(record) for key, record in in_a.items() if key not in in_b],
        [name_of(record) for key, record in in_b.items() if key not in in_a],
    )


def by_picture(a: Path, b: Path, schemas: tuple[str, ...] = SCHEMAS) -> tuple[dict[int, Record], dict[int, Record]]:
    """Return the newest record of each picture in two files, under keys that the same picture has in both."""
    first, second = RecordFile(a, schemas), RecordFile(b, schemas)
    known = [(_newest(first, identity), _newest(second, identity)) for identity in ("name", "path", "image")]
    numbers_a, numbers_b = max(known, key=lambda each: len(each[0].keys() & each[1].keys()))
    if not numbers_a.keys() & numbers_b.keys():
        raise DataError(f"{a} and {b} have no picture in common: give records about the same pictures")
    return (
        {key: first[number] for key, number in numbers_a.items()},
        {key: second[number] for key, number in numbers_b.items()},
    )


def _newest(file: RecordFile, identity: str) -> dict[int, int]:
    """Return the number of the last record of each picture, in the order in which the pictures come first."""
    keys, numbers = file.newest(identity)
    return dict(zip(keys.tolist(), numbers.tolist(), strict=True))


def _figure(record: Record, name: str) -> float:
    return len(record["text"].split()) if name == "words" else float(record.get(name, 0))


def _vocabulary(text: str) -> set[str]:
    pieces = (piece.strip() for piece in _PIECE.findall(text))
    return {piece.casefold() for piece in pieces if piece[0].isalnum()}
