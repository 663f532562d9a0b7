"""The records of a file by number: where each stands, and hashes of what it is about. The texts stay on disk."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

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
