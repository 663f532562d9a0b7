"""Two files of records about the same pictures: their differences, per picture and in total.

comparison = compare("captions-greedy.jsonl", "captions-sira.jsonl")
print(comparison.equal, "of", comparison.both, "texts are equal")
for pair in comparison.changed:
    print(pair.name, pair.marked())
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from sira_cli.analysis.record_file import Record, RecordFile, name_of
from sira_cli.errors import DataError
from sira_cli.run.ledger import Numbers
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
    in_a, in_b = _PIECE.findall(a), _PIECE.findall(b)
    words_a, words_b = ([piece.strip() for piece in pieces] for pieces in (in_a, in_b))
    return [
        Stretch(kind == "equal", "".join(in_a[first:last]), "".join(in_b[start:end]))
        for kind, first, last, start, end in SequenceMatcher(None, words_a, words_b, autojunk=False).get_opcodes()
    ]


def paired(first: RecordFile, second: RecordFile) -> tuple[Numbers, Numbers, Numbers]:
    """Pair the newest records of each picture in two files; for how and for errors see `compare`.

    The result is the numbers of those in the first file; for each, the number in the second, or -1 without one; and the
    numbers of those in the second alone, all in the order in which the pictures come first.
    """

    def by(identity: str) -> tuple[Numbers, Numbers, Numbers]:
        (keys_a, a), (keys_b, b) = first.newest(identity), second.newest(identity)
        _, in_a, in_b = np.intersect1d(keys_a, keys_b, assume_unique=True, return_indices=True)
        partners = np.full_like(a, -1)
        partners[in_a] = b[in_b]
        return a, partners, np.delete(b, in_b)

    a, partners, only_b = min(map(by, ("name", "path", "image")), key=lambda each: len(each[2]))
    if (partners < 0).all():
        raise DataError(
            f"{first.path} and {second.path} have no picture in common: give records about the same pictures"
        )
    return a, partners, only_b


@dataclass(frozen=True)
class Pair:
    """The records of one picture in both files."""

    a: Record
    b: Record

    @property
    def name(self) -> str:
        """The picture's name in the first file."""
        return name_of(self.a)

    @property
    def equal(self) -> bool:
        """Whether both have the same text, or neither has one."""
        return bool(self.a["text"] == self.b["text"] and self.a["status"] == self.b["status"])

    @property
    def ok(self) -> bool:
        """Whether both have a text."""
        return bool(self.a["status"] == self.b["status"] == "ok")

    def marked(self) -> str:
        """Return both texts in one, differences marked as `git diff --word-diff` does: `a [-red-]{+blue+} ball`."""
        line = ""
        for equal, a, b in differences(self.a["text"], self.b["text"]):
            if equal:  # the first word of one text may have a space before it in the other
                line += b if b[:1].isspace() or not line else a
                continue
            first = a or b
            line += first[: len(first) - len(first.lstrip())]
            line += f"[-{a.strip()}-]" * bool(a) + f"{{+{b.strip()}+}}" * bool(b)
        return line.strip()

    def to_record(self) -> dict[str, Any]:
        """Return both texts and their differences, ready for JSON."""
        texts = {"a": self.a["text"], "b": self.b["text"], "error_a": self.a["error"], "error_b": self.b["error"]}
        return {"file_name": self.name, **texts, "marked": self.marked()}


class Comparison:
    """The differences of two files of records, whose texts stay on disk.

    Attributes:
        paths: the files.
        settings: settings that differ, with both values; nested ones by name, such as `verify.mode`.
        both: number of pictures that both have.
        equal: number of pictures with the same text in both.
        figures: means over the pictures that have a text in both; empty without any.
        finish_reasons: of the pictures that both have.
        words: words in only one text of a picture: the number of such texts in the first file, and in the second.
            Words with the largest difference come first.
        only_a, only_b: names of the pictures that one of them has.
    """

    def __init__(self, a: Path, b: Path) -> None:
        """Read both files once; for errors see `compare`."""
        self.paths, self._files = (a, b), (RecordFile(a), RecordFile(b))
        in_first, partners, only_b = paired(*self._files)
        one, other = (flat(configuration_of(file[0])) for file in self._files)
        self.settings = {
            name: (one.get(name), other.get(name)) for name in {**one, **other} if one.get(name) != other.get(name)
        }
        shared = partners >= 0
        self.only_a = [name_of(self._files[0][number]) for number in in_first[~shared].tolist()]
        self.only_b = [name_of(self._files[1][number]) for number in only_b.tolist()]
        pairs, self._changed = np.stack([in_first, partners], 1)[shared], array("q")
        self.both = len(pairs)
        reasons, gone, new = (Counter[str](), Counter[str]()), Counter[str](), Counter[str]()
        sizes = {title: (array("d"), array("d")) for title in _FIGURES.values()}
        for a_number, b_number in pairs.tolist():
            pair = self._pair(a_number, b_number)
            for side, record in enumerate((pair.a, pair.b)):
                reasons[side][str(record["finish_reason"])] += 1
                for name, title in _FIGURES.items() if pair.ok else ():
                    sizes[title][side].append(
                        len(record["text"].split()) if name == "words" else float(record.get(name, 0))
                    )
            if not pair.equal:
                self._changed.extend((a_number, b_number))
                if pair.ok:
                    in_a, in_b = _vocabulary(pair.a["text"]), _vocabulary(pair.b["text"])
                    gone.update(in_a - in_b)
                    new.update(in_b - in_a)
        self.equal = self.both - len(self._changed) // 2
        self.figures = {title: (fmean(in_a), fmean(in_b)) for title, (in_a, in_b) in sizes.items() if in_a}
        self.finish_reasons = {name: (reasons[0][name], reasons[1][name]) for name in sorted(reasons[0] | reasons[1])}
        order = sorted(gone | new, key=lambda word: (-abs(gone[word] - new[word]), -gone[word] - new[word], word))
        self.words = {word: (gone[word], new[word]) for word in order}

    @property
    def changed(self) -> Iterator[Pair]:
        """The pictures whose texts differ, read one by one, in the order of the first file."""
        return map(self._pair, self._changed[::2], self._changed[1::2])

    def _pair(self, a: int, b: int) -> Pair:
        return Pair(self._files[0][a], self._files[1][b])

    def to_record(self) -> dict[str, Any]:
        """Return the whole comparison, ready for JSON."""
        return {
            "schema": "sira.compare/1",
            "a": str(self.paths[0]),
            "b": str(self.paths[1]),
            "settings": self.settings,
            "pictures": {"both": self.both, "only_a": self.only_a, "only_b": self.only_b},
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
    return Comparison(Path(a), Path(b))


def _vocabulary(text: str) -> set[str]:
    pieces = (piece.strip() for piece in _PIECE.findall(text))
    return {piece.casefold() for piece in pieces if piece[0].isalnum()}
