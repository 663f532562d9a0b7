"""Find the column with the model's answer in another tool's row; a column that may hold the label never counts.

A column can hold the answer if it is named `text`, or if its name contains a word of ANSWERS and none of LABELS or
ABOUT: `response`, `model_answer`, `predicted`. `answer` and `caption` count only if the benchmark's own format uses
them for answers, and no other column could hold the answer; otherwise they hold the label.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sira_cli.data.rows import brief, some
from sira_cli.errors import DataError

_ANSWERS = """
    response responses resp resps output outputs prediction predictions predicted pred preds generated generation
    generations completion reply
"""
_LABELS = """
    label labels gt truth groundtruth ground gold golden target targets reference references ref expected correct true
    right human annotated annotation official standard ideal
"""
_ABOUT = """
    id ids index image images img picture question questions prompt query instruction object name file path url mode
    task type category subcategory group split dataset source method version metadata template system check score word
    words length tokens time taken
"""
ANSWERS, LABELS, ABOUT = (frozenset(words.split()) for words in (_ANSWERS, _LABELS, _ABOUT))
DATA_SETS = ("index", "category")  # of the tables that VLMEvalKit and lmms-eval ask from, where `answer` is the label


def answer_columns(row: Mapping[str, Any], own: str = "") -> tuple[str, ...]:
    """Return the columns of a row that could hold the model's answer.

    Args:
        row: as it stands in the file.
        own: `answer` or `caption`, where the benchmark's own format has the answer there.
    """
    found = tuple(name for name in row if _is_answer(name))
    if not own or own not in row or any(name in row for name in DATA_SETS):
        return found
    return (own, *(found or (name for name in row if name != own and _is_unknown(name, row[name]))))


def answer_in(where: str, row: Mapping[str, Any], columns: tuple[str, ...]) -> Any:
    """Return the content of the columns that could hold the answer.

    Raises:
        DataError: the columns differ.
    """
    first, *others = columns
    if other := next((name for name in others if row[name] != row[first]), ""):
        raise DataError(
            f"{where}: {some([first])} ({brief(row[first])}) and {some([other])} ({brief(row[other])}) could both be "
            "the model's answer: remove one, or name the answer text and the true one label"
        )
    return row[first]


def answer_of(where: str, row: Mapping[str, Any]) -> str:
    """Return the answer in a row of `read_answer_rows`.

    Raises:
        DataError: the row has no answer.
    """
    if "text" not in row:
        label = next((f": {name} is taken for the label" for name in ("answer", "caption") if name in row), "")
        raise DataError(f"{where}: expected the model's answer in text, found {some(row) or 'nothing'}{label}")
    return str(row["text"])


class SameColumns:
    """Checks that the rows of a file have the same columns of answers."""

    def __init__(self) -> None:
        """Begin without a row."""
        self._first: tuple[str, tuple[str, ...]] | None = None

    def check(self, where: str, columns: tuple[str, ...]) -> None:
        """Compare a row with the first one.

        Raises:
            DataError: other columns of this row could hold the answer.
        """
        first, expected = self._first = self._first or (where, columns)
        if {*columns} != {*expected}:
            here, there = (some(names) or "none" for names in (columns, expected))
            raise DataError(
                f"{where}: columns that could be the model's answer: {here}, but in {first}: {there}: "
                "give all rows the same"
            )


def _is_answer(name: str) -> bool:
    words = _words(name)
    if words & (LABELS | ABOUT):
        return False
    return name == "text" or bool(words & ANSWERS) or ("model" in words and bool(words & {"answer", "caption", "text"}))


def _is_unknown(name: str, value: Any) -> bool:
    """Return whether a column of another name, such as the model's, could hold answers."""
    if isinstance(value, bool | int | float | dict):
        return False
    words = _words(name)
    return bool(words & ANSWERS) or not (words & (LABELS | ABOUT) or words == {"model"})


def _words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name)}
