"""A file of records that stays on disk: each record is found again by its position, and by its picture."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from sira_cli.errors import DataError
from sira_cli.pictures.stores import is_uri
from sira_cli.run.ledger import Numbers, RecordIndex
from sira_cli.run.records import REQUIRED

Record = Mapping[str, Any]
SCHEMAS = ("sira.caption/", "sira.ask/")
WITH_CHECKS = (*SCHEMAS, "sira.check/")


class RecordFile:
    """Records of runs; a torn last line, of a run that was killed, is left out."""

    def __init__(self, path: Path, schemas: tuple[str, ...] = SCHEMAS) -> None:
        self.path = path
        try:
            self._file = _seekable(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}: expected a file of records (.jsonl)") from error
        weakref.finalize(self, self._file.close)
        self._index, start = RecordIndex("path"), 0
        *first, last = (f"sira {schema.removeprefix('sira.').rstrip('/')}" for schema in schemas)
        commands, folder = f"{', '.join(first)} or {last}", path.parent.resolve()
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                record = _parsed(line)
                if not record["schema"].startswith(schemas) or not isinstance(record["text"], str):
                    raise ValueError
                if not record.keys() >= REQUIRED:
                    raise KeyError
                name, image = name_of(record), record["image_sha256"]
                place = name if is_uri(name) or "id" in record else os.path.normpath(folder / name)
                self._index.add(start, hash(name), hash(image or name), hash(place))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise DataError(f"{path}: line {number} is not a record of {commands}") from None
            start += len(line)
        if not len(self._index):
            raise DataError(f"{path}: holds no records: expected a file that {commands} wrote with -o")

    def __getitem__(self, number: int) -> Record:
        """Read a record."""
        return _parsed(self.line(number))

    def line(self, number: int) -> bytes:
        """Read the line of a record."""
        self._file.seek(self._index["start"][number])
        return self._file.readline()

    def newest(self, identity: str) -> tuple[Numbers, Numbers]:
        """Return the pictures, in the order in which they come first, and the number of the last record of each."""
        keys = self._index.numbers(identity)
        _, first = np.unique(keys, return_index=True)
        found, last = np.unique(keys[::-1], return_index=True)
        order = np.argsort(first)
        return found[order], (len(keys) - 1 - last)[order]


def name_of(record: Record) -> str:
    """Return a record's name of its picture."""
    return str(record.get("id") or record["file_name"])


def _parsed(line: bytes) -> dict[str, Any]:
    record = json.loads(line.decode(errors="surrogatepass").removeprefix("\ufeff"))  # bytes take json a third longer
    return {"finish_reason": "", "error": "", "image_sha256": "", **record}


def _seekable(path: Path) -> IO[bytes]:
    """Open a file; a pipe is copied into a temporary file that is deleted on closing."""
    file = path.open("rb")
    if file.seekable():
        return file
    with file:
        copy = tempfile.TemporaryFile()  # noqa: SIM115 # the caller closes it
        shutil.copyfileobj(file, copy)
    copy.seek(0)
    return copy
