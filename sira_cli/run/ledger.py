"""The file of records: one line of JSON per picture, appended and flushed as soon as it is known.

The file of a killed process is complete, except perhaps for its last line, which the next run cuts off.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from sira_cli.errors import DataError, SettingsError
from sira_cli.files import replacing
from sira_cli.run.continued import ContinuedFile, check_same, kept_in_place
from sira_cli.run.records import CONFIGURATION, as_line, configuration_of

Numbers = NDArray[np.int64]


class RecordIndex:
    """Numbers about each record of a file, in arrays: a file may have millions of records, which count from 0 on.

    start   of its line, in bytes; -1: it is not in the file
    name    hash of its name
    image   hash of the content of its picture
    """

    def __init__(self, *more: str) -> None:
        """Begin empty, with columns of the user's own after those above."""
        self._columns = {name: array("q") for name in ("start", "name", "image", *more)}

    def __len__(self) -> int:
        return len(self._columns["start"])

    def add(self, *row: int) -> int:
        """Add a record, with a value for each column, and return its number."""
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)
        return len(self) - 1

    def replace(self, number: int, *row: int) -> None:
        """Put another record in the place of one."""
        for column, value in zip(self._columns.values(), row, strict=True):
            column[number] = value

    def __getitem__(self, name: str) -> array[int]:
        """Return a column."""
        return self._columns[name]

    def numbers(self, name: str) -> Numbers:
        """Return a column for arithmetic. As long as it is in use, nothing can be added."""
        return np.frombuffer(self._columns[name], dtype=np.int64)


MANY = 10  # pictures
WARNING = f"has the text of {MANY} pictures or more"


def shared_by_many(texts: Numbers, images: Numbers) -> Numbers:
    """Return the texts that many pictures share; copies of a picture count once."""
    found, counts = np.unique(texts[texts != 0], return_counts=True)
    often = np.isin(texts, found[counts >= MANY])
    pairs = np.unique(np.stack([texts[often], images[often]]), axis=1)
    found, counts = np.unique(pairs[0], return_counts=True)
    shared: Numbers = found[counts >= MANY]
    return shared


def marked(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with the warning if it had none, else without it."""
    before = record.pop("warnings", [])
    after = [warning for warning in before if warning != WARNING] if WARNING in before else [*before, WARNING]
    return record | ({"warnings": after} if after else {})


FAILED, MARKED = 1, 2  # flags of a record: its picture failed; it has the warning that many pictures share its text
_BEGINNING = b'{"schema": "sira.'
_HASH, _KEY = re.compile("[0-9a-f]{64}"), 32


class Ledger(ContinuedFile):
    """An open, locked file of records.

    Attributes:
        path: the file.
        configuration: the fields that are equal in all its records.
    """

    def __init__(
        self,
        path: Path,
        *,
        overwrite: bool = False,
        by: str = "file_name",
        same_prompt: bool = True,
        failures: Path | None = None,
    ) -> None:
        """Open or create the file, lock out other processes, and read it."""
        self._by, self._same_prompt = by, same_prompt and by == "file_name"
        self._same = [name for name in CONFIGURATION if self._same_prompt or name != "prompt"]
        self._index, self._keys = RecordIndex("size", "text", "flags"), bytearray()  # 32 bytes per key, see `_packed`
        self._numbers: dict[int, int] = {}  # of the newest record of each picture, by the hash of its name
        self._failures, self._failed = failures, dict[int, bytes]()  # the lines of that file
        self._superseded = False
        self.configuration: dict[str, Any] = {}
        self._overwrite = overwrite
        self._before: list[Any] = []  # the configuration of the line before
        super().__init__(path, overwrite=overwrite)

    def __len__(self) -> int:
        return len(self._numbers)

    def check(self, now: Mapping[str, Any], there: Mapping[str, Any] | None = None) -> None:
        """Check that records of a configuration belong in the file."""
        there = self.configuration if there is None else there
        check_same(self.path, now, there)

    def begin(self) -> None:
        """Get ready to append: drop a torn last line, or with `overwrite` everything."""
        super().begin()
        if self._overwrite and self._failures is not None and self._failures.exists():
            self._put_aside(self._failures)
            self._failures.unlink()

    def key(self, file_name: str) -> str:
        """Return the key of a picture's record, empty without a record."""
        if (number := self._numbers.get(hash(file_name))) is None:
            return ""
        key = self._keys[_KEY * number : _KEY * (number + 1)]
        return key.hex() if any(key) else str(json.loads(self._read(number))["key"])

    def is_error(self, file_name: str) -> bool:
        """Return whether a picture's record is a failure."""
        number = self._numbers.get(hash(file_name))
        return number is not None and self._is_failed(number)

    def append(self, record: dict[str, Any]) -> None:
        """Append a record; when this returns, the system has it."""
        line, start = as_line(record), self._end
        self.add(line)
        self._note(record, start, len(line))

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the newest record of each picture in file order, without those in the file of failures."""
        with self.path.open("rb") as file:  # with a buffer: most records follow each other
            for number in self._numbers.values():
                if (start := self._index["start"][number]) >= 0:
                    file.seek(start)
                    yield json.loads(file.read(self._index["size"][number]))

    def record(self, file_name: str) -> dict[str, Any]:
        """Return the record of a picture that is in the file."""
        record: dict[str, Any] = json.loads(self._read(self._numbers[hash(file_name)]))
        return record

    def finish(self, order: Iterable[str], *, repeated: bool = False) -> None:
        """Bring the file into the state after an uninterrupted run.

        Replaced records are dropped, captions shared by many pictures get a warning, and records are put in order, in a
        new file that replaces this one. Nothing is written if nothing changes.
        """
        self._file = kept_in_place(self.path, self._file, self._end)
        numbers, index = self._in_order(order), self._index
        before = [number for number in self._numbers.values() if index["start"][number] >= 0]
        if self._failures is not None:
            self._put_failures_aside([number for number in numbers if self._is_failed(number)])
            numbers = [number for number in numbers if number not in self._failed]
        to_mark = self._wrongly_marked() if repeated else set()
        if self._superseded or to_mark or numbers != before:
            sizes = array("q")
            with replacing(self.path) as file:
                for number in numbers:
                    data = self._read(number)
                    if number in to_mark:
                        data = as_line(marked(json.loads(data)))
                    file.write(data)
                    sizes.append(len(data))
                file.flush()
                os.fsync(file.fileno())
            self._file.close()
            self._file = self.path.open("r+b", buffering=0)  # from now on it is only read: no lock
            self._superseded, self._end = False, 0
            for number, size in zip(numbers, sizes, strict=True):
                index["start"][number], index["size"][number] = self._end, size
                index["flags"][number] ^= MARKED * (number in to_mark)
                self._end += size
            self._numbers = {index["name"][number]: number for number in (*self._failed, *numbers)}
        os.fsync(self._file.fileno())
        self.complete()

    def _put_failures_aside(self, numbers: Sequence[int]) -> None:
        """Write the file of failures with exactly these records."""
        assert self._failures is not None
        failed = {number: self._read(number) for number in numbers}
        if failed != self._failed:
            with replacing(self._failures) as file:
                file.writelines(failed.values())
        if not failed:
            self._failures.unlink(missing_ok=True)
        self._failed = failed
        for number in numbers:
            self._index["start"][number] = -1

    def _in_order(self, order: Iterable[str]) -> list[int]:
        """Return the records in the file as they are to stand there; see `finish`."""
        wanted = {hash(name): place for place, name in enumerate(order)}
        numbers, places, last = list(self._numbers.values()), array("q"), -1
        for name in self._numbers:
            place = wanted.get(name, -1)
            last = max(last, place)
            places.append(2 * last + 1 if place < 0 else 2 * place)
        return [numbers[each] for each in sorted(range(len(numbers)), key=places.__getitem__)]

    def _wrongly_marked(self) -> set[int]:
        """Return the records whose warning has to be added or removed."""
        text = self._index.numbers("text")
        shared = shared_by_many(text, self._index.numbers("image"))
        is_marked = self._index.numbers("flags") & MARKED != 0
        return set(np.flatnonzero(np.isin(text, shared) != is_marked).tolist())

    def _scan(self) -> None:
        """Note every record, its place and the configuration, beginning with the file of failures."""
        if self._failures is not None and self._failures.exists():
            with self._failures.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if line.endswith(b"\n"):
                        self._failed[self._note_line(self._failures, number, line, -1)] = line
                    elif number == 1 and not _BEGINNING.startswith(line[: len(_BEGINNING)]):
                        raise _foreign(self._failures, number)
        self._before = []
        super()._scan()

    def _check_beginning(self, torn: bytes) -> None:
        if not _BEGINNING.startswith(torn[: len(_BEGINNING)]):
            raise _foreign(self.path, 1)

    def _read_line(self, number: int, line: bytes) -> None:
        self._note_line(self.path, number, line, self._end)

    def _note_line(self, path: Path, number: int, line: bytes, start: int) -> int:
        """Note a line, check that its configuration is the file's, and return its record's number in the index."""
        try:
            record = from_json(line)
            configuration = [record.get(name) for name in self._same]
            if configuration != self._before:
                self._check_configuration(record)
                self._before = configuration
            return self._note(record, start, len(line))
        except SettingsError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _foreign(path, number) from None

    def _check_configuration(self, record: Mapping[str, Any]) -> None:
        if not record["schema"].startswith("sira."):
            raise ValueError
        configuration = {name: value for name, value in configuration_of(record).items() if name in self._same}
        self.check(configuration)
        self.configuration |= configuration

    def _note(self, record: Mapping[str, Any], start: int, size: int) -> int:
        failed = record["status"] == "error"
        is_caption = not failed and record["schema"].startswith("sira.caption/")  # others may share an answer
        text, image = (hash(record.get("text")) or 1) * is_caption, hash(record.get("image_sha256"))
        flags = FAILED * failed + MARKED * (WARNING in (record.get("warnings") or ()))
        name, key = hash(record[self._by]), _packed(record["key"])
        number = self._numbers.get(name)
        if number is not None and self._index["start"][number] < 0:
            self._index.replace(number, -1, 0, 0, 0, 0, 0)
            del self._numbers[name]  # this one is the last in the file
            number = None
        row = (start, name, image, size, text, flags)
        if number is None:
            number = self._numbers[name] = self._index.add(*row)
            self._keys += key
        else:
            self._superseded = True
            self._index.replace(number, *row)
            self._keys[_KEY * number : _KEY * (number + 1)] = key
        return number

    def _is_failed(self, number: int) -> bool:
        return self._index["flags"][number] & FAILED != 0

    def _read(self, number: int) -> bytes:
        start = self._index["start"][number]
        if start < 0:
            return self._failed[number]
        self._file.seek(start)
        data: bytes = self._file.read(self._index["size"][number])
        return data


def _packed(key: str) -> bytes:
    """Return a key in 32 bytes: a hash of SHA-256, as runs write them. Zeros stand for another, which is read again."""
    return bytes.fromhex(key) if _HASH.fullmatch(key) else bytes(_KEY)


def _foreign(path: Path, number: int) -> DataError:
    return DataError(
        f"{path}: line {number} is not a record of sira: give another `output=`, or `overwrite=` to replace it"
    )
