"""Rows from data files, each with its place: JSON lines, one JSON array, tables of text, Parquet."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError, SettingsError, install
from sira_cli.files import encoding_of, not_utf8
from sira_cli.pictures.names import is_base64, is_utf8, one_line

Row = tuple[str, dict[str, Any]]  # the place, such as `file: line 3`, and the values
_PIECE = 2**20  # characters


def read_rows(path: Path, columns: Collection[str] = ()) -> Iterator[Row]:
    """Yield the rows of a file one by one: it may not fit into memory. A Parquet file is read in `columns` only."""
    match path.suffix.lower():
        case ".parquet":
            return _parquet_rows(path, columns)
        case ".csv" | ".tsv":
            return _table_rows(path)
    return _json_rows(path)


def _json_rows(path: Path) -> Iterator[Row]:
    lines, begun = enumerate(_lines(path), start=1), False
    for number, line in lines:
        if not begun and line.lstrip().startswith("["):
            rows = parse_json(path, line + "".join(more for _, more in lines), number)
            yield from (_object(f"{path}: row {place}", row) for place, row in enumerate(rows, start=1))
        elif line.strip() == "{":
            raise DataError(f"{path}: line {number}: expected one object per line, or one JSON array of objects")
        elif line.strip():
            begun = True
            yield _object(f"{path}: line {number}", parse_json(path, line.removesuffix("\n"), number))


def _object(where: str, row: Any) -> Row:
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, got {brief(row)}")
    return where, row


def _table_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a CSV or TSV file. Rows without cells are skipped; one with too few lacks the last columns."""
    lines = _lines(path)
    header = next(lines, "")
    usual = ("\t",) if path.suffix.lower() == ".tsv" else (",", ";", "\t")  # as spreadsheets save them
    delimiter = next((each for each in usual if each in header), usual[0])
    cells = csv.reader(itertools.chain([header] * bool(header), lines), delimiter=delimiter, strict=True)
    line = 1  # of the row
    try:
        columns = next(cells, [])
        line = cells.line_num + 1
        if len({*columns}) < len(columns):
            raise DataError(f"{path}: two columns have the same name: {some(columns)}")
        for number, row in enumerate(cells, start=2):
            line = cells.line_num + 1
            if len(row) > len(columns):
                has = f"row {number} has {len(row)} cells, expected {len(columns)} ({some(columns)})"
                raise DataError(f"{path}: {has}: a text with a comma or a tab needs quotes")
            if row:
                yield f"{path}: row {number}", dict(zip(columns, row, strict=False))
    except csv.Error as error:
        raise DataError(f"{path}: line {line}: is not a table: {error}") from error


def _parquet_rows(path: Path, columns: Collection[str]) -> Iterator[Row]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise SettingsError(f"{path} needs pyarrow: {install('data')}") from error
    try:
        table = parquet.ParquetFile(path)
        wanted = [name for name in table.schema_arrow.names if name in columns]
        rows = (row for batch in table.iter_batches(columns=wanted) for row in batch.to_pylist())
        yield from ((f"{path}: row {number}", row) for number, row in enumerate(rows))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file with their ends, read in pieces: `/dev/zero` is an endless line."""
    line = ""
    try:
        with path.open("rb") as data, io.TextIOWrapper(data, encoding_of(data.peek(4)[:4])) as file:
            while piece := file.readline(_PIECE):
                if "\0" in piece:
                    raise DataError(f"{path}: is not a text file: it has NUL bytes")
                line += piece
                if line.endswith("\n"):
                    yield line
                    line = ""
            if line:
                yield line
    except UnicodeError:
        raise not_utf8(str(path)) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def read_text(path: Path) -> str:
    """Return the content of a text file."""
    return "".join(_lines(path))


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


def _no_number(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


def entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the place and the text of every entry of a list: one per line, or a JSON array."""
    content = read_text(path)
    if content.lstrip().startswith("["):
        yield from ((f"{path}: row {number}", each) for number, each in enumerate(parse_json(path, content), start=1))
        return
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            yield f"{path}: line {number}", line.strip()


def text_of(where: str, row: dict[str, Any], *names: str) -> str:
    """Return the text of the first of some fields that a row has."""
    name, value = _first(where, row, names)
    if not isinstance(value, str):
        raise DataError(f"{where}: {name} is not text: {brief(value)}")
    if not is_utf8(value):
        raise DataError(f"{where}: {name} holds half a character (a lone surrogate): {brief(value)}")
    return value


def id_of(where: str, row: dict[str, Any], *names: str) -> int:
    """Return the first of some fields that a row has, as a whole number; `"7"` also counts."""
    name, value = _first(where, row, names)
    if type(value) is int or (isinstance(value, str) and value.isdecimal() and len(value) < 20):
        return int(value)
    raise DataError(f"{where}: {name} is not a whole number: {brief(value)}")


def name_of(where: str, row: dict[str, Any], *names: str) -> str:
    """Return the name of a picture, in the first of some fields that a row has."""
    name, text = _first(where, row, names)[0], text_of(where, row, *names)
    if is_base64(text):
        way = "write the picture to a file, or give the table as a data set: sira caption TABLE"
        raise DataError(f"{where}: {name} holds a picture as base64, expected its name: {way}")
    return text


def _first(where: str, row: dict[str, Any], names: Sequence[str]) -> tuple[str, Any]:
    for name in names:
        if name in row:
            return name, row[name]
    raise DataError(f"{where}: expected {' or '.join(names)}, found {some(row) or 'nothing'}")


def usual_column(names: Iterable[str], usual: Sequence[str]) -> str | None:
    """Return the first of some usual column names that exists, ignoring case."""
    lower = {str(name).lower(): str(name) for name in reversed([*names])}
    return next((lower[name] for name in usual if name in lower), None)


def brief(value: Any, most: int = 60) -> str:
    """Return a value for a message: a text in quotes, and only the beginning if it is long."""
    return _clip(repr(value), most)


def some(names: Collection[object], most: int = 8, width: int = 60) -> str:
    """Return names for a message, on one line: the first ones, and the number of the others."""
    shown = ", ".join(_clip(one_line(str(name)), width) for name in [*names][:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
