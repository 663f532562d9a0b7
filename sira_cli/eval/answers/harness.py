"""Answers saved by lmms-eval and VLMEvalKit, converted to the benchmarks' own format.

lmms-eval (`--log_samples`) writes `*_samples_TASK.jsonl`: an object per sample, with the answer in `filtered_resps`,
the prompt in `input`, and ids inside the metrics or inside `doc`. VLMEvalKit writes `MODEL_DATASET.xlsx`, or .tsv or
.json as PRED_FORMAT is set: a table with `index`, `question`, `category`, perhaps `image_path`, the label in `answer`
and the answer in `prediction`. Both may hold all splits of POPE in one file.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from sira_cli.data.rows import brief, read_cells, read_rows, some, table_of, text_of
from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.answers.columns import SameColumns, answer_columns, answer_in

FAILED = "Failed to obtain answer"  # VLMEvalKit's text in place of an answer
ABOUT = ("question_id", "image_id", "question", "Index")
SETS = ("category", "subcategory", "set_id", "figure_id")  # of HallusionBench
TABLES = (".tsv", ".csv", ".xlsx")

Placed = tuple[str, dict[str, Any]]  # where a row stands, and the row


def read_answer_rows(path: Path, own: str = "") -> Iterator[Placed]:
    """Yield the place and the content of every row of a file of answers, with the model's answer in `text`.

    A row without an answer has no `text`. Rows of the two harnesses hold only `text`, `categories` (which no other row
    has) and, as far as they are known, `question`, `question_id`, `image_id`, `Index` and `image`.

    Args:
        path: of the file.
        own: the benchmark's own name for the answer, if other tools may use it for the label: see `columns`.

    Raises:
        DataError: the file cannot be read, a row holds no single answer, or it is not clear which column holds it.
        SettingsError: it is a table of Excel, and openpyxl is missing.
    """
    same = SameColumns()
    for where, row in _table(path) if path.suffix.lower() in TABLES else read_rows(path):
        if "filtered_resps" in row:
            yield where, _lmms_eval(where, row)
            continue
        columns = answer_columns(row, own)
        same.check(where, columns)
        if columns:
            said = answer_in(where, row, columns)
            if "prediction" in row and "index" in row:
                row = _vlmevalkit(where, row, said)
            else:
                row = {**row, "text": text_of(where, row, columns[0])}
        yield where, row


def holds_splits(path: Path) -> bool:
    """Return whether a harness's file answers several files of questions."""
    rows = (row for _, row in read_answer_rows(path))
    first = next(rows, {})
    if "categories" not in first:
        return False
    everything = [first, *rows]
    ids = [row["question_id"] for row in everything if "question_id" in row]
    return len({*ids}) < len(ids) or len({each for row in everything for each in row.get("categories", ())}) > 1


def of_split(rows: Sequence[Placed], split: str, questions: Mapping[str, str]) -> list[Placed]:
    """Return the rows that answer the questions of a split; all rows if no harness wrote them.

    If rows name several categories, these are the rows whose category is a word of the split's name. If ids start
    again, the rows form blocks, and these are the block with the split's questions.

    Args:
        rows: of one file.
        split: such as `coco random`.
        questions: the split's texts, by id.
    """
    categories = {each for _, row in rows for each in row.get("categories", ())}
    if len(categories) > 1:
        return [placed for placed in rows if {*split.split()} & {*placed[1].get("categories", ())}]
    blocks = _blocks(rows)
    if len(blocks) == 1:
        return list(rows)
    fitting = (block for block in blocks if all(_asks(row, questions) for _, row in block))
    return next(fitting, blocks[0])  # of a block that does not fit, the reader names the first row


def _asks(row: Mapping[str, Any], questions: Mapping[str, str]) -> bool:
    return questions.get(str(row["question_id"]), "\0") in str(row.get("question", ""))


def _blocks(rows: Sequence[Placed]) -> list[list[Placed]]:
    """Divide rows into blocks: a repeated id begins a new block."""
    blocks: list[list[Placed]] = [[]]
    seen: set[str] = set()
    for where, row in rows:
        if "categories" in row and str(row.get("question_id")) in seen:
            blocks.append([])
            seen.clear()
        if "question_id" in row:
            seen.add(str(row["question_id"]))
        blocks[-1].append((where, row))
    return blocks


def _lmms_eval(where: str, row: dict[str, Any]) -> dict[str, Any]:
    said = row["filtered_resps"]
    while isinstance(said, list):
        if len(said) != 1:
            raise DataError(f"{where}: filtered_resps: expected one answer, got {len(said)}: {brief(said)}")
        said = said[0]
    about: dict[str, Any] = {}
    for inside in itertools.chain([row.get("doc")], row.values()):
        about = {**inside, **about} if isinstance(inside, dict) else about
    found = {"text": said, "categories": _categories(about)}
    found |= {name: about[name] for name in (*ABOUT, *SETS) if name in about}
    return found | ({"question": row["input"]} if isinstance(row.get("input"), str) else {})


def _vlmevalkit(where: str, row: dict[str, Any], said: object) -> dict[str, Any]:
    text = "" if said is None else str(said)
    if FAILED in text:
        raise DataError(f"{where}: VLMEvalKit got no answer: {brief(text)}: let it run again")
    found = {"text": text, "categories": _categories(row), "Index": row["index"]}
    if isinstance(row.get("question"), str):
        found["question"] = row["question"]
    if isinstance(row.get("image_path"), str):
        found["image"] = PurePosixPath(row["image_path"].strip("[]'\"")).name
    return found


def _categories(row: Mapping[str, Any]) -> Collection[str]:
    return [each.strip() for each in str(row.get("category") or "").split(",") if each.strip()]


def _table(path: Path) -> Iterator[Placed]:
    columns, rows = table_of(path, _sheet(path) if path.suffix.lower() == ".xlsx" else read_cells(path))
    for where, row in rows:
        if len(row) < len(columns):
            raise DataError(
                f"{where} has {len(row)} cells, expected {len(columns)} ({some(columns)}): is the file cut off?"
            )
        yield where, row


def _sheet(path: Path) -> Iterator[Sequence[Any]]:
    """Yield the rows of the first sheet, as wide as its header; texts that begin with = are not formulas."""
    try:
        from openpyxl import load_workbook
    except ImportError as error:
        raise SettingsError(f"{path}: a table of Excel needs openpyxl: pip install 'sira-cli[eval]'") from error
    try:
        book = load_workbook(path, read_only=True)
    except Exception as error:  # a damaged archive or sheet raises whatever its parsers raise
        raise DataError(f"{path}: is not a table of Excel: {brief(str(error))}") from error
    width = 0
    for cells in book.worksheets[0].iter_rows(values_only=True):
        row = [*cells]
        while row and row[-1] is None:
            row.pop()
        width = width or len(row)
        yield row and row + [None] * (width - len(row))
