"""A file of captions: JSON lines, a JSON array, CSV or TSV; which columns count, and the same rows with other texts."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError
from sira_cli.files import replacing
from sira_cli.runs.rows import read_rows, read_table, read_text, some, text_of

TABLES = (".csv", ".tsv")
ENDINGS = (".jsonl", ".json", *TABLES)
# What the columns of captions are called elsewhere; the first that a file has counts.
IMAGE_COLUMNS = ("file_name", "image", "image_path", "img_path", "filename", "file", "path", "img", "url")
TEXT_COLUMNS = ("text", "caption", "description", "answer")


@dataclass(frozen=True)
class Row:
    """A row of a file of captions.

    Attributes:
        where: where it stands, such as `captions.csv: row 3`.
        values: its columns.
        image: what it calls the picture.
        text: what it says of it; None: nothing, or the row is a record of a picture that failed.
        failed: whether it is such a record.
    """

    where: str
    values: dict[str, Any]
    image: str
    text: str | None
    failed: bool = False


@dataclass(frozen=True)
class CaptionFile:
    """A file of captions.

    Attributes:
        path: the file.
        columns: of a table, in order; empty for JSON.
        image_column, text_column: which columns count.
        is_array: whether it is one JSON array.
        own: whether it holds records of sira.
        rows: what is in it; of records about the same picture, the newest.
    """

    path: Path
    columns: tuple[str, ...]
    image_column: str
    text_column: str
    is_array: bool
    own: bool
    rows: tuple[Row, ...]

    @classmethod
    def read(cls, path: Path, image_column: str | None = None, text_column: str | None = None) -> CaptionFile:
        """Read a file.

        Args:
            path: ends in one of `ENDINGS`.
            image_column, text_column: None: the first usual name that the file has.

        Raises:
            DataError: it cannot be read, holds nothing, or lacks a column; the message names those that there are.
        """
        is_table = path.suffix.lower() in TABLES
        columns, rows = read_table(path) if is_table else ((), list(read_rows(path)))
        if not rows:
            raise DataError(f"{path}: holds no captions")
        names = columns or tuple(dict.fromkeys(name for _, values in rows for name in values))
        image = _column(path, names, "image_column", image_column, IMAGE_COLUMNS)
        text = _column(path, names, "text_column", text_column, TEXT_COLUMNS)
        own = is_record(rows[0][1])
        if own:
            rows = list({values.get("id", values.get(image)): (where, values) for where, values in rows}.values())
        is_array = not is_table and read_text(path).lstrip().startswith("[")
        found = cls(path, columns, image, text, is_array, own, ())
        return replace(found, rows=tuple(found._row(where, values) for where, values in rows))

    def _row(self, where: str, values: dict[str, Any]) -> Row:
        image = text_of(where, values, self.image_column)
        if not image:
            raise DataError(f"{where}: {self.image_column} is empty: expected the name of a picture")
        text = None if values.get(self.text_column) is None else text_of(where, values, self.text_column)
        failed = self.own and values.get("status", "ok") != "ok"
        return Row(where, values, image, None if failed else text, failed)

    def write(self, path: Path, rows: Sequence[tuple[Row, str | None]]) -> None:
        """Write rows, each with another text or as it was (None), in the form of this file.

        A record of sira whose text changes gets the first one as `draft`, and loses the scores of its words.

        Raises:
            SiraError: it cannot be written.
        """
        changed = [
            row.values if text is None or text == row.text else with_text(row.values, self.text_column, text)
            for row, text in rows
        ]
        with replacing(path) as file:
            if self.columns:
                stream = io.TextIOWrapper(file, encoding="utf-8", newline="")
                writer = csv.writer(stream, delimiter="\t" if self.path.suffix.lower() == ".tsv" else ",")
                writer.writerow(self.columns)
                writer.writerows([values.get(name, "") for name in self.columns] for values in changed)
                stream.detach()
            elif self.is_array:
                file.write(json.dumps(changed, ensure_ascii=False, indent=1).encode() + b"\n")
            else:
                file.writelines(json.dumps(values, ensure_ascii=False).encode() + b"\n" for values in changed)


def is_record(values: Mapping[str, Any]) -> bool:
    """Return whether a row is a record of sira."""
    return str(values.get("schema", "")).startswith("sira.")


def with_text(values: Mapping[str, Any], column: str, text: str) -> dict[str, Any]:
    """Return a row with another text.

    A record of sira gets the first one as `draft`, and loses the scores of its words.
    """
    if not is_record(values):
        return {**values, column: text}
    kept = {name: value for name, value in values.items() if name not in ("words", "objects")}
    return {**kept, column: text, "draft": values.get("draft", values[column])}


def _column(path: Path, names: Sequence[str], option: str, given: str | None, usual: Sequence[str]) -> str:
    if given is not None:
        if given in names:
            return given
        raise DataError(f"{path}: no column {given!r} (`{option}=`), but {some(names) or 'none at all'}")
    lower = {name.lower(): name for name in reversed(names)}
    for name in usual:
        if name in lower:
            return lower[name]
    raise DataError(
        f"{path}: expected a column {', '.join(usual[:-1])} or {usual[-1]}, found {some(names) or 'none'}: "
        f"name yours with `{option}=`"
    )
