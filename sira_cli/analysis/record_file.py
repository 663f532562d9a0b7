"""Files of records that stay on disk: each record is found by its place in the file, and by its picture."""

from __future__ import annotations

import json
import weakref
from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sira_cli.errors import DataError
from sira_cli.run.records import REQUIRED

Record = dict[str, Any]
Numbers = NDArray[np.int64]
_SCHEMAS, _COMMANDS = ("sira.caption/", "sira.ask/", "sira.check/"), "sira caption, sira ask or sira check"


class RecordFile:
    """Records of captions, answers or checks; `file[start]` reads the one at a place.

    A torn last line, of a run that was killed, is left out.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._starts, start = path, array("q"), 0
        self._names, self._contents = array("q"), array("q")  # hashes by which pictures are told
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}: expected a file of records (.jsonl)") from error
        if not self._file.seekable():
            raise DataError(f"{path}: cannot be read twice: expected a file of records (.jsonl), not a pipe")
        weakref.finalize(self, self._file.close)
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                record = _parsed(line)
                fits = record["schema"].startswith(_SCHEMAS) and isinstance(record["text"], str)
                if not fits or not record.keys() >= REQUIRED:
                    raise ValueError
                self._names.append(hash(name_of(record)))
                self._contents.append(hash(record["image_sha256"] or name_of(record)))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise DataError(f"{path}: line {number} is not a record of {_COMMANDS}") from None
            self._starts.append(start)
            start += len(line)
        if not self._starts:
            raise DataError(f"{path}: holds no records: expected a file that {_COMMANDS} wrote with -o")

    def __getitem__(self, start: int) -> Record:
        """Read the record whose line begins at this byte; 0: the first."""
        self._file.seek(start)
        return _parsed(self._file.readline())

    def newest(self) -> Numbers:
        """Return where each picture's last record begins, in the order in which the pictures come first."""
        return self._newest(self._names)[1]

    def paired(self, other: RecordFile) -> tuple[Numbers, Numbers]:
        """Return the newest record of each picture with that in another file (-1: none), and the records only there.

        Pictures are told by name, or, if that pairs more, by content.
        """
        best: tuple[Numbers, Numbers] | None = None
        for own, others in ((self._names, other._names), (self._contents, other._contents)):
            (mine, starts), (theirs, places) = self._newest(own), other._newest(others)
            _, here, there = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
            rest = np.delete(places, there)
            if best is None or len(rest) < len(best[1]):
                partners = np.full(len(starts), -1)
                partners[here] = places[there]
                best = np.stack([starts, partners], axis=1), rest
        assert best is not None
        if (best[0][:, 1] < 0).all():
            raise DataError(
                f"{self.path} and {other.path} have no picture in common: give records about the same pictures"
            )
        return best

    def _newest(self, hashes: array[int]) -> tuple[Numbers, Numbers]:
        """Return each hash once, in order, and where its last record begins."""
        every, starts = np.frombuffer(hashes, np.int64), np.frombuffer(self._starts, np.int64)
        _, first = np.unique(every, return_index=True)
        values, last = np.unique(every[::-1], return_index=True)
        order = np.argsort(first)
        return values[order], starts[len(every) - 1 - last[order]]


def name_of(record: Record) -> str:
    """Return a record's name of its picture."""
    return str(record.get("id") or record["file_name"])


def _parsed(line: bytes) -> Record:
    record: Record = json.loads(line.decode(errors="surrogatepass").removeprefix("\ufeff"))  # from bytes it is slower
    for name in ("finish_reason", "error", "image_sha256"):
        record.setdefault(name, "")  # in a record of another program
    return record
