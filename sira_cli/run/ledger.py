"""Files that a later run continues: one process holds them, lines are appended whole, settings stay the same.

A killed process leaves a complete file, except perhaps for its last line, which the next run cuts off. `Ledger` is the
file of records: one line of JSON per picture, appended and flushed as soon as it is known.
"""

from __future__ import annotations

import glob
import itertools
import json
import logging
import os
import shutil
import threading
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import lock_descriptor
from numpy.typing import NDArray
from pydantic_core import from_json

from sira_cli.errors import DataError, SettingsError, SiraError
from sira_cli.files import cannot_write, check_folder, check_unprotected, make_folder, replacing, writing
from sira_cli.pictures.records import is_failure, is_record
from sira_cli.run.records import CONFIGURATION, as_line, configuration_of

_log = logging.getLogger(__name__)

Numbers = NDArray[np.int64]


class ContinuedFile:
    """An open, locked file of lines that a later run continues; a subclass reads the lines."""

    beginning: bytes  # of the first line
    wrong: str  # said of a line of another file

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        """Open or create the file, lock out other processes, and read it."""
        self.path = path
        self._is_unused = not path.exists()
        self._overwrite = overwrite
        self._copy: Path | None = None  # of the file that is being replaced
        self._file = open_locked(path)
        self._end = 0  # of the whole lines
        self._moving = threading.Lock()  # the file has one position, and pictures are looked up while others are added
        if not overwrite:
            try:
                self._read_lines(path)
            except BaseException:
                self.close()
                raise

    def begin(self) -> None:
        """Get ready to append: drop a torn last line, or with `overwrite` everything."""
        self._is_unused = False
        if self._overwrite and os.fstat(self._file.fileno()).st_size:
            self._copy = _copied(self._file, self.path, "kept")
        self._file.truncate(self._end)

    def add(self, data: bytes) -> None:
        """Append whole lines, all or nothing; when this returns, the system has them."""
        self._check_unchanged()
        try:
            with self._moving:
                self._file.seek(self._end)
                rest = memoryview(data)
                while rest:  # on a full disk a first write may be short and the next one fail
                    rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._file.truncate(self._end)
            raise cannot_write(self.path, error) from error
        self._end += len(data)

    def complete(self) -> None:
        """Note that everything is written; remove copies of the old file, also of replacing runs that did not end."""
        if self._copy is not None:
            self._copy.unlink(missing_ok=True)
            for copy in self.path.parent.glob(f"{glob.escape(self.path.stem)}-kept-[0-9]*{self.path.suffix}"):
                self._remove_ours(copy)
        self._copy = None

    def _remove_ours(self, copy: Path) -> None:
        with suppress(OSError):
            with copy.open("rb") as file:
                is_ours = file.read(len(self.beginning)) == self.beginning
            if is_ours:
                copy.unlink()

    def close(self) -> None:
        """Close the file and release its lock. A new file is removed if nothing has begun."""
        if self._copy is not None:
            text = "%s: the run that replaces it is not complete: its content of before is in %s"
            _log.warning(text, self.path, self._copy)
        self._copy = None
        if self._is_unused:
            with suppress(OSError):
                if not self.path.stat().st_size:
                    self.path.unlink()
        self._is_unused = False
        self._file.close()

    def _read_lines(self, path: Path) -> None:
        """Read all lines of a file; the rest after the last newline is torn."""
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    if line.endswith(b"\n"):
                        self._read_line(number, line)
                        self._end += len(line)
                    elif number == 1 and not self.beginning.startswith(line[: len(self.beginning)]):
                        raise ValueError
                except SettingsError:
                    raise
                except (StopIteration, ValueError, KeyError, TypeError, AttributeError):
                    raise DataError(
                        f"{path}: line {number} {self.wrong}: give another `output=`, or `overwrite=` to replace it"
                    ) from None

    def _read_line(self, number: int, line: bytes) -> None:
        """Note a line; `number` counts from 1, and the line begins at `_end`."""
        raise NotImplementedError

    def _check_unchanged(self) -> None:
        """Check that the file is still at its path, and that no other program has changed it; else keep its content."""
        with writing(self.path):
            held = os.fstat(self._file.fileno())
            try:
                is_there = os.path.samestat(held, self.path.stat())
            except (FileNotFoundError, NotADirectoryError):
                is_there = False
        if held.st_size != self._end:
            way = "run the same command again to go on with them"
            if held.st_size > self._end:
                way = f"cut off what was added (truncate -s {self._end} FILE), then {way}"
            raise SiraError(
                f"{self.path}: another program has changed it: it has {held.st_size} bytes, expected {self._end}: "
                f"the records that are left in it are kept; {way}"
            )
        if not is_there:
            make_folder(self.path.parent)
            copy = _copied(self._file, self.path, "rescued")
            way = "run the same command again to go on"
            if copy != self.path:
                way = f"rename it to {self.path.name} and {way}"
            raise SiraError(
                f"{self.path}: was removed or replaced during the run: all finished records are in {copy}: {way}"
            )


def check_same(path: Path, now: Mapping[str, Any], there: Mapping[str, Any], *, whole: bool = False) -> None:
    """Check that new records belong in a file.

    Args:
        path: of the file, for messages.
        now: settings of the new records, by name.
        there: those of the file, if it has any; a setting that it lacks is off, that is None.
        whole: whether `now` has all settings that are known, so that one that it lacks is off.
    """
    names = dict.fromkeys([*now, *there] if whole else now)
    differing = [name for name in names if now.get(name) != there.get(name)]
    if not differing or not there:
        return
    shown = "; ".join(f"{name} is {there.get(name)!r} there and {now.get(name)!r} now" for name in differing)
    ways = "give another `output=`, or `overwrite=` to start again"
    first_look = now.get("verify.mode") == "flag" and there.get("verify.mode") is None
    if first_look and all(name.startswith("verify.") for name in differing):
        checks = path.with_name("checks.jsonl")
        ways = f"look at the captions that it holds with `sira check {path} -o {checks}`, {ways}"
        shown = "none had a second look"
    raise SettingsError(f"{path}: holds records of another configuration: {shown}: {ways}")


def open_locked(path: Path) -> Any:
    """Open a file for reading and writing without a buffer, and lock it against other processes."""
    try:
        if path.exists() and not path.is_file():
            raise SettingsError(f"{path}: is not a regular file: give another `output=`")
        check_unprotected(path)
        check_folder(path.resolve().parent, "give another `output=`")
        make_folder(path.resolve().parent)
        while True:
            path.touch()
            file = path.open("r+b", buffering=0)
            if not lock_descriptor(file.fileno(), blocking=False):
                file.close()
                raise SettingsError(
                    f"{path}: another process writes to it: wait for its end, or give another `output=`"
                )
            with suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                    return file
            file.close()  # another process replaced the file before we had the lock
    except OSError as error:
        raise SiraError(f"{path}: cannot be opened for writing: {error.strerror}: give another `output=`") from error


def _copied(file: Any, path: Path, mark: str) -> Path:
    """Write the content of an open, perhaps already removed, file to a path; if it is taken, `path-MARK-NUMBER`."""
    names = (path.with_stem(f"{path.stem}-{mark}-{number}") for number in itertools.count(1))
    copy = next(each for each in itertools.chain([path], names) if not each.exists())
    with replacing(copy) as new:
        file.seek(0)
        shutil.copyfileobj(file, new)
    return copy


class Ledger(ContinuedFile):
    """An open, locked file of records, found `by` a field; `configuration` has the fields that are equal in all.

    A file may have millions of records, so only numbers about each are in memory, in arrays: where its line starts, its
    size, the hash of its name, and whether its picture failed. With `only_ok`, those that failed leave it in the end.
    """

    beginning = b'{"schema": "sira.'
    wrong = "is not a record of sira"

    def __init__(
        self,
        path: Path,
        overwrite: bool = False,
        by: str = "file_name",
        same_prompt: bool = True,
        only_ok: bool = False,
    ) -> None:
        self._by, self._only_ok = by, only_ok
        self._same = [name for name in CONFIGURATION if name != "prompt" or (same_prompt and by == "file_name")]
        self._columns = tuple(array("q") for _ in range(4))
        self._starts, self._sizes, self._names, self._errors = self._columns
        self._newest: dict[int, int] = {}  # number of the newest record of each picture, by the hash of its name
        self.configuration: dict[str, Any] = {}
        self._before: list[Any] = []  # the configuration of the line before
        super().__init__(path, overwrite=overwrite)

    def __len__(self) -> int:
        return len(self._newest)

    def check(self, now: Mapping[str, Any]) -> None:
        """Check that records of a configuration belong in the file."""
        compared = {name: value for name, value in now.items() if name in self._same}
        check_same(self.path, compared, self.configuration)

    def key(self, file_name: str) -> str:
        """Return the key of a picture's record, empty without a record."""
        number = self._newest.get(hash(file_name))
        return "" if number is None else str(from_json(self._line(number))["key"])

    def is_error(self, file_name: str) -> bool:
        """Return whether a picture's record is a failure."""
        number = self._newest.get(hash(file_name))
        return number is not None and bool(self._errors[number])

    def append(self, record: dict[str, Any]) -> None:
        """Append a record; when this returns, the system has it."""
        line = as_line(record)
        self.add(line)
        self._note(record, self._end - len(line), len(line))

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the newest record of each picture in file order."""
        with self.path.open("rb") as file:  # with a buffer: most records follow each other
            for number in self._newest.values():
                file.seek(self._starts[number])
                yield json.loads(file.read(self._sizes[number]))

    def record(self, file_name: str) -> dict[str, Any]:
        """Return the record of a picture that is in the file."""
        record: dict[str, Any] = json.loads(self._line(self._newest[hash(file_name)]))
        return record

    def finish(self, order: Iterable[str]) -> None:
        """Drop replaced records and put the others in order, as after an uninterrupted run; else write nothing."""
        self._check_unchanged()
        numbers = self._in_order(order)
        if self._only_ok:
            numbers = numbers[_numbers(self._errors)[numbers] == 0]
        starts, sizes = _numbers(self._starts), _numbers(self._sizes)[numbers]
        ends = np.cumsum(sizes)
        if self._end != sum(ends[-1:]) or (starts[numbers] != ends - sizes).any():
            with replacing(self.path) as file:
                file.writelines(map(self._line, numbers))
                file.flush()
                os.fsync(file.fileno())
            self._file.close()
            self._file = self.path.open("r+b", buffering=0)  # from now on it is only read: no lock
            starts[numbers], self._end = ends - sizes, int(sum(ends[-1:]))
            self._newest.clear()
            for number in array("q", numbers):
                self._newest[self._names[number]] = number
        os.fsync(self._file.fileno())
        self.complete()

    def _in_order(self, order: Iterable[str]) -> Numbers:
        """Return the numbers of the records as they are to stand in the file; see `finish`."""
        numbers = np.fromiter(self._newest.values(), np.int64, len(self._newest))
        names, wanted = _numbers(self._names)[numbers], np.fromiter(map(hash, order), np.int64)
        if not len(wanted):
            return numbers
        by_name = np.argsort(wanted)
        places = by_name[np.searchsorted(wanted, names, sorter=by_name).clip(max=len(wanted) - 1)]
        places[wanted[places] != names] = -1  # in the file alone: it follows the last of those before it
        places = np.where(places < 0, 2 * np.maximum.accumulate(places) + 1, 2 * places)
        return numbers[np.argsort(places, kind="stable")]

    def _read_line(self, number: int, line: bytes) -> None:
        """Note a line, and check that its configuration is the file's."""
        record = from_json(line)
        configuration = [record.get(name) for name in self._same]
        if configuration != self._before:
            new = configuration_of(record)
            self.check(new)
            if not is_record(record) or not record["key"]:
                raise ValueError
            self.configuration = {name: new[name] for name in self._same}
            self._before = configuration
        self._note(record, self._end, len(line))

    def _note(self, record: Mapping[str, Any], start: int, size: int) -> None:
        name = hash(record[self._by])
        self._newest[name] = len(self._names)
        for column, value in zip(self._columns, (start, size, name, is_failure(record)), strict=True):
            column.append(value)

    def _line(self, number: int) -> bytes:
        """Read the line of a record."""
        with self._moving:
            self._file.seek(self._starts[number])
            data: bytes = self._file.read(self._sizes[number])
        return data


def _numbers(column: array[int]) -> Numbers:
    """Return a column for arithmetic; as long as it is in use, nothing can be added."""
    return np.frombuffer(column, dtype=np.int64)
