"""Files of records, which stay on disk."""

from __future__ import annotations

import re
import weakref
from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sira_cli.errors import DataError
from sira_cli.look.best import rank
from sira_cli.parsing import from_json
from sira_cli.pictures.records import is_failure, is_record, record_name
from sira_cli.run.records import REQUIRED

Record = dict[str, Any]
Numbers = NDArray[np.int64]
_NUMBER = re.compile(r"#\d+$")
_COMMANDS = "sira caption, sira ask or sira check"


class RecordFile:
    """Records of captions, answers or checks; `file[start]` reads the one at a place.

    A torn last line, of a run that was killed, is left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._starts = array("q")
        self._names = array("q")  # hashes by which pictures are told
        self._contents = array("q")
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}: expected a file of records (.jsonl)") from error
        if not self._file.seekable():
            raise DataError(f"{path}: cannot be read twice: expected a file of records (.jsonl), not a pipe")
        weakref.finalize(self, self._file.close)
        start = 0
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                self._note(_parsed(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise DataError(f"{path}: line {number} is not a record of {_COMMANDS}") from None
            self._starts.append(start)
            start += len(line)
        if not self._starts:
            raise DataError(f"{path}: holds no records: expected a file that {_COMMANDS} wrote with -o")

    def _note(self, record: Record) -> None:
        """Note the picture of a record."""
        if not is_record(record) or not isinstance(record["text"], str) or not record.keys() >= REQUIRED:
            raise ValueError
        name = record_name(record)
        self._names.append(hash(name))
        self._contents.append(hash(record["image_sha256"] or name))

    def __getitem__(self, start: int) -> Record:
        """Read the record whose line begins at this byte; 0: the first."""
        self._file.seek(start)
        return _parsed(self._file.readline())

    def newest(self) -> Numbers:
        """Return where each picture's last record begins, in the order in which the pictures come first."""
        return self._newest(self._names)[1]

    def best(self) -> list[int]:
        """Return where the record of each picture's best supported caption begins; of equals the first.

        Raises:
            DataError: a caption has no second look.
        """
        best: dict[str, tuple[Any, int]] = {}
        for start in self.newest():
            record = self[start]
            if not record.get("verify") and not is_failure(record):
                looked = "expected records of sira check, or of captions with --verify"
                raise DataError(f"{self.path}: {record_name(record)}: has no second look to rank it by: {looked}")
            name = picture_name(record)
            place = rank(record), start
            best[name] = min(place, best.get(name, place))
        return [start for _, start in best.values()]

    def paired(self, other: RecordFile) -> tuple[Numbers, Numbers]:
        """Return the newest record of each picture with that in another file (-1: none), and the records only there.

        Pictures are told by name, or, if that pairs more, by content.
        """
        by_name = _paired(self._newest(self._names), other._newest(other._names))
        by_content = _paired(self._newest(self._contents), other._newest(other._contents))
        pairs, rest = by_content if len(by_content[1]) < len(by_name[1]) else by_name
        if (pairs[:, 1] < 0).all():
            raise DataError(
                f"{self.path} and {other.path} have no picture in common: give records about the same pictures"
            )
        return pairs, rest

    def _newest(self, hashes: array[int]) -> tuple[Numbers, Numbers]:
        """Return each hash once, in order, and where its last record begins."""
        every = np.frombuffer(hashes, np.int64)
        starts = np.frombuffer(self._starts, np.int64)
        _, first = np.unique(every, return_index=True)
        values, last = np.unique(every[::-1], return_index=True)
        order = np.argsort(first)
        return values[order], starts[len(every) - 1 - last[order]]


def picture_name(record: Record) -> str:
    """Return the name of the picture that a record is about, without the number of its caption (`a.jpg#2`)."""
    name: str = record["file_name"]
    return _NUMBER.sub("", name) if record["schema"].startswith("sira.check/") else name


def _paired(mine: tuple[Numbers, Numbers], theirs: tuple[Numbers, Numbers]) -> tuple[Numbers, Numbers]:
    """Return the places `[N, 2]` of equal hashes in two files (-1: none), and the places of those only in the second.

    Args:
        mine, theirs: hashes, each once, and their places in the file.
    """
    _, here, there = np.intersect1d(mine[0], theirs[0], assume_unique=True, return_indices=True)
    partners = np.full(len(mine[1]), -1)
    partners[here] = theirs[1][there]
    return np.stack([mine[1], partners], axis=1), np.delete(theirs[1], there)


def _parsed(line: bytes) -> Record:
    record: Record = from_json(line.decode(errors="surrogatepass").removeprefix("\ufeff"))  # from bytes it is slower
    for name in ("finish_reason", "error", "image_sha256"):
        record.setdefault(name, "")  # in a record of another program
    return record
