"""Two files of records about the same pictures: what differs, picture by picture and in sum.

comparison = compare("captions-greedy.jsonl", "captions-sira.jsonl")
print(comparison.equal, "of", len(comparison.pairs), "texts are equal")
for pair in comparison.changed:
    print(pair.name, pair.marked())
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from sira_cli.errors import DataError
from sira_cli.models.records import configuration_of
from sira_cli.pictures.stores import is_uri

SCHEMA = "sira.compare/1"
_SCHEMAS = ("sira.caption/", "sira.ask/")
# A word or a mark with the white space before it; Chinese and Japanese characters stand alone.
_PIECE = re.compile(r"\s*(?:[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+(?:['\u2019-]\w+)*|[^\w\s])")
_FIGURES = {"words": "words per text", "output_tokens": "tokens per text", "duration_ms": "ms per picture"}

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Stretch:
    """A piece of two texts, word by word: `equal`, or what the first (`a`) and the second (`b`) have there."""

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
            if stretch.equal:  # what begins one text may have a space before it in the other
                line += stretch.b if stretch.b[:1].isspace() or not line else stretch.a
                continue
            first = stretch.a or stretch.b
            line += first[: len(first) - len(first.lstrip())]
            line += f"[-{stretch.a.strip()}-]" if stretch.a else ""
            line += f"{{+{stretch.b.strip()}+}}" if stretch.b else ""
        return line.strip()


@dataclass(frozen=True)
class Side:
    """One of the two files.

    Attributes:
        path: the file.
        records: the newest record of each picture, by its name.
    """

    path: Path
    records: dict[str, Record]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What is equal in all its records."""
        return configuration_of(next(iter(self.records.values())))


@dataclass(frozen=True)
class Comparison:
    """What differs between two files of records.

    Attributes:
        a, b: the files.
        pairs: the pictures that both have, in the order of the first.
        only_a, only_b: names of the pictures that one of them has.
    """

    a: Side
    b: Side
    pairs: list[Pair]
    only_a: list[str]
    only_b: list[str]

    @property
    def changed(self) -> list[Pair]:
        """The pictures whose texts differ."""
        return [pair for pair in self.pairs if not pair.equal]

    @property
    def equal(self) -> int:
        """How many pictures have the same text in both."""
        return len(self.pairs) - len(self.changed)

    @property
    def settings(self) -> dict[str, tuple[Any, Any]]:
        """The settings that differ: their values in both."""
        a, b = self.a.settings, self.b.settings
        names = dict.fromkeys([*a, *b])
        return {name: (a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)}

    @property
    def figures(self) -> dict[str, tuple[float, float]]:
        """Means over the pictures that have a text in both; none if there are none."""
        both = [(pair.a, pair.b) for pair in self.pairs if pair.ok]
        if not both:
            return {}
        return {
            title: (fmean(_figure(a, name) for a, _ in both), fmean(_figure(b, name) for _, b in both))
            for name, title in _FIGURES.items()
        }

    @property
    def finish_reasons(self) -> dict[str, tuple[int, int]]:
        """How texts ended, of the pictures that both have."""
        a, b = (Counter(str(pair_side["finish_reason"]) for pair_side in side) for side in self._sides())
        return {reason: (a[reason], b[reason]) for reason in sorted(a | b)}

    @property
    def words(self) -> dict[str, tuple[int, int]]:
        """Words that are in one text of a picture only: in how many of the first, and of the second.

        The words whose numbers differ most come first.
        """
        gone: Counter[str] = Counter()
        new: Counter[str] = Counter()
        for pair in self.changed:
            if pair.ok:
                a, b = (_vocabulary(record["text"]) for record in (pair.a, pair.b))
                gone.update(a - b)
                new.update(b - a)
        order = sorted(gone | new, key=lambda word: (-abs(gone[word] - new[word]), -gone[word] - new[word], word))
        return {word: (gone[word], new[word]) for word in order}

    def to_record(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
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
            "changed": [
                {
                    "file_name": pair.name,
                    "a": pair.a["text"],
                    "b": pair.b["text"],
                    "error_a": pair.a["error"],
                    "error_b": pair.b["error"],
                    "marked": pair.marked(),
                }
                for pair in self.changed
            ],
        }

    def _sides(self) -> tuple[list[Record], list[Record]]:
        return [pair.a for pair in self.pairs], [pair.b for pair in self.pairs]


def compare(a: str | Path, b: str | Path) -> Comparison:
    """Compare two files of records.

    A picture is the same in both if it has the same name there; if the files have more pictures in common by path (they
    lie in different folders) or by content (the pictures were moved), that decides.

    Raises:
        DataError: one of them is no file of records, or they have no picture in common.
    """
    first, second = Path(a), Path(b)
    sides = [(path, _read(path)) for path in (first, second)]
    best: tuple[dict[str, Record], dict[str, Record]] = ({}, {})
    for identify in (_by_name, _by_path, _by_content):
        found_a, found_b = ({identify(record, path): record for record in records} for path, records in sides)
        if len(found_a.keys() & found_b.keys()) > len(best[0].keys() & best[1].keys()):
            best = found_a, found_b
    in_a, in_b = best
    if not in_a:
        raise DataError(f"{first} and {second} have no picture in common: give records about the same pictures")
    return Comparison(
        Side(first, in_a),
        Side(second, in_b),
        [Pair(_by_name(record, first), record, in_b[key]) for key, record in in_a.items() if key in in_b],
        [_by_name(record, first) for key, record in in_a.items() if key not in in_b],
        [_by_name(record, second) for key, record in in_b.items() if key not in in_a],
    )


def _read(path: Path) -> list[Record]:
    """Return the records of a file; a torn last line, of a run that was killed, is left out."""
    records: list[Record] = []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}: expected a file of records (.jsonl)") from error
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
            if not record["schema"].startswith(_SCHEMAS) or not isinstance(record["text"], str):
                raise ValueError
            configuration_of(record)
            records.append({"finish_reason": "", "error": "", "image_sha256": "", **record})
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"{path}: line {number} is no record of sira caption or sira ask") from None
    if not records:
        raise DataError(f"{path}: holds no records: expected a file that sira caption or sira ask wrote with -o")
    return records


def _by_name(record: Record, path: Path) -> str:
    return str(record.get("id") or record["file_name"])


def _by_path(record: Record, path: Path) -> str:
    name = _by_name(record, path)
    if is_uri(name) or "id" in record:
        return name
    return os.path.normpath(path.parent.resolve() / name)


def _by_content(record: Record, path: Path) -> str:
    return str(record["image_sha256"] or _by_name(record, path))


def _figure(record: Record, name: str) -> float:
    return len(record["text"].split()) if name == "words" else float(record.get(name, 0))


def _vocabulary(text: str) -> set[str]:
    return {piece.strip().casefold() for piece in _PIECE.findall(text) if piece.strip()[0].isalnum()}
