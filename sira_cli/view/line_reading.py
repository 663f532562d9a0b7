"""Files of lines of JSON, read one after the other, which stay on disk."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sira_cli.data.captions.files import CaptionRow
from sira_cli.errors import DataError
from sira_cli.view.index import Entry
from sira_cli.view.items import CaptionItem
from sira_cli.view.reading import Reading, Signature, entry_of, row_of, stamp, stamp_of, unreadable

MARK = b"\xef\xbb\xbf"  # that a text is UTF-8, at the beginning of some files
_OPEN = 64  # files that stay open at once


@dataclass
class _File:
    """A file of lines, and the position reached.

    Attributes:
        path: the file.
        stamp: the file's state when it was read.
        end: first byte of the next line.
        last: the line before.
        torn: whether the next line is incomplete.
    """

    path: Path
    stamp: Signature = ()
    end: int = 0
    last: bytes = b""
    torn: bool = False

    @property
    def size(self) -> int:
        """Bytes of the file when it was read."""
        return int(self.stamp[2]) if self.stamp else 0

    def open(self) -> BinaryIO:
        """Open the file.

        Raises:
            DataError: the file cannot be read.
        """
        try:
            return self.path.open("rb")
        except OSError as error:
            raise unreadable(self.path, error) from error

    def _next(self, file: BinaryIO) -> bytes:
        """Return the next line of the open file; empty at its end.

        Raises:
            DataError: it cannot be read.
        """
        try:
            return file.readline()
        except OSError as error:
            raise unreadable(self.path, error) from error

    def goes_on(self) -> bool:
        """Return whether the file is unchanged since it was read, except for additions at its end."""
        now = stamp(self.path)
        if now == self.stamp:
            return True
        if now is None or not self.stamp or now[:2] != self.stamp[:2] or now[2] <= self.stamp[2]:
            return False
        with self.open() as file:
            file.seek(self.end - len(self.last))
            return file.read(len(self.last)) == self.last

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the unread complete lines, and the first byte of each."""
        with self.open() as file:
            self.stamp, self.torn = stamp_of(os.fstat(file.fileno())), False
            file.seek(self.end)
            while raw := self._next(file):
                if not raw.endswith(b"\n") and raw.strip() and not _is_json(raw):
                    self.torn = True  # it may be written right now
                    return
                start, self.end, self.last = self.end, self.end + len(raw), raw
                if raw.strip():
                    yield start, raw


def _is_json(raw: bytes) -> bool:
    try:
        json.loads(raw)
    except (ValueError, RecursionError):
        return False
    return True


class LineReading(Reading):
    """Files of lines of JSON, read one after the other, which stay on disk."""

    def __init__(self, find: Callable[[], list[Path]], image_column: str | None, text_column: str | None) -> None:
        """Args: function that finds the files, and the columns (None: the first usual name that a row has)."""
        self._find, self._columns = find, (image_column, text_column)
        self._files: dict[int, _File] = {}
        self._former: dict[int, _File] = {}  # entries that were not read again yet are found there
        self._paths: list[Path] | None = None
        self._lock = threading.Lock()
        self._open: OrderedDict[int, BinaryIO] = OrderedDict()  # those from which lines were read last
        weakref.finalize(self, _close, self._open)

    def is_changed(self) -> bool:
        """Return whether a file was changed or replaced."""
        return self._find() != self._paths or any(stamp(each.path) != each.stamp for each in self._files.values())

    def starts_over(self) -> bool:
        """Return whether there were other changes than added lines."""
        return self._find() != self._paths or not all(each.goes_on() for each in self._files.values())

    def read(self) -> Iterator[Entry | None]:
        """Yield all lines, or only new ones if nothing else has changed."""
        if self.starts_over():
            paths = self._find()
            for path in paths:
                _File(path).open().close()  # or nothing is begun
            first = max(self._files, default=0) + 1
            self._former, self._files = self._files, {n: _File(path) for n, path in enumerate(paths, start=first)}
            self._paths = paths
        for number, each in self._files.items():
            for start, raw in each.lines():
                if not start:
                    with self._lock:
                        self._opened(number)  # so that lines can be read when another file has taken its place
                line = parse_line(raw, *self._columns)
                yield None if line is None else entry_of(line, number, start, len(raw))

    @property
    def torn(self) -> int:
        """Number of files that end with an incomplete line."""
        return sum(each.torn for each in self._files.values())

    @property
    def done(self) -> float:
        """Share of the bytes read so far."""
        total = sum(each.size for each in self._files.values())
        return min(1.0, sum(each.end for each in self._files.values()) / total) if total else 0.0

    def again(self, file: int, start: int, size: int) -> CaptionRow | CaptionItem | None:
        """Read a line again."""
        raw = self.raw(file, start, size)
        return None if raw is None else parse_line(raw, *self._columns)

    def raw(self, file: int, start: int, size: int) -> bytes | None:
        """Return the bytes of a line."""
        try:
            with self._lock:
                opened = self._opened(file)
                if opened is None:
                    return None
                opened.seek(start)
                return opened.read(size)
        except (OSError, DataError):
            return None

    def _opened(self, file: int) -> BinaryIO | None:
        """Return a file that was read, open; None if it was replaced."""
        if file not in self._open:
            found = self._files.get(file) or self._former.get(file)
            if found is None:
                return None
            opened = found.open()
            if stamp_of(os.fstat(opened.fileno()))[:2] != found.stamp[:2]:
                opened.close()
                return None
            self._open[file] = opened
        self._open.move_to_end(file)
        while len(self._open) > _OPEN:
            self._open.popitem(last=False)[1].close()
        return self._open[file]

    def forget(self) -> None:
        """Request a new reading of everything."""
        self._paths = None


def _close(files: OrderedDict[int, BinaryIO]) -> None:
    for file in files.values():
        file.close()


def parse_line(raw: bytes, image_column: str | None, text_column: str | None) -> CaptionRow | None:
    """Return a line of JSON, if it has a picture and a valid text."""
    raw = raw.removeprefix(MARK)
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return row_of(values, image_column, text_column, raw) if isinstance(values, dict) else None
