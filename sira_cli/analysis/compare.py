"""The differences of two files of records about the same pictures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sira_cli.analysis.record_file import Numbers, Record, RecordFile
from sira_cli.pictures.records import is_failure, record_name
from sira_cli.run.records import configuration_of, flat

# A word or a mark with the white space before it; Chinese and Japanese characters stand alone.
_PIECE = re.compile(r"\s*(?:[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+(?:['\u2019-]\w+)*|[^\w\s])")
_FIGURES = {"words": "words per text", "output_tokens": "tokens per text", "duration_ms": "ms per picture"}


class Stretch(NamedTuple):
    """A piece of two texts, word by word: `equal`, or the words of the first (`a`) and the second (`b`)."""

    equal: bool
    a: str
    b: str


def differences(a: str, b: str) -> list[Stretch]:
    """Return both texts from beginning to end, in stretches of words that are equal or not."""
    in_a = _PIECE.findall(a)
    in_b = _PIECE.findall(b)
    matcher = SequenceMatcher(None, list(map(str.strip, in_a)), list(map(str.strip, in_b)), autojunk=False)
    stretches = []
    for kind, first, last, start, end in matcher.get_opcodes():
        stretches.append(Stretch(kind == "equal", "".join(in_a[first:last]), "".join(in_b[start:end])))
    return stretches


@dataclass(frozen=True)
class Pair:
    """The records of one picture in both files."""

    a: Record
    b: Record

    @property
    def name(self) -> str:
        """The picture's name in the first file."""
        return record_name(self.a)

    @property
    def ok(self) -> bool:
        """Whether both have a text."""
        return not (is_failure(self.a) or is_failure(self.b))

    @property
    def differs(self) -> bool:
        """Whether the texts differ, or only one is of a picture that failed."""
        return bool(self.a["text"] != self.b["text"] or self.a["status"] != self.b["status"])

    def marked(self) -> str:
        """Return both texts in one, differences marked as `git diff --word-diff` does: `a [-red-]{+blue+} ball`."""
        line = ""
        for equal, a, b in differences(self.a["text"], self.b["text"]):
            if equal:  # the first word of one text may have a space before it in the other
                line += b if b[:1].isspace() or not line else a
                continue
            first = a or b
            line += first[: len(first) - len(first.lstrip())]
            if a:
                line += f"[-{a.strip()}-]"
            if b:
                line += f"{{+{b.strip()}+}}"
        return line.strip()

    def to_record(self) -> dict[str, Any]:
        """Return both texts, ready for JSON."""
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
    """The differences of two files of records, whose texts stay on disk."""

    files: tuple[RecordFile, RecordFile]
    settings: dict[str, tuple[Any, Any]]  # those that differ; nested ones by name, such as `verify.mode`
    both: int  # number of pictures that both have
    equal: int  # of these, with the same text
    figures: dict[str, tuple[float, float]]  # means over the pictures that have a text in both; empty without any
    finish_reasons: dict[str, tuple[int, int]]  # of the pictures that both have
    # In only one text of a picture: the number of such texts in each file. The largest difference comes first.
    words: dict[str, tuple[int, int]]
    only_a: list[str]  # names of pictures
    only_b: list[str]
    places: Numbers  # `[N, 2]` of the records of pictures whose texts differ, in the order of the first file

    @property
    def changed(self) -> Iterator[Pair]:
        """The pictures whose texts differ, read one by one, in the order of the first file."""
        return (Pair(self.files[0][a], self.files[1][b]) for a, b in self.places)

    def to_record(self) -> dict[str, Any]:
        """Return the whole comparison, ready for JSON."""
        a, b = self.files
        return {
            "schema": "sira.compare/1",
            "a": str(a.path),
            "b": str(b.path),
            "settings": self.settings,
            "pictures": {"both": self.both, "only_a": self.only_a, "only_b": self.only_b},
            "equal": self.equal,
            "figures": self.figures,
            "finish_reasons": self.finish_reasons,
            "words": self.words,
            "changed": [pair.to_record() for pair in self.changed],
        }


def compare(a: str | Path, b: str | Path) -> Comparison:
    """Compare two files of records, whose pictures are paired by name, or, if that pairs more, by content.

    Raises:
        DataError: one file is not a file of records, or they have no picture in common.
    """
    first = RecordFile(Path(a))
    second = RecordFile(Path(b))
    pairs, rest = first.paired(second)
    shared = pairs[pairs[:, 1] >= 0]
    differ = np.zeros(len(shared), dtype=bool)
    in_a = _Side()
    in_b = _Side()
    for number, (start, partner) in enumerate(shared):
        pair = Pair(first[start], second[partner])
        in_a.add(pair, pair.a, pair.b)
        in_b.add(pair, pair.b, pair.a)
        differ[number] = pair.differs
    settings_a = flat(configuration_of(first[0]))
    settings_b = flat(configuration_of(second[0]))
    differing = {}
    for name in settings_a | settings_b:
        value_a = settings_a.get(name)
        value_b = settings_b.get(name)
        if value_a != value_b:
            differing[name] = (value_a, value_b)
    figures = {}
    for name, title in _FIGURES.items():
        if in_a.texts:
            figures[title] = in_a.sums[name] / in_a.texts, in_b.sums[name] / in_b.texts
    return Comparison(
        (first, second),
        settings=differing,
        both=len(shared),
        equal=len(shared) - int(differ.sum()),
        figures=figures,
        finish_reasons=_counted(in_a.reasons, in_b.reasons),
        words=_by_difference(_counted(in_a.words, in_b.words)),
        only_a=[record_name(first[start]) for start in pairs[pairs[:, 1] < 0, 0]],
        only_b=[record_name(second[start]) for start in rest],
        places=shared[differ],
    )


def _counted(a: Counter[str], b: Counter[str]) -> dict[str, tuple[int, int]]:
    """Return the counts of both files, in alphabetical order."""
    return {name: (a[name], b[name]) for name in sorted(a | b)}


def _by_difference(counts: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Return counts with the largest difference first, then those of the largest sum."""

    def size(row: tuple[str, tuple[int, int]]) -> tuple[int, int]:
        _, (a, b) = row
        return abs(a - b), a + b

    return dict(sorted(counts.items(), key=size, reverse=True))


class _Side:
    """Counts of one file, over the pictures that both have."""

    def __init__(self) -> None:
        self.texts = 0  # of pictures that have one in both
        self.sums = Counter[str]()  # over these texts
        self.reasons = Counter[str]()
        self.words = Counter[str]()  # number of texts that have a word which the other text lacks

    def add(self, pair: Pair, record: Record, other: Record) -> None:
        """Add a picture: the file's record of it, and the other file's."""
        self.reasons[str(record["finish_reason"])] += 1
        if not pair.ok:
            return
        self.texts += 1
        self.sums["words"] += len(record["text"].split())
        for name in ("output_tokens", "duration_ms"):
            self.sums[name] += record.get(name, 0)
        if pair.differs:
            self.words.update(_vocabulary(record["text"]) - _vocabulary(other["text"]))


def _vocabulary(text: str) -> set[str]:
    pieces = map(str.strip, _PIECE.findall(text))
    return {piece.casefold() for piece in pieces if piece[0].isalnum()}
