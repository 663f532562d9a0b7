"""Files that a later run continues: one process holds them, lines are appended whole, settings stay the same."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import lock_descriptor

from sira_cli.errors import SettingsError, SiraError
from sira_cli.files import cannot_write, check_folder, check_unprotected, make_folder, replacing, writing

_log = logging.getLogger(__name__)


class ContinuedFile:
    """An open, locked file of lines that a later run continues.

    The file of a killed process is complete, except perhaps for its last line, which the next run cuts off.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        """Open or create the file, lock out other processes, and read it."""
        self.path, self._is_unused = path, not path.exists()
        self._replaces, self._aside = overwrite, dict[Path, Path]()  # copies of what is being replaced, by file
        self._file = open_locked(path)
        self._end = 0  # of the whole lines
        if not overwrite:
            try:
                self._scan()
            except BaseException:
                self.close()
                raise

    def begin(self) -> None:
        """Get ready to append: drop a torn last line, or with `overwrite` everything."""
        self._is_unused = False
        if self._replaces:
            self._put_aside(self.path)
        self._replaces = False
        self._file.truncate(self._end)

    def complete(self) -> None:
        """Note that everything is written, and remove the copy of the old file."""
        for copy in self._aside.values():
            copy.unlink(missing_ok=True)
        self._aside = {}

    def add(self, data: bytes) -> None:
        """Append whole lines; when this returns, the system has them."""
        self._file = kept_in_place(self.path, self._file, self._end)
        append_whole(self.path, self._file, self._end, data)
        self._end += len(data)

    def close(self) -> None:
        """Close the file and release its lock. A new file is removed if nothing has begun."""
        for path, copy in self._aside.items():
            _log.warning("%s: the run that replaces it is not complete: its content of before is in %s", path, copy)
        self._aside = {}
        if self._is_unused:
            with suppress(OSError):
                if not self.path.stat().st_size:
                    self.path.unlink()
        self._is_unused = False
        self._file.close()

    def _put_aside(self, path: Path) -> None:
        """Copy a file, unless it is empty, under a free name next to it."""
        with writing(path), path.open("rb") as file:
            if os.fstat(file.fileno()).st_size:
                copy = _free(path)
                _copy(file, copy)
                self._aside[path] = copy

    def _scan(self) -> None:
        """Read all lines; the rest after the last newline is torn."""
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    if number == 1:
                        self._check_beginning(line)
                    return
                self._read_line(number, line)
                self._end += len(line)

    def _check_beginning(self, torn: bytes) -> None:
        """Check the first line of a file without a complete one."""

    def _read_line(self, number: int, line: bytes) -> None:
        """Note a line; `number` counts from 1, and the line begins at `_end`."""
        raise NotImplementedError


def check_same(path: Path, now: Mapping[str, Any], there: Mapping[str, Any]) -> None:
    """Check that new records belong in a file; only settings that are in both are compared."""
    differences = [
        f"{name} is {there[name]!r} there and {value!r} now"
        for name, value in now.items()
        if name in there and there[name] != value
    ]
    if differences:
        limit = any(difference.partition(" ")[0].endswith("max_new_tokens") for difference in differences)
        raise SettingsError(
            f"{path}: holds records of another configuration: {'; '.join(differences)}: "
            + "all texts of a file have the same limit, also those that it has cut: " * limit
            + "give another `output=`, or `overwrite=` to start again"
        )


def append_whole(path: Path, file: Any, end: int, data: bytes) -> None:
    """Write after `end`, all or nothing. When this returns, the data are on their way to the disk."""
    try:
        file.seek(end)
        rest = memoryview(data)
        while rest:  # on a full disk a first write may be short and the next one fail
            rest = rest[file.write(rest) :]
    except OSError as error:
        file.truncate(end)
        raise cannot_write(path, error) from error


def kept_in_place(path: Path, file: Any, end: int) -> Any:
    """Return an open file that is still at its path; a removed or moved file is put back first."""
    with writing(path):
        held = os.fstat(file.fileno())
        try:
            there = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            there = None
    if held.st_size != end:
        raise SiraError(
            f"{path}: another program has changed it: it has {held.st_size} bytes, expected {end}: "
            "the records that are left in it are kept; "
            + f"cut off what was added (truncate -s {end} FILE), then " * (held.st_size > end)
            + "run the same command again to go on with them"
        )
    if there is None:
        make_folder(path.parent)
        _copy(file, path)
        _log.warning("%s was removed or moved away: it has been put back, with all records", path)
        file.close()
        return open_locked(path)
    if not os.path.samestat(held, there):
        kept = _free(path)
        _copy(file, kept)
        raise SiraError(
            f"{path}: another file has taken its place: all finished records are in {kept}: rename it to {path.name} "
            "and run the same command again to go on"
        )
    return file


def _copy(file: Any, path: Path) -> None:
    """Write the content of an open, perhaps already removed, file to a path."""
    with replacing(path) as new:
        file.seek(0)
        shutil.copyfileobj(file, new)


def _free(path: Path) -> Path:
    """Return an unused name in a file's folder."""
    number = 1
    while (kept := path.with_stem(f"{path.stem}-kept-{number}")).exists():
        number += 1
    return kept


def open_locked(path: Path) -> Any:
    """Open a file for reading and writing without a buffer, and lock it against other processes."""
    try:
        if path.exists() and not path.is_file():
            raise SettingsError(f"{path}: is not a regular file: give another `output=`")
        check_unprotected(path)
        check_folder(path.resolve().parent, "give another `output=`")
        while True:
            path.touch()
            file = path.open("r+b", buffering=0)
            if not lock_descriptor(file.fileno(), blocking=False):
                file.close()
                raise SettingsError(
                    f"{path}: another process writes to it: wait for its end, or give another `output=`"
                )
            try:
                current = path.stat().st_ino
            except FileNotFoundError:
                current = None
            if current == os.fstat(file.fileno()).st_ino:
                return file
            file.close()  # another process replaced the file before we had the lock
    except OSError as error:
        raise SiraError(f"{path}: cannot be opened for writing: {error.strerror}: give another `output=`") from error
