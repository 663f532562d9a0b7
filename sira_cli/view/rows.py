"""The rows of a file of captions; bad lines are counted and skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sira_cli.data.captions.files import (
    IMAGE_COLUMNS,
    TEXT_COLUMNS,
    CaptionFile,
    is_failure,
    is_record,
    picture_name,
    usual_column,
)
from sira_cli.data.records.table_rows import table_rows
from sira_cli.errors import DataError
from sira_cli.pictures.names import is_utf8
from sira_cli.pictures.tables import is_table

MARK = b"\xef\xbb\xbf"  # that a text is UTF-8, at the beginning of some files


@dataclass(frozen=True, slots=True)
class CaptionLine:
    """A row of a file of captions.

    Attributes:
        image: the picture's name.
        text: the caption; empty without one.
        values: all fields.
        raw: the line, if it is JSON.
        text_column, image_column: the keys of the two.
    """

    image: str
    text: str
    values: Mapping[str, Any]
    raw: bytes | None
    text_column: str
    image_column: str

    @property
    def own(self) -> bool:
        """Whether it is a record of sira; the newest about a picture counts."""
        return is_record(self.values)

    @property
    def name(self) -> str:
        """The picture's identity in the file."""
        given = self.values.get("id") if self.own else None
        return given if isinstance(given, str) and given else self.image

    @property
    def method(self) -> str:
        """The method that wrote the text, in a record of sira."""
        return str(self.values.get("method", "")) if self.own else ""


def is_lines(path: Path) -> bool:
    """Return whether a file holds lines of JSON that can be read one by one.

    Raises:
        DataError: the file cannot be read.
    """
    if path.suffix.lower() != ".jsonl":
        return False
    try:
        with path.open("rb") as file:
            return not file.read(64).lstrip(MARK + b" \t\r\n").startswith(b"[")
    except OSError as error:
        raise _unreadable(path, error) from error


def read_rows(path: Path, image_column: str | None, text_column: str | None) -> list[CaptionLine | None]:
    """Return the rows of a file of captions that is read as a whole; None for unreadable rows.

    Args:
        path: .jsonl with one array, .json, .csv, .tsv, or a table of records.
        image_column, text_column: the columns' names; None: the first usual name that a row has.

    Raises:
        DataError: the file cannot be read, or lacks a column.
    """
    if is_table(path.name):
        return [_line(row, image_column, text_column) for _, row in table_rows(path)]
    table = CaptionFile.read(path, image_column, text_column)
    columns = (table.text_column, table.image_column)
    return [CaptionLine(row.image, row.text or "", row.values, None, *columns) for row in table.rows]


def raw_lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of an open file, with their ends.

    Raises:
        DataError: it cannot be read.
    """
    try:
        yield from iter(file.readline, b"")  # a file itself would be closed with this generator
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be read: {error.strerror}")


def parse_line(raw: bytes, image_column: str | None, text_column: str | None) -> CaptionLine | None:
    """Return a line of JSON, if it has a picture and a valid text."""
    raw = raw.removeprefix(MARK)
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return _line(values, image_column, text_column, raw) if isinstance(values, dict) else None


def _line(
    values: dict[str, Any], image_column: str | None, text_column: str | None, raw: bytes | None = None
) -> CaptionLine | None:
    """Return a row, if it has a picture and a valid text."""
    image = _column(values, image_column, IMAGE_COLUMNS)
    column = _column(values, text_column, TEXT_COLUMNS)
    text = values.get(column) if column else None
    if image is None or not isinstance(text, str | None):
        return None
    try:
        name = picture_name("", values, image)
    except DataError:
        return None
    if not _is_name(name):
        return None
    if text is not None and not is_utf8(text):
        return None
    return CaptionLine(name, "" if is_failure(values) or text is None else text, values, raw, column or "text", image)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value and is_utf8(value)


def _column(values: Mapping[str, Any], given: str | None, usual: tuple[str, ...]) -> str | None:
    if given is not None:
        return given if given in values else None
    if usual[0] in values:
        return usual[0]
    return usual_column(values, usual)
