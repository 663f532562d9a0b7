"""Files that a later run goes on with: one process has them, lines are appended whole, settings stay the same."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import lock_descriptor

from sira_cli.errors import SettingsError, SiraError
from sira_cli.files import cannot_write


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
            "give another `output=`, or `overwrite=` to start anew"
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
