"""Rows of answers: in the form that a benchmark's official script reads, or as lmms-eval saves its samples.

lmms-eval (`--log_samples`) writes `*_samples_TASK.jsonl`: an object per sample, with the answer in `filtered_resps`,
the prompt in `input`, and ids inside the metrics. POPE's splits are all in one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError
from sira_cli.pictures.rows import brief, read_rows, some, text_of

SAMPLE = "filtered_resps"  # the field that only lmms-eval's samples have
ABOUT = ("question_id", "image_id", "question", "category")  # fields of a sample that are read besides its answer

Placed = tuple[str, dict[str, Any]]  # where a row stands, and the row


@dataclass(frozen=True)
class Form:
    """A row of an official script's file. Rows with other fields are refused: the answer could be the label.

    Attributes:
        answer: the field with the model's answer.
        needed: further fields of every row.
        more: fields that a row may also have.
    """

    answer: str
    needed: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    def fits(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row has this form."""
        needed = {self.answer, *self.needed}
        return needed <= row.keys() <= needed | {*self.more}

    def __str__(self) -> str:
        return f"{' and '.join((*self.needed, self.answer))}{f' (and {some(self.more)})' * bool(self.more)}"


def read_answer_rows(path: Path, *forms: Form) -> Iterator[Placed]:
    """Yield the place and the content of every row of a file of answers, with the model's answer in `text`.

    Samples of lmms-eval hold only `text` and, as far as they are known, ABOUT.
    """
    for where, row in read_rows(path):
        if SAMPLE in row:
            yield where, _sample(where, row)
            continue
        form = next((form for form in forms if form.fits(row)), None)
        if form is None:
            expected = ", or ".join(map(str, forms))
            raise DataError(f"{where}: expected an answer with {expected}, found {some(row, 6, 30) or 'nothing'}")
        yield where, {**row, "text": text_of(where, row, form.answer)}


def holds_samples(path: Path) -> bool:
    """Return whether lmms-eval wrote a file."""
    _, first = next(read_rows(path), ("", {}))
    return SAMPLE in first


def holds_splits(path: Path) -> bool:
    """Return whether a file of lmms-eval answers several files of questions."""
    if not holds_samples(path):
        return False
    rows = [row for _, row in read_answer_rows(path)]
    ids = [row["question_id"] for row in rows if "question_id" in row]
    return len({*ids}) < len(ids) or len({row["category"] for row in rows if "category" in row}) > 1


def of_split(rows: Sequence[Placed], split: str, questions: Mapping[str, str]) -> list[Placed]:
    """Return the samples that answer the questions of a split.

    If samples name several categories, these are the ones whose category is a word of the split's name. If ids start
    again, the samples form blocks, and these are the block with the split's questions.
    """
    if len({row["category"] for _, row in rows if "category" in row}) > 1:
        return [placed for placed in rows if placed[1].get("category") in split.split()]
    blocks = _blocks(rows)
    fitting = (block for block in blocks if all(_asks(row, questions) for _, row in block))
    return next(fitting, blocks[0])  # of a block that does not fit, the reader names the first row


def _asks(row: Mapping[str, Any], questions: Mapping[str, str]) -> bool:
    return questions.get(str(row.get("question_id")), "\0") in str(row.get("question", ""))


def _blocks(rows: Sequence[Placed]) -> list[list[Placed]]:
    """Divide rows into blocks: a repeated id begins a new block."""
    blocks: list[list[Placed]] = [[]]
    seen: set[str] = set()
    for where, row in rows:
        if (id_ := str(row.get("question_id"))) in seen:
            blocks.append([])
            seen.clear()
        seen.add(id_)
        blocks[-1].append((where, row))
    return blocks


def _sample(where: str, row: dict[str, Any]) -> dict[str, Any]:
    said = row[SAMPLE]
    while isinstance(said, list):
        if len(said) != 1:
            raise DataError(f"{where}: {SAMPLE}: expected one answer, got {len(said)}: {brief(said)}")
        said = said[0]
    about: dict[str, Any] = {}
    for inside in row.values():
        about |= {name: inside[name] for name in ABOUT if name in inside} if isinstance(inside, dict) else {}
    asked = {"question": row["input"]} if isinstance(row.get("input"), str) else {}
    return about | asked | {"text": text_of(where, {SAMPLE: said}, SAMPLE)}
