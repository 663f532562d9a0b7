"""A file of captions: JSON lines or array, CSV, TSV; read row by row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sira_cli.data.groups import SEVERAL, names_in
from sira_cli.data.rows import read_rows, read_table, some, text_of
from sira_cli.errors import DataError
from sira_cli.pictures.names import joined

TABLES = (".csv", ".tsv")
ENDINGS = (".jsonl", ".json", *TABLES)
# Usual names of the columns of captions; the first that a file has counts.
IMAGE_COLUMNS = ("file_name", "image", "image_path", "img_path", "filename", "file", "path", "img", "url", SEVERAL)
TEXT_COLUMNS = ("text", "caption", "description", "answer")


@dataclass(frozen=True, slots=True)
class CaptionRow:
    """A row of a file of captions.

    Attributes:
        image: the picture's name.
        text: the caption; None: none, or the row is a record of a picture that failed.
        failed: whether it is such a record.
    """

    image: str
    text: str | None
    failed: bool

    @classmethod
    def of(cls, where: str, values: dict[str, Any], image_column: str, text_column: str) -> CaptionRow:
        """Return a row that stands somewhere, such as in `captions.csv: row 3`."""
        image = picture_name(where, values, image_column)
        if not image or "\0" in image:
            raise DataError(f"{where}: {image_column} is empty or has a NUL byte: expected the name of a picture")
        text = None if values.get(text_column) is None else text_of(where, values, text_column)
        failed = is_failure(values)
        return cls(image, None if failed else text, failed)


@dataclass(frozen=True)
class CaptionFile:
    """A file of captions.

    Attributes:
        path: the file.
        image_column, text_column: columns of names and of captions.
        own: whether it holds sira's records.
        newest: the newest record, and its place, of each picture with several.
    """

    path: Path
    image_column: str
    text_column: str
    own: bool
    newest: Mapping[Any, tuple[str, dict[str, Any]]]

    @classmethod
    def read(cls, path: Path, image_column: str | None = None, text_column: str | None = None) -> CaptionFile:
        """Scan a file. Its rows are not kept: it may not fit into memory."""
        names, own, newest, by = _scan(path, image_column)
        if own is None:
            raise DataError(f"{path}: holds no captions")
        image = _column(path, names, "image_column", image_column, IMAGE_COLUMNS)
        text = _column(path, names, "text_column", text_column, TEXT_COLUMNS)
        if own and image != by:
            newest = _scan(path, image).newest
        return cls(path, image, text, own, newest)

    @property
    def rows(self) -> Iterator[CaptionRow]:
        """Rows, read again one by one; of several records of a picture, the newest."""
        again = dict(self.newest)
        for where, values in _values(self.path)[1]:
            if self.own and (same := _same(values, self.image_column)) in self.newest:
                if same not in again:
                    continue
                where, values = again.pop(same)
            yield CaptionRow.of(where, values, self.image_column, self.text_column)


class _Scan(NamedTuple):
    """Result of scanning a file. `own`: None without rows; `by`: the column that identifies the picture."""

    names: tuple[str, ...]
    own: bool | None
    newest: dict[Any, tuple[str, dict[str, Any]]]
    by: str | None


def _scan(path: Path, by: str | None) -> _Scan:
    columns, rows = _values(path)
    names = dict.fromkeys(columns)
    own: bool | None = None
    seen: set[Any] = set()
    newest: dict[Any, tuple[str, dict[str, Any]]] = {}
    for where, values in rows:
        names.update(dict.fromkeys(values))
        if own is None:
            own, by = is_record(values), by or usual_column(names, IMAGE_COLUMNS)
        if own:
            same = _same(values, by)
            if same in seen:
                newest[same] = where, values
            seen.add(same)
    return _Scan(tuple(names), own, newest, by)


def _values(path: Path) -> tuple[tuple[str, ...], Iterator[tuple[str, dict[str, Any]]]]:
    return read_table(path) if path.suffix.lower() in TABLES else ((), read_rows(path))


def _same(values: Mapping[str, Any], by: str | None) -> Any:
    """Return the value that identifies a record's picture."""
    return values.get("id", values.get(by))  # type: ignore[arg-type] # None is not a column


def picture_name(where: str, values: Mapping[str, Any], column: str) -> str:
    """Return a row's name of its picture, or that of the group that it lists."""
    listed = column == SEVERAL or isinstance(values.get(column), list)
    names = names_in(where, values, column) if listed else None
    return joined(names) if names else text_of(where, dict(values), column)


def is_record(values: Mapping[str, Any]) -> bool:
    """Return whether a row is a record of sira."""
    return str(values.get("schema", "")).startswith("sira.")


def is_failure(values: Mapping[str, Any]) -> bool:
    """Return whether a row is a record of a picture that failed."""
    return is_record(values) and values.get("status", "ok") != "ok"


def _column(path: Path, names: Sequence[str], option: str, given: str | None, usual: Sequence[str]) -> str:
    if given is not None:
        if given in names:
            return given
        raise DataError(f"{path}: no column {given!r} (`{option}=`), but {some(names) or 'none at all'}")
    found = usual_column(names, usual)
    if found is not None:
        return found
    raise DataError(
        f"{path}: expected a column {', '.join(usual[:-1])} or {usual[-1]}, found {some(names) or 'none'}: "
        f"name yours with `{option}=`"
    )


def usual_column(names: Iterable[str], usual: Sequence[str]) -> str | None:
    """Return the first of some usual column names that exists, ignoring case."""
    lower = {str(name).lower(): str(name) for name in reversed([*names])}
    return next((lower[name] for name in usual if name in lower), None)


def metadata_in(folder: Path) -> Path | None:
    """Return a folder's metadata file, as Hugging Face's `ImageFolder` expects it."""
    files = (folder / name for name in ("metadata.jsonl", "metadata.csv"))
    return next((file for file in files if file.is_file()), None)
