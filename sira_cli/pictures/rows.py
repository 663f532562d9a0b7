"""Rows from data files, each with its place: JSON lines, one JSON array, tables of text, Parquet."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, cast

from sira_cli.errors import DataError, SettingsError, install
from sira_cli.files import encoding_of, not_utf8
from sira_cli.parsing import from_json
from sira_cli.pictures.names import is_base64, is_uri, is_utf8, one_line, public
from sira_cli.pictures.packed import ERRORS, endings_of, unpacked

Row = tuple[str, dict[str, Any]]  # the place, such as `file: line 3`, and the values
# Usual names of the column that names pictures; the first that a table has counts.
IMAGE_COLUMNS = (
    *("image", "file_name", "image_path", "img_path", "filename", "file", "path", "img", "picture", "photo"),
    *("jpg", "jpeg", "png", "webp", "image_url", "url", "images"),
)
TEXT_TABLES = (".jsonl", ".json", ".csv", ".tsv")
_PIECE = 2**20  # characters
_LONGEST_CELL = 2**28  # characters: a cell may be a picture


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table, or the reason why it cannot be read."""

    file: str  # for messages
    number: int  # its line in a text file; in a JSON array or a Parquet file, its number; from 1
    values: dict[str, Any] = field(default_factory=dict)
    fault: str = ""  # as a message
    unit: str = "line"  # that is counted

    @property
    def where(self) -> str:
        """The place for messages: `file: line 3`."""
        return f"{self.file}: {self.unit} {self.number}"

    @property
    def place(self) -> str:
        """The name of a row that names no picture: `file/3`, without the file's folder."""
        return f"{PurePath(self.file).name}/{self.number}"


def read_rows(path: Path, columns: Collection[str] = ()) -> Iterator[Row]:
    """Yield the rows of a file one by one: it may not fit into memory. The first that cannot be read raises its error.

    A Parquet file is read in `columns` only, whose names are in lower case.
    """
    for row in read_table(path, columns):
        if row.fault:
            raise DataError(row.fault)
        yield row.where, row.values


def read_table(location: str | Path, columns: Collection[str] = ()) -> Iterator[TableRow]:
    """Yield the rows of a file, or of an object in a store; one that cannot be read has a fault, and the others follow.

    Cells of CSV and TSV files are texts; a row with too few lacks the last columns.
    """
    if endings_of(str(location))[0] == ".parquet":
        return _parquet_rows(Path(location), columns)
    return _text_rows(str(location))


def _text_rows(location: str) -> Iterator[TableRow]:
    ending, _ = endings_of(location)
    shown = _shown(location)
    lines = _Lines(location)
    try:
        if ending in (".csv", ".tsv"):
            yield from _table_rows(shown, lines, tabs=ending == ".tsv")
        else:
            yield from _json_rows(shown, lines)
    except DataError as error:  # the header, or the rest of the file
        yield TableRow(shown, lines.number + 1, fault=str(error))


def _json_rows(shown: str, lines: _Lines) -> Iterator[TableRow]:
    begun = False
    for line in lines:
        number = lines.number
        if not begun and line.lstrip().startswith("["):
            yield from _array_rows(shown, line + "".join(lines), number)
        elif line.strip() == "{":
            expected = "expected one object per line, or one JSON array of objects"
            yield TableRow(shown, number, fault=f"{shown}: line {number}: {expected}")
        elif line.strip():
            begun = True
            yield _json_row(shown, number, line.removesuffix("\n"))


def _json_row(shown: str, number: int, line: str) -> TableRow:
    if not is_utf8(line):
        return TableRow(shown, number, fault=str(not_utf8(f"{shown}: line {number}")))
    try:
        return _object(TableRow(shown, number), parse_json(Path(shown), line, number))
    except DataError as error:
        return TableRow(shown, number, fault=str(error))


def _array_rows(shown: str, text: str, line: int) -> Iterator[TableRow]:
    if not is_utf8(text):
        raise not_utf8(shown)
    for number, value in enumerate(parse_json(Path(shown), text, line), start=1):
        yield _object(TableRow(shown, number, unit="row"), value)


def _object(row: TableRow, value: Any) -> TableRow:
    if isinstance(value, dict):
        return replace(row, values=value)
    return replace(row, fault=f"{row.where}: expected a JSON object, got {brief(value)}")


def _table_rows(shown: str, lines: _Lines, *, tabs: bool) -> Iterator[TableRow]:
    """Yield the rows of a CSV or TSV file. Rows without cells are skipped, and columns without a name."""
    header = next(lines, "")
    usual = ("\t",) if tabs else (",", ";", "\t")  # as spreadsheets save them
    delimiter = next((sign for sign in usual if sign in header), usual[0])
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
    all_lines = itertools.chain([header], lines) if header else lines
    cells = csv.reader(all_lines, delimiter=delimiter, strict=True)
    columns = _header(shown, cells)
    while True:
        row = TableRow(shown, cells.line_num + 1)
        try:
            values = next(cells)
        except StopIteration:
            return
        except csv.Error as error:
            yield replace(row, fault=f"{row.where}: is not a table: {error}")
            continue
        if values:
            yield _cells(row, columns, values)


def _header(shown: str, cells: Iterator[list[str]]) -> list[str]:
    try:
        columns = next(cells, [])
    except csv.Error as error:
        raise DataError(f"{shown}: line 1: is not a table: {error}") from error
    if not all(map(is_utf8, columns)):
        raise not_utf8(f"{shown}: line 1")
    named = [name for name in columns if name]
    if len({*named}) < len(named):
        raise DataError(f"{shown}: two columns have the same name: {some(columns)}")
    return columns


def _cells(row: TableRow, columns: Sequence[str], values: Sequence[str]) -> TableRow:
    if len(values) > len(columns):
        has = f"has {len(values)} cells, expected {len(columns)} ({some(columns)})"
        return replace(row, fault=f"{row.where}: {has}: a text with a comma or a tab needs quotes")
    if not all(map(is_utf8, values)):
        return replace(row, fault=str(not_utf8(row.where)))
    named = {name: value for name, value in zip(columns, values, strict=False) if name}
    return replace(row, values=named)


def _parquet_rows(path: Path, columns: Collection[str]) -> Iterator[TableRow]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise SettingsError(f"{path} needs pyarrow: {install('data')}") from error
    try:
        table = parquet.ParquetFile(path)
        wanted = [name for name in table.schema_arrow.names if name.lower() in columns]
        number = 0
        for batch in table.iter_batches(columns=wanted):
            for values in batch.to_pylist():
                number += 1
                yield TableRow(str(path), number, values, unit="row")
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


class _Lines(Iterator[str]):
    """The lines of a text file with their ends, read in pieces: `/dev/zero` is an endless line.

    `number` is that of the last line. Bytes that are not UTF-8 become lone surrogates.
    """

    def __init__(self, location: str) -> None:
        self.number = 0
        self._lines = _lines(location)

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        return line


def _lines(location: str) -> Iterator[str]:
    shown = _shown(location)
    line = ""
    try:
        with unpacked(location) as plain, io.BufferedReader(cast(io.RawIOBase, plain)) as data:
            encoding = encoding_of(data.peek(4)[:4])
            file = io.TextIOWrapper(data, encoding, errors="surrogateescape")
            while piece := file.readline(_PIECE):
                if "\0" in piece:
                    raise DataError(f"{shown}: is not a text file: it has NUL bytes")
                line += piece
                if line.endswith("\n"):
                    yield line
                    line = ""
            if line:
                yield line
    except UnicodeError:
        raise not_utf8(shown) from None
    except ERRORS as error:
        raise DataError(f"{shown}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _shown(location: str) -> str:
    return public(location) if is_uri(location) else location


def read_text(path: Path) -> str:
    """Return the content of a text file."""
    text = "".join(_lines(str(path)))
    if not is_utf8(text):
        raise not_utf8(str(path))
    return text


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    return parse_json(path, read_text(path))


def parse_json(path: Path, text: str, line: int = 1) -> Any:
    """Parse JSON from a file; its text begins at `line`."""
    try:
        return from_json(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise DataError(f"{path}: is empty, expected JSON") from error
        is_cut = error.pos >= len(text.rstrip()) or "Unterm" in error.msg
        cut = ": it seems to be cut off" if is_cut else ""
        raise DataError(f"{path}: line {line + error.lineno - 1} is not JSON: {error.msg}{cut}") from error
    except ValueError as error:  # NaN, numbers of thousands of digits, too many brackets
        raise DataError(f"{path}: line {line}: cannot be read as JSON: {error}") from error


def _no_number(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


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
    name, value = _first(where, row, names)
    if not isinstance(value, str):
        raise DataError(f"{where}: {name} is not text: {brief(value)}")
    if not is_utf8(value):
        raise DataError(f"{where}: {name} holds half a character (a lone surrogate): {brief(value)}")
    return value


def id_of(where: str, row: dict[str, Any], *names: str) -> int:
    """Return the first of some fields that a row has, as a whole number; `"7"` also counts."""
    name, value = _first(where, row, names)
    is_digits = isinstance(value, str) and value.isdecimal() and len(value) < 20
    if type(value) is int or is_digits:
        return int(value)
    raise DataError(f"{where}: {name} is not a whole number: {brief(value)}")


def name_of(where: str, row: dict[str, Any], *names: str) -> str:
    """Return the name of a picture, in the first of some fields that a row has."""
    name, _ = _first(where, row, names)
    text = text_of(where, row, name)
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
    columns: dict[str, str] = {}  # by their names in lower case
    for name in map(str, names):
        columns.setdefault(name.lower(), name)
    for name in usual:
        if name in columns:
            return columns[name]
    return None


def brief(value: Any, most: int = 60) -> str:
    """Return a value for a message: a text in quotes, and only the beginning if it is long."""
    return _clip(repr(value), most)


def some(names: Collection[object], most: int = 8, width: int = 60) -> str:
    """Return names for a message, on one line: the first ones, and the number of the others."""
    shown = ", ".join(_clip(one_line(str(name)), width) for name in itertools.islice(names, most))
    if len(names) > most:
        shown += f" and {len(names) - most:,} more"
    return shown


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
