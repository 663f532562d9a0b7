"""Sources that captions are read from repeatedly: lines of JSON on disk, or items kept in memory."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sira_cli.data.captions.files import IMAGE_COLUMNS, TEXT_COLUMNS, CaptionRow, usual_column
from sira_cli.errors import DataError
from sira_cli.view.index import Entry
from sira_cli.view.items import CaptionItem, error_of, things_of, warnings_of

Signature = tuple[Any, ...]


class Reading(ABC):
    """A source of captions."""

    @abstractmethod
    def is_changed(self) -> bool:
        """Return whether it must be read (again)."""

    @abstractmethod
    def starts_over(self) -> bool:
        """Return whether all of it must be read, not only additions."""

    @abstractmethod
    def read(self) -> Iterator[Entry | None]:
        """Yield all items, after an addition only new ones; None for a line that cannot be read.

        Raises:
            DataError, SettingsError: nothing can be read.
        """

    @abstractmethod
    def again(self, file: int, start: int, size: int) -> CaptionRow | CaptionItem | None:
        """Return the item of an entry; None if it was replaced since."""

    @abstractmethod
    def forget(self) -> None:
        """Request a new reading of everything: the items could not be kept."""

    def overlook(self) -> None:  # noqa: B027 (most kinds have nothing to do)
        """Treat the state on disk as read: the reader itself has changed it."""

    def raw(self, file: int, start: int, size: int) -> bytes | None:
        """Return the bytes of an entry's line; None if the source has no lines."""
        return None

    @property
    def torn(self) -> int:
        """Number of unfinished lines, which are read again when they grow."""
        return 0

    @property
    def done(self) -> float:
        """Share that was read, 0 to 1."""
        return 1.0


class WholeReading(Reading):
    """Sources that are read as a whole, and kept: folders, tables, data sets."""

    def __init__(
        self, find: Callable[[], Sequence[CaptionRow | CaptionItem | None]], sign: Callable[[], Signature]
    ) -> None:
        """Args: function that finds the captions, and function whose result changes when they do."""
        self._find, self._sign = find, sign
        self._signature: Signature | None = None
        self._kept: dict[int, Sequence[CaptionRow | CaptionItem | None]] = {}  # by the number of the reading

    def is_changed(self) -> bool:
        """Return whether the source was changed."""
        return self._signature is None or self._sign() != self._signature

    def starts_over(self) -> bool:
        """Return True."""
        return True

    def read(self) -> Iterator[Entry | None]:
        """Yield all items."""
        signature, found = self._sign(), self._find()
        number = max(self._kept, default=0) + 1
        self._kept = {number: found, **{last: kept for last, kept in self._kept.items() if last == number - 1}}
        for start, kept in enumerate(found):
            yield None if kept is None else entry_of(kept, number, start)
        self._signature = signature

    def forget(self) -> None:
        """Request that all is read again."""
        self._signature = None

    def overlook(self) -> None:
        """Treat the present state as read."""
        self._signature = self._sign()

    def again(self, file: int, start: int, size: int) -> CaptionRow | CaptionItem | None:
        """Return the kept item."""
        return self._kept[file][start] if file in self._kept else None


def stamp_of(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return a stamp that changes with the file: device, number, size, time."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def stamp(path: Path) -> tuple[int, int, int, int] | None:
    """Return the stamp of a path; None if it does not exist."""
    try:
        return stamp_of(path.stat())
    except OSError:
        return None


def signature_of(*paths: Path, recursive: bool = False) -> Signature:
    """Return a stamp that changes with files or folders; records and logs in folders do not count."""
    found: list[object] = []
    for path in paths:
        if not path.is_dir():
            found.append((str(path), stamp(path)))
            continue
        for folder, names, files in os.walk(path):
            del names[0 if not recursive else len(names) :]
            found += [(folder, name, stamp(Path(folder, name))) for name in sorted(files) if not _is_ours(name)]
    return tuple(found)


def _is_ours(name: str) -> bool:
    return name.endswith(".edits.jsonl") or name.startswith(".sira-")


def entry_of(kept: CaptionRow | CaptionItem, file: int, start: int, size: int = 0) -> Entry:
    """Return the index entry of a line or an item."""
    if isinstance(kept, CaptionItem):
        names: tuple[str, str, int | None] = (kept.id, "", None)
        image = kept.name
    else:
        names, image = (kept.name, kept.method, 0 if kept.own else None), kept.image
    text = kept.text or ""
    things = things_of(kept.values, text)
    return Entry(
        *names,
        image,
        *(file, start, size),
        said_of(text, image),
        len(text),
        hash(text),
        things[0].support if things else None,
        any(thing.low and thing.spans for thing in things),
        bool(error_of(kept.values)),
        bool(warnings_of(kept.values)),
        hash(str(kept.values.get("image_sha256") or "")),
    )


def row_of(
    values: dict[str, Any], image_column: str | None, text_column: str | None, raw: bytes | None = None
) -> CaptionRow | None:
    """Return a row, if it has a picture and a valid text.

    Args:
        values: its fields.
        image_column, text_column: the columns' names; None: the first usual name that it has.
        raw: its line.
    """
    image, text = _column(values, image_column, IMAGE_COLUMNS), _column(values, text_column, TEXT_COLUMNS)
    try:
        return None if image is None else CaptionRow.of("", values, image, text or "text", raw)
    except DataError:
        return None


def _column(values: Mapping[str, Any], given: str | None, usual: tuple[str, ...]) -> str | None:
    if given is not None:
        return given if given in values else None
    if usual[0] in values:
        return usual[0]
    return usual_column(values, usual)


def unreadable(path: Path, error: OSError) -> DataError:
    """Return the error that a file cannot be read."""
    return DataError(f"{path}: cannot be read: {error.strerror}")


def said_of(text: str, image: str) -> str:
    """Return the searched text."""
    return f"{text} {image}".lower()
