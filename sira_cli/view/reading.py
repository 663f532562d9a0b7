"""Where captions are read from, again and again: lines of JSON on disk, or things that are kept in memory."""

from __future__ import annotations

import json
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from sira_cli.errors import DataError
from sira_cli.view.index import Entry
from sira_cli.view.items import Item, error_of, things_of, warnings_of
from sira_cli.view.rows import Line, parse_line, raw_lines

Signature = tuple[Any, ...]


class Reading(ABC):
    """A place that captions are read from."""

    @abstractmethod
    def is_changed(self) -> bool:
        """Return whether it is to be read, or read again."""

    @abstractmethod
    def begins_anew(self) -> bool:
        """Return whether all of it is to be read, and not only what was added."""

    @abstractmethod
    def read(self) -> Iterator[Entry | None]:
        """Yield what is there, after an addition what was added; None for a line that cannot be read.

        Raises:
            DataError, SettingsError: nothing can be read.
        """

    @abstractmethod
    def again(self, file: int, start: int, size: int) -> Line | Item | None:
        """Return what an entry was made of; None if something else stands there now."""

    def raw(self, file: int, start: int, size: int) -> bytes | None:
        """Return the bytes that an entry was made of; None if it was not made of a line."""
        return None

    @property
    def torn(self) -> int:
        """How many unfinished lines there are, which are read again when there is more of them."""
        return 0

    @property
    def done(self) -> float:
        """How much was read, 0 to 1."""
        return 1.0


class WholeReading(Reading):
    """Things that are read as a whole, and kept: folders, tables, data sets."""

    def __init__(self, find: Callable[[], Sequence[Line | Item | None]], sign: Callable[[], Signature]) -> None:
        """Args: how they are found, and what changes if they do."""
        self._find, self._sign = find, sign
        self._signature: Signature | None = None
        self._kept: dict[int, Sequence[Line | Item | None]] = {}  # by the number of the reading

    def is_changed(self) -> bool:
        """Return whether something of it was changed."""
        return self._signature is None or self._sign() != self._signature

    def begins_anew(self) -> bool:
        """Return that it does."""
        return True

    def read(self) -> Iterator[Entry | None]:
        """Yield all of it."""
        signature, found = self._sign(), self._find()
        number = max(self._kept, default=0) + 1
        self._kept = {number: found, **{last: kept for last, kept in self._kept.items() if last == number - 1}}
        for start, kept in enumerate(found):
            yield None if kept is None else entry_of(kept, number, start)
        self._signature = signature

    def again(self, file: int, start: int, size: int) -> Line | Item | None:
        """Return what is kept."""
        return self._kept[file][start] if file in self._kept else None


@dataclass(eq=False)
class _File:
    """A file of lines, and how far it was read.

    Attributes:
        path: the file.
        file, again: the same, open for all lines, and for one of them.
        stamp: how it was when it was read.
        end: where the next line begins.
        last: the line before.
        torn: whether what comes next is no whole line.
    """

    path: Path
    file: BinaryIO
    again: BinaryIO
    stamp: Signature = ()
    end: int = 0
    last: bytes = b""
    torn: bool = False

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self.file.fileno()).st_size

    def goes_on(self) -> bool:
        """Return whether the file is as it was when it was read, or has more at its end."""
        now = _stamp(self.path)
        if now == self.stamp:
            return True
        if now is None or not self.stamp or now[:2] != self.stamp[:2] or now[2] <= self.stamp[2]:
            return False
        self.file.seek(self.end - len(self.last))
        return self.file.read(len(self.last)) == self.last

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that are not read yet, and where each begins. A last one must be whole."""
        self.stamp, self.torn = _of(os.fstat(self.file.fileno())), False
        self.file.seek(self.end)
        for raw in raw_lines(self.path, self.file):
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
    """Files of lines of JSON, which are read one after the other and stay on disk."""

    def __init__(self, find: Callable[[], list[Path]], image_column: str | None, text_column: str | None) -> None:
        """Args: how the files are found, and which columns count (None: the first usual name that a row has)."""
        self._find, self._columns = find, (image_column, text_column)
        self._files: dict[int, _File] = {}
        self._former: dict[int, _File] = {}  # entries that were not read again yet are found there
        self._paths: list[Path] | None = None
        self._lock = threading.Lock()

    def is_changed(self) -> bool:
        """Return whether a file was changed, or another one is there."""
        return self._find() != self._paths or any(_stamp(each.path) != each.stamp for each in self._files.values())

    def begins_anew(self) -> bool:
        """Return whether something else was done than to add lines."""
        return self._find() != self._paths or not all(each.goes_on() for each in self._files.values())

    def read(self) -> Iterator[Entry | None]:
        """Yield lines; only those that are new, if nothing else has changed."""
        if self.begins_anew():
            paths = self._find()
            opened = [_opened(path) for path in paths]
            first = max(self._files, default=0) + 1
            self._former, self._files = self._files, dict(enumerate(opened, start=first))
            self._paths = paths
        for number, each in self._files.items():
            for start, raw in each.lines():
                line = parse_line(raw, *self._columns)
                yield None if line is None else entry_of(line, number, start, len(raw))

    @property
    def torn(self) -> int:
        """How many files end with a line that is not whole."""
        return sum(each.torn for each in self._files.values())

    @property
    def done(self) -> float:
        """How many of the bytes were read."""
        total = sum(each.size for each in self._files.values())
        return min(1.0, sum(each.end for each in self._files.values()) / total) if total else 0.0

    def again(self, file: int, start: int, size: int) -> Line | Item | None:
        """Read a line again."""
        raw = self.raw(file, start, size)
        return None if raw is None else parse_line(raw, *self._columns)

    def raw(self, file: int, start: int, size: int) -> bytes | None:
        """Return the bytes of a line."""
        found = self._files.get(file) or self._former.get(file)
        if found is None:
            return None
        try:
            with self._lock:
                found.again.seek(start)
                return found.again.read(size)
        except OSError:
            return None


def _opened(path: Path) -> _File:
    try:
        file, again = path.open("rb"), path.open("rb", buffering=0)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    opened = _File(path, file, cast(BinaryIO, again))
    for each in (file, again):
        weakref.finalize(opened, each.close)
    return opened


def _of(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _stamp(path: Path) -> tuple[int, int, int, int] | None:
    try:
        return _of(path.stat())
    except OSError:
        return None


def signature_of(*paths: Path, recursive: bool = False) -> Signature:
    """Return what changes when files do, or something in folders; files of records and logs in these do not count."""
    found: list[object] = []
    for path in paths:
        if not path.is_dir():
            found.append((str(path), _stamp(path)))
            continue
        for folder, names, files in os.walk(path):
            del names[0 if not recursive else len(names) :]
            found += [(folder, name, _stamp(Path(folder, name))) for name in sorted(files) if not _is_ours(name)]
    return tuple(found)


def _is_ours(name: str) -> bool:
    return name.endswith(".edits.jsonl") or name.startswith(".sira-")


def entry_of(kept: Line | Item, file: int, start: int, size: int = 0) -> Entry:
    """Return what the index is told about a line, or an item."""
    if isinstance(kept, Item):
        names: tuple[str, str, int | None] = (kept.id, "", None)
        image = kept.name
    else:
        names, image = (kept.name, kept.method, 0 if kept.own else None), kept.image
    things = things_of(kept.values, kept.text)
    return Entry(
        *names,
        image,
        *(file, start, size),
        said_of(kept.text, image),
        len(kept.text),
        hash(kept.text),
        things[0].support if things else None,
        any(thing.low and thing.spans for thing in things),
        bool(error_of(kept.values)),
        bool(warnings_of(kept.values)),
        hash(str(kept.values.get("image_sha256") or "")),
    )


def said_of(text: str, image: str) -> str:
    """Return what a search looks through."""
    return f"{text} {image}".lower()
