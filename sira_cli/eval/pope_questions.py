"""Question files of POPE, and of benchmarks with its format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sira_cli.errors import DataError
from sira_cli.pictures.rows import brief, id_of, read_rows, text_of


@dataclass(frozen=True)
class PopeQuestion:
    """A row of a question file; `expected`: whether yes is the true answer."""

    number: int
    image: str
    text: str
    expected: bool


def read_questions(path: Path) -> list[PopeQuestion]:
    """Read a file of POPE: JSON lines or a JSON array of `image`, `text`, `label` and, maybe, `question_id`."""
    questions: dict[int, PopeQuestion] = {}
    for where, row in read_rows(path):
        label = text_of(where, row, "label").strip().lower()
        if label not in ("yes", "no"):
            raise DataError(f"{where}: label must be yes or no, got {brief(row['label'])}")
        number = id_of(where, row, "question_id") if "question_id" in row else len(questions) + 1
        if number in questions:
            raise DataError(f"{where}: question_id {number} stands twice: every question needs its own")
        questions[number] = PopeQuestion(
            number, text_of(where, row, "image"), text_of(where, row, "text"), label == "yes"
        )
    if not questions:
        raise DataError(f"{path}: holds no questions")
    return list(questions.values())
