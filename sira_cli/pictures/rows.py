"""Rows of Parquet and Arrow files, read in turn: about a row group is in memory, however large the file is."""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from sira_cli.errors import SettingsError
from sira_cli.pictures import stores
from sira_cli.pictures.names import one_line

PARQUET, ARROW = ".parquet", (".arrow", ".feather")
_ROWS = 8  # of a Parquet file, that are decoded together
_BATCHES = 2  # held in memory: threads ask for rows a little out of order
_BUFFER = 2**22  # bytes of a column that are fetched together


def schema(location: str) -> Any:
    """Return the schema of a table.

    Raises:
        OSError, ValueError: the file cannot be read, or is not a table.
        SettingsError: pyarrow is missing.
    """
    return _schema(location, None if stores.is_uri(location) else _version(location))


@functools.lru_cache(maxsize=16)
def _schema(location: str, version: tuple[int, ...] | None) -> Any:
    found = _parquet(location).schema_arrow if _is_parquet(location) else _arrow(location)[0]
    for name in found.names:
        if len(found.get_all_field_indices(name)) > 1:
            raise ValueError(f"two columns have the name {one_line(name)}")
    return found


def count(location: str) -> int:
    """Return the number of rows.

    Raises:
        OSError, ValueError, SettingsError: as `schema`.
    """
    if _is_parquet(location):
        return int(_parquet(location).metadata.num_rows)
    return sum(batch.num_rows for batch in _arrow(location)[1])


def batches(location: str, columns: tuple[str, ...], first: int = 0, rows: int = _ROWS) -> Iterator[tuple[int, Any]]:
    """Yield record batches, each with the number of its first row; the first one holds row `first`.

    Raises:
        OSError, ValueError, SettingsError: as `schema`.
    """
    number = 0
    if not _is_parquet(location):
        for batch in _arrow(location)[1]:
            if number + batch.num_rows > first:
                yield number, batch.select(list(columns))
            number += batch.num_rows
        return
    file = _parquet(location)
    for group in range(file.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        if number + size > first:
            # Group by group: a batch across two of them is lost with either.
            at = number
            for batch in file.iter_batches(rows, row_groups=[group], columns=list(columns)):
                yield at, batch
                at += batch.num_rows
        number += size


def all_batches(location: str, rows: int) -> Iterator[Any]:
    """Yield all record batches. Rows that cannot be read in a damaged file are replaced by empty ones.

    Raises:
        OSError, ValueError, SettingsError: as `schema`; of a file in a store, also where rows cannot be read, because
            the store may answer later.
    """
    if not _is_parquet(location):
        yield from _arrow(location)[1]
        return
    import pyarrow

    file = _parquet(location)
    for group in range(file.num_row_groups):
        left = file.metadata.row_group(group).num_rows
        try:
            for batch in file.iter_batches(rows, row_groups=[group]):
                left -= batch.num_rows
                yield batch
        except (OSError, ValueError):
            if stores.is_uri(location):
                raise
            empty = [pyarrow.nulls(left, field.type) for field in file.schema_arrow]
            yield pyarrow.record_batch(empty, schema=file.schema_arrow)


class Cursor:
    """Reader of some columns of a table, row by row; going back is slow. Safe in threads."""

    def __init__(self, location: str, columns: tuple[str, ...]) -> None:
        self._location, self._columns = location, columns
        self._lock = threading.Lock()
        self._rest: Iterator[tuple[int, Any]] = iter(())
        self._held: deque[tuple[int, Any]] = deque(maxlen=_BATCHES)

    def row(self, number: int) -> dict[str, Any]:
        """Return the columns of a row.

        Raises:
            OSError, ValueError, SettingsError: as `schema`; no such row.
        """
        with self._lock:
            try:
                return self._row(number)
            except (OSError, ValueError):
                self._forget()  # a row that was passed on the way may be damaged, and this one not
            try:
                return self._row(number)
            except BaseException:
                self._forget()
                raise

    def _forget(self) -> None:
        self._rest = iter(())
        self._held.clear()

    def _row(self, number: int) -> dict[str, Any]:
        end = self._held[-1][0] + self._held[-1][1].num_rows if self._held else 0
        if not self._held or number < self._held[0][0] or number > end + 100 * _ROWS:
            self._held.clear()
            self._rest = batches(self._location, self._columns, number)
        while True:
            for start, batch in self._held:
                if start <= number < start + batch.num_rows:
                    return {name: batch.column(name)[number - start].as_py() for name in self._columns}
            following = next(self._rest, None)
            if following is None:
                raise ValueError(f"the file has no row {number}")
            self._held.append(following)


def cursor(location: str, columns: tuple[str, ...]) -> Cursor:
    """Return the cursor that all rows of a table share, until the file changes."""
    return _cursor(location, columns, None if stores.is_uri(location) else _version(location))


@functools.lru_cache(maxsize=4)
def _cursor(location: str, columns: tuple[str, ...], version: tuple[int, ...] | None) -> Cursor:
    return Cursor(location, columns)


def _version(location: str) -> tuple[int, ...] | None:
    """Return a version that changes when the file is replaced; None: no such file."""
    try:
        found = os.stat(location)  # noqa: PTH116 (for every row)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _is_parquet(location: str) -> bool:
    return location.lower().endswith(PARQUET)


def _parquet(location: str) -> Any:
    source = _source(location)
    from pyarrow import parquet

    return parquet.ParquetFile(source, buffer_size=_BUFFER, pre_buffer=False)


def _arrow(location: str) -> tuple[Any, Iterator[Any]]:
    """Return schema and record batches of a file in either of Arrow's formats; `datasets` writes streams."""
    source = _source(location)
    import pyarrow

    data = pyarrow.memory_map(source) if isinstance(source, str) else source
    try:
        stream = pyarrow.ipc.open_stream(data)
    except pyarrow.ArrowInvalid:
        data.seek(0)
        file = pyarrow.ipc.open_file(data)
        return file.schema, (file.get_batch(number) for number in range(file.num_record_batches))
    return stream.schema, iter(stream)


def _source(location: str) -> Any:
    """Return an object of a store, open, or the path of a file on this machine, for pyarrow."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise SettingsError(f"{one_line(location)} needs pyarrow: pip install 'sira-cli[parquet]'") from error
    return stores.open_file(location) if stores.is_uri(location) else location
