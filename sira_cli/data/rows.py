"""Rows from data files, each with its place: JSON lines, one JSON array, tables of text."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError
from sira_cli.files import encoding_of, not_utf8
from sira_cli.pictures.names import is_utf8, one_line

_PIECE = 2**20  # characters


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place of every row, such as `file: line 3`, and its object."""
    lines, begun = enumerate(_lines(path), start=1), False
    for number, line in lines:
        if not begun and line.lstrip().startswith("["):
            content = line + "".join(more for _, more in lines)
            for place, row in enumerate(parse_json(path, content, number), start=1):
                yield _object(f"{path}: row {place}", row)
            return
        if line.strip() == "{":
            raise DataError(f"{path}: line {number}: expected one object per line, or one JSON array of objects")
        if line.strip():
            begun = True
            yield _object(f"{path}: line {number}", parse_json(path, line.removesuffix("\n"), number))


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file with their ends, one by one: it may not fit into memory."""
    pieces: list[str] = []
    for piece in _pieces(path):
        pieces.append(piece)
        if piece.endswith("\n"):
            yield "".join(pieces)
            pieces = []
    if pieces:
        yield "".join(pieces)


def _pieces(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, long ones in pieces: `/dev/zero` is an endless line."""
    try:
        with path.open("rb") as data, io.TextIOWrapper(data, encoding_of(data.peek(4)[:4])) as file:
            while piece := file.readline(_PIECE):
                if "\0" in piece:
                    raise DataError(f"{path}: is not a text file: it has NUL bytes")
                yield piece
    except UnicodeError:
        raise not_utf8(str(path)) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _cells(path: Path) -> Iterator[list[str]]:
    """Yield the rows of a CSV or (by its name) TSV file, including the header."""
    lines = _lines(path)
    header = next(lines, "")
    usual = ("\t",) if path.suffix.lower() == ".tsv" else (",", ";", "\t")  # as spreadsheets save them
    delimiter = next((each for each in usual if each in header), usual[0])
    rows = csv.reader(itertools.chain([header] if header else [], lines), delimiter=delimiter, strict=True)
    first = 1  # line of the row
    try:
        for row in rows:
            yield row
            first = rows.line_num + 1
    except csv.Error as error:
        advice = "" if "larger" in str(error) else ": quotes around a cell come in pairs, those inside it are doubled"
        raise DataError(f"{path}: line {first}: is not a table: {error}{advice}") from error


def read_table(path: Path) -> tuple[tuple[str, ...], Iterator[tuple[str, dict[str, Any]]]]:
    """Return the columns of a CSV or TSV file, and its rows one by one, each with its place.

    Rows without cells are skipped; a row with fewer cells than the header lacks the last columns.
    """
    cells = _cells(path)
    columns = tuple(next(cells, ()))
    if len({*columns}) < len(columns):
        raise DataError(f"{path}: two columns have the same name: {some(columns)}")
    return columns, _table_rows(path, columns, cells)


def _table_rows(
    path: Path, columns: tuple[str, ...], cells: Iterator[list[str]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, row in enumerate(cells, start=2):
        if len(row) > len(columns):
            raise DataError(
                f"{path}: row {number} has {len(row)} cells, expected {len(columns)} ({some(columns)}): "
                "a text with a comma or a tab needs quotes"
            )
        if row:
            yield f"{path}: row {number}", dict(zip(columns, row, strict=False))


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    return parse_json(path, read_text(path))


def parse_json(path: Path, text: str, line: int = 1) -> Any:
    """Parse JSON from a file; its text begins at `line`."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise DataError(f"{path}: is empty, expected JSON") from error
        cut = ": the file seems to be cut off" if error.pos >= len(text.rstrip()) or "Unterm" in error.msg else ""
        raise DataError(f"{path}: line {line + error.lineno - 1} is not JSON: {error.msg}{cut}") from error
    except (ValueError, RecursionError) as error:  # NaN, numbers of thousands of digits, thousands of brackets
        raise DataError(f"{path}: line {line}: cannot be read as JSON: {error}") from error


def read_text(path: Path) -> str:
    """Return the content of a text file."""
    return "".join(_pieces(path))


def entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the place and the text of every entry of a list: one per line, or a JSON array."""
    content = read_text(path)
    if content.lstrip().startswith("["):
        for number, entry in enumerate(parse_json(path, content), start=1):
            yield f"{path}: row {number}", entry
        return
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            yield f"{path}: line {number}", line.strip()


def text_of(where: str, row: dict[str, Any], *names: str) -> str:
    """Return the text of the first of some fields that a row has."""
    for name in names:
        if name in row:
            if not isinstance(row[name], str):
                raise DataError(f"{where}: {name} is not text: {brief(row[name])}")
            if not is_utf8(row[name]):
                raise DataError(f"{where}: {name} holds half a character (a lone surrogate): {brief(row[name])}")
            return str(row[name])
    raise DataError(f"{where}: expected {' or '.join(names)}, found {some(row) or 'nothing'}")


def id_of(where: str, row: dict[str, Any], *names: str) -> int:
    """Return the first of some fields that a row has, as a whole number; `"7"` also counts."""
    for name in names:
        if name in row:
            value = row[name]
            if type(value) is int or (isinstance(value, str) and value.isdecimal() and len(value) < 20):
                return int(value)
            raise DataError(f"{where}: {name} is not a whole number: {brief(value)}")
    raise DataError(f"{where}: expected {' or '.join(names)}, found {some(row) or 'nothing'}")


def brief(value: Any, most: int = 60) -> str:
    """Return a value for a message: a text in quotes, and only the beginning if it is long."""
    return _clip(repr(value), most)


def some(names: Collection[object], most: int = 8, width: int = 60) -> str:
    """Return names for a message, on one line: the first ones, and the number of the others."""
    shown = ", ".join(_clip(one_line(str(name)), width) for name in [*names][:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def _object(where: str, row: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, got {brief(row)}")
    return where, row


def _no_number(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")
