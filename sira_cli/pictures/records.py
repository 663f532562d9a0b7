"""Rows of files that are records of sira: which rows are, the picture of each, and the newest record of a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sira_cli.pictures.rows import Row, read_rows

SCHEMAS = ("sira.caption/", "sira.ask/", "sira.check/")
T = TypeVar("T")


def is_record(row: Mapping[str, Any]) -> bool:
    """Return whether a row is a record of sira, of a picture that failed or not."""
    return str(row.get("schema", "")).startswith(SCHEMAS)


def record_name(record: Mapping[str, Any]) -> str:
    """Return the name by which a record's picture, or question about it, is known."""
    return str(record.get("id") or record["file_name"])


def is_failure(record: Mapping[str, Any]) -> bool:
    """Return whether a record, or a row of another tool in the place of one, is of a picture that failed."""
    return bool(record.get("status", "ok") != "ok")


def newest(rows: Iterable[T], name_of: Callable[[T], str | None]) -> Iterator[T]:
    """Yield rows that are no records as they come, and then each picture's newest record, as pictures come first.

    A run that was stopped, or that tried failed pictures again, has several records of a picture in its file.

    Args:
        rows: of a file, in order.
        name_of: returns the name of a record's picture, or None for another row.
    """
    records: dict[str, T] = {}
    for row in rows:
        name = name_of(row)
        if name is None:
            yield row
        else:
            records[name] = row
    yield from records.values()


def read_newest(path: Path) -> Iterator[Row]:
    """Yield the place and the content of a file's rows; of records, each picture's newest.

    Raises:
        DataError: a row cannot be read.
    """
    return newest(read_rows(path), lambda row: record_name(row[1]) if is_record(row[1]) else None)
