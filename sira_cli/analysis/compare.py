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
    in_a, in_b = _PIECE.findall(a), _PIECE.findall(b)
    words_a, words_b = ([piece.strip() for piece in pieces] for pieces in (in_a, in_b))
    return [
        Stretch(kind == "equal", "".join(in_a[first:last]), "".join(in_b[start:end]))
        for kind, first, last, start, end in SequenceMatcher(None, words_a, words_b, autojunk=False).get_opcodes()
    ]


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
        changed = []
        for pair in self.changed:
            texts = {"a": pair.a["text"], "b": pair.b["text"], "error_a": pair.a["error"], "error_b": pair.b["error"]}
            changed.append({"file_name": pair.name, **texts, "marked": pair.marked()})
        return {
            "schema": "sira.compare/1",
            **dict(zip("ab", (str(file.path) for file in self.files), strict=True)),
            "settings": self.settings,
            "pictures": {"both": self.both, "only_a": self.only_a, "only_b": self.only_b},
            **{name: getattr(self, name) for name in ("equal", "figures", "finish_reasons", "words")},
            "changed": changed,
        }


def compare(a: str | Path, b: str | Path) -> Comparison:
    """Compare two files of records, whose pictures are paired by name, or, if that pairs more, by content.

    Raises:
        DataError: one file is not a file of records, or they have no picture in common.
    """
    first, second = files = RecordFile(Path(a)), RecordFile(Path(b))
    pairs, rest = first.paired(second)
    shared = pairs[pairs[:, 1] >= 0]
    differ = np.zeros(len(shared), dtype=bool)
    gone, new, reasons = Counter[str](), Counter[str](), (Counter[str](), Counter[str]())
    sums, texts = {title: [0.0, 0.0] for title in _FIGURES.values()}, 0
    for number, (start, partner) in enumerate(shared):
        pair = Pair(first[start], second[partner])
        texts += pair.ok
        for side, record in enumerate((pair.a, pair.b)):
            reasons[side][str(record["finish_reason"])] += 1
            for name, title in _FIGURES.items() if pair.ok else ():
                sums[title][side] += len(record["text"].split()) if name == "words" else record.get(name, 0)
        if pair.a["text"] != pair.b["text"] or pair.a["status"] != pair.b["status"]:
            differ[number] = True
            if pair.ok:
                in_a, in_b = _vocabulary(pair.a["text"]), _vocabulary(pair.b["text"])
                gone.update(in_a - in_b)
                new.update(in_b - in_a)
    one, other = (flat(configuration_of(file[0])) for file in files)
    order = sorted(gone | new, key=lambda word: (-abs(gone[word] - new[word]), -gone[word] - new[word], word))
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return Comparison(
        files,
        settings={name: (one.get(name), other.get(name)) for name in names},
        both=len(shared),
        equal=len(shared) - int(differ.sum()),
        figures={title: (in_a / texts, in_b / texts) for title, (in_a, in_b) in sums.items() if texts},
        finish_reasons={name: (reasons[0][name], reasons[1][name]) for name in sorted(reasons[0] | reasons[1])},
        words={word: (gone[word], new[word]) for word in order},
        only_a=[record_name(first[start]) for start in pairs[pairs[:, 1] < 0, 0]],
        only_b=[record_name(second[start]) for start in rest],
        places=shared[differ],
    )


def _vocabulary(text: str) -> set[str]:
    pieces = (piece.strip() for piece in _PIECE.findall(text))
    return {piece.casefold() for piece in pieces if piece[0].isalnum()}
