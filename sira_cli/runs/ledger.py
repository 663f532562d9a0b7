"""The file of records: one line of JSON per picture, appended and flushed as soon as it is known.

What a killed process leaves behind is complete, except perhaps for its last line, which the next run cuts off.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import lock_descriptor

from sira_cli.errors import DataError, SettingsError, SiraError
from sira_cli.files import cannot_write, replacing
from sira_cli.models.records import CONFIGURATION, configuration_of

_BEGINNING = b'{"schema": "sira.'


@dataclass(frozen=True)
class _Line:
    """Where a record stands in the file."""

    key: str
    status: str
    start: int
    length: int


class Ledger:
    """An open, locked file of records.

    Attributes:
        path: the file.
        configuration: what is equal in all its records.
    """

    def __init__(self, path: Path, *, overwrite: bool = False, by: str = "file_name") -> None:
        """Open or create the file, keep other processes out, and read what is in it.

        Args:
            path: the file.
            overwrite: do not look at what is in it; `begin` will drop it.
            by: the field that tells records apart: `file_name`, or `id` where prompts differ from record to record.

        Raises:
            DataError: it is not a file of records.
            SettingsError: another process writes to it.
            SiraError: it cannot be opened.
        """
        self.path = path
        self._by = by
        self._same = [name for name in CONFIGURATION if by == "file_name" or name != "prompt"]
        self._lines: dict[str, _Line] = {}  # the newest of each picture
        self._superseded = False
        self.configuration: dict[str, Any] = {}
        self._overwrite = overwrite
        self._file = open_locked(path)
        self._end = 0
        if not overwrite:
            try:
                self._scan()
            except BaseException:
                self._file.close()
                raise

    def __len__(self) -> int:
        return len(self._lines)

    def check(self, now: Mapping[str, Any], there: Mapping[str, Any] | None = None) -> None:
        """Check that records of a configuration belong in the file.

        Args:
            now: the configuration, or what is known of it.
            there: the file's configuration, if not that of its records; only what is in both is compared.

        Raises:
            SettingsError: they differ; the message says in what.
        """
        there = self.configuration if there is None else there
        check_same(self.path, now, there)

    def begin(self) -> None:
        """Get ready to append: drop a torn last line, or with `overwrite` everything."""
        self._file.truncate(self._end)

    def key(self, file_name: str) -> str:
        """Return the key of a picture's record, an empty one if there is none."""
        return self._lines[file_name].key if file_name in self._lines else ""

    def is_error(self, file_name: str) -> bool:
        """Return whether a picture is in the file as failed."""
        return file_name in self._lines and self._lines[file_name].status == "error"

    def append(self, record: dict[str, Any]) -> None:
        """Add a record; it is on its way to the disk when this returns.

        Raises:
            SiraError: it cannot be written (no space left); the file holds what it held before.
        """
        line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        append_whole(self.path, self._file, self._end, line)
        self._note(record, self._end, len(line))
        self._end += len(line)

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the newest record of each picture, in the order of the file."""
        for line in self._lines.values():
            yield json.loads(self._read(line))

    def record(self, file_name: str) -> dict[str, Any]:
        """Return the record of a picture that is in the file."""
        record: dict[str, Any] = json.loads(self._read(self._lines[file_name]))
        return record

    def text(self, file_name: str) -> str:
        """Return the text of a picture that is in the file."""
        return str(self.record(file_name)["text"])

    def finish(self, order: Iterable[str]) -> None:
        """Bring the file into its final state: that of a run that was never interrupted.

        Records that were made again are dropped, and the rest is put in order, by way of a new file that replaces this
        one. Nothing is written if there is nothing to change.

        Args:
            order: names of the pictures of this run. Records of other pictures stay behind those that they follow.

        Raises:
            SiraError: the new file cannot be written; this one is as it was.
        """
        names = self._in_order(order)
        if self._superseded or names != list(self._lines):
            moved: dict[str, _Line] = {}
            with replacing(self.path) as file:
                for name in names:
                    line = self._lines[name]
                    moved[name] = dataclasses.replace(line, start=file.tell())
                    file.write(self._read(line))
                file.flush()
                os.fsync(file.fileno())
            self._file.close()
            self._file = self.path.open("r+b", buffering=0)  # from now on it is only read: no lock
            self._lines, self._superseded = moved, False
        os.fsync(self._file.fileno())

    def _in_order(self, order: Iterable[str]) -> list[str]:
        """Return the names in the file as they are to stand there; see `finish`."""
        numbers = {name: number for number, name in enumerate(order)}
        places, last = {}, -1
        for name in self._lines:
            last = max(last, numbers.get(name, -1))
            places[name] = (numbers[name], 0) if name in numbers else (last, 1)
        return sorted(self._lines, key=places.__getitem__)

    def close(self) -> None:
        """Close the file and release its lock."""
        self._file.close()

    def _scan(self) -> None:
        """Note every record, its place and the configuration. Whatever follows the last newline is torn."""
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    if self._end == 0 and not _BEGINNING.startswith(line[: len(_BEGINNING)]):
                        raise self._foreign(number)
                    break
                try:
                    record = json.loads(line)
                    if not record["schema"].startswith("sira."):
                        raise ValueError
                    self._note(record, self._end, len(line))
                    configuration = {
                        name: value for name, value in configuration_of(record).items() if name in self._same
                    }
                except (ValueError, KeyError, TypeError, AttributeError):
                    raise self._foreign(number) from None
                self.check(configuration)
                self.configuration |= configuration
                self._end += len(line)

    def _foreign(self, number: int) -> DataError:
        return DataError(
            f"{self.path}: line {number} is no record of sira: give another --output, or --overwrite to replace it"
        )

    def _note(self, record: dict[str, Any], start: int, length: int) -> None:
        name = record[self._by]
        self._superseded |= name in self._lines
        self._lines[name] = _Line(record["key"], record["status"], start, length)

    def _read(self, line: _Line) -> bytes:
        self._file.seek(line.start)
        data: bytes = self._file.read(line.length)
        return data


def check_same(path: Path, now: Mapping[str, Any], there: Mapping[str, Any]) -> None:
    """Check that what is made now belongs in a file; only settings that are in both are compared.

    Raises:
        SettingsError: they differ; the message says in what.
    """
    differences = [
        f"{name} is {there[name]!r} there and {value!r} now"
        for name, value in now.items()
        if name in there and there[name] != value
    ]
    if differences:
        raise SettingsError(
            f"{path}: holds records of another configuration: {'; '.join(differences)}: "
            "give another --output, or --overwrite to start anew"
        )


def append_whole(path: Path, file: Any, end: int, data: bytes) -> None:
    """Write behind `end`, all or nothing. When this returns, the data are on their way to the disk.

    Raises:
        SiraError: it cannot be written (no space left); the file holds what it held before.
    """
    try:
        file.seek(end)
        rest = memoryview(data)
        while rest:  # on a full disk a first write may be short and the next one fail
            rest = rest[file.write(rest) :]
    except OSError as error:
        file.truncate(end)
        raise cannot_write(path, error) from error


def open_locked(path: Path) -> Any:
    """Open a file for reading and writing without a buffer, and lock it against other processes.

    Raises:
        SettingsError: another process writes to it.
        SiraError: it cannot be opened.
    """
    try:
        while True:
            path.touch()
            file = path.open("r+b", buffering=0)
            if not lock_descriptor(file.fileno(), blocking=False):
                file.close()
                raise SettingsError(f"{path}: another process writes to it: wait for its end, or give another --output")
            try:
                current = path.stat().st_ino
            except FileNotFoundError:
                current = None
            if current == os.fstat(file.fileno()).st_ino:
                return file
            file.close()  # another process replaced the file before we had the lock
    except OSError as error:
        raise SiraError(f"{path}: cannot be opened for writing: {error.strerror}: give another --output") from error
