"""The searched, filtered and sorted fields of many captions: an SQLite table on disk, without their records.

The table ends with the process. Until then a caption keeps its number, also when its file is read again.
"""

from __future__ import annotations

import sqlite3
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

FILTERS = {
    "all": "1",
    "undecided": "decision = 0",
    "low": "low AND NOT edited",
    "differs": "other_text <> text",
    "edited": "edited",
    "accepted": "decision = 1",
    "rejected": "decision = 2",
    "errors": "error AND NOT edited OR missing OR broken",
    "warnings": "warnings",
    "empty": "length = 0",
}
SORTS = {
    "file": "place",
    "support": "coalesce(support, 2), place",
    "name": "image COLLATE NOCASE, place",
    "length": "length DESC, place",
}
DECISIONS = ("", "accepted", "rejected")  # as the table numbers them
_CACHE = 2**16  # KiB of the table that are kept in memory
_TABLE = """
CREATE TABLE items (
  number INTEGER PRIMARY KEY,
  name TEXT NOT NULL, method TEXT NOT NULL, nth INTEGER NOT NULL,
  image TEXT, file INTEGER, start INTEGER, size INTEGER, place INTEGER, gone INTEGER DEFAULT 0,
  said TEXT, length INTEGER, text INTEGER, support REAL, low INTEGER, error INTEGER, warnings INTEGER, content INTEGER,
  decision INTEGER DEFAULT 0, edited INTEGER DEFAULT 0, missing INTEGER DEFAULT 0, broken INTEGER DEFAULT 0,
  other INTEGER, other_text INTEGER,
  UNIQUE (name, method, nth)
)"""
_ADD = """
INSERT INTO items
  (name, method, nth, image, file, start, size, place, said, length, text, support, low, error, warnings, content)
VALUES
  (:name, :method,
   CASE WHEN :nth IS NULL
     THEN 1 + coalesce((SELECT max(nth) FROM items WHERE name = :name AND method = '' AND NOT gone), 0) ELSE :nth END,
   :image, :file, :start, :size, :place, :said, :length, :text, :support, :low, :error, :warnings, :content)
ON CONFLICT (name, method, nth) DO UPDATE SET
  image = excluded.image, file = excluded.file, start = excluded.start, size = excluded.size,
  place = CASE WHEN gone THEN excluded.place ELSE place END, gone = 0,
  said = excluded.said, length = excluded.length, text = excluded.text, support = excluded.support, low = excluded.low,
  error = excluded.error, warnings = excluded.warnings, content = excluded.content, edited = 0"""


class Entry(NamedTuple):
    """A caption's fields in the table.

    Attributes:
        name, method, nth: its identity; an entry with the same three replaces it. `nth` None: one more with this name.
        image: the picture's name in its file.
        file, start, size: the line that it comes from: number of the file, first byte, bytes.
        said: the searched text, in lower case.
        length: characters of the text.
        text, content: hashes of the text, and of the picture's content by the record (0: not recorded).
        support: of the least supported object; None: no second look.
        low, error, warnings: whether an object is below the threshold, the picture failed, there are warnings.
    """

    name: str
    method: str
    nth: int | None
    image: str
    file: int
    start: int
    size: int
    said: str
    length: int
    text: int
    support: float | None
    low: bool
    error: bool
    warnings: bool
    content: int


class IndexRow(NamedTuple):
    """The location of a caption: `Entry`, and whether its file still has it."""

    number: int
    name: str
    method: str
    nth: int
    image: str
    file: int
    start: int
    size: int
    gone: bool


class Index:
    """A table of captions. Thread-safe."""

    def __init__(self) -> None:
        """Make an empty table."""
        self._lock = threading.RLock()
        self._table = _new_table()
        self._place = 0

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Yield the table for a change. If that fails (full disk), the table is emptied, as it has no journal."""
        with self._lock:
            try:
                self._table.execute("BEGIN")
                yield self._table
                self._table.execute("COMMIT")
            except BaseException:
                self._table.close()
                self._table, self._place = _new_table(), 0
                raise

    def add(self, entries: Iterable[Entry], *, restart: bool = False) -> None:
        """Add captions; existing ones are updated.

        Args:
            entries: the captions.
            restart: treat all other captions as gone until they are added again.
        """
        with self._writing() as table:
            if restart:
                table.execute("UPDATE items SET gone = 1")
                self._place = 0
            first = self._place
            rows = [{**entry._asdict(), "place": place} for place, entry in enumerate(entries, start=first)]
            self._place += len(rows)
            table.executemany(_ADD, rows)

    def change(self, column: str, values: Iterable[tuple[Any, int]]) -> None:
        """Set one of `decision`, `missing`, `broken` of some numbers, each given as `(value, number)`."""
        with self._writing() as table:
            table.executemany(f"UPDATE items SET {column} = ? WHERE number = ?", values)

    def change_text(self, number: int, *, said: str, length: int, text: int, edited: bool) -> None:
        """Set a caption's text."""
        with self._writing() as table:
            values = (said, length, text, edited, number)
            table.execute("UPDATE items SET said = ?, length = ?, text = ?, edited = ? WHERE number = ?", values)

    def pair(self, pairs: Iterable[tuple[int, int, int]]) -> None:
        """Set partners in another collection, each given as `(other number, hash of its text, number)`."""
        with self._writing() as table:
            table.execute("UPDATE items SET other = NULL, other_text = NULL")
            table.executemany("UPDATE items SET other = ?, other_text = ? WHERE number = ?", pairs)

    def row(self, number: int) -> IndexRow | None:
        """Return the location of a caption."""
        return next(self._rows("number = ?", number), None)

    def rows(self, numbers: Sequence[int]) -> list[IndexRow]:
        """Return the locations of captions, in the order of the given numbers (a few hundred)."""
        found = {row.number: row for row in self._rows(f"number IN ({','.join('?' * len(numbers))})", *numbers)}
        return [found[number] for number in numbers if number in found]

    def rows_of(self, name: str) -> list[IndexRow]:
        """Return all captions of a name that are not gone."""
        return list(self._rows("name = ? AND NOT gone", name))

    def _rows(self, where: str, *values: Any) -> Iterator[IndexRow]:
        columns = ", ".join(IndexRow._fields)
        for row in self.ask(f"SELECT {columns} FROM items WHERE {where}", *values):
            yield IndexRow(*row)

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds."""
        with self._lock:
            return self._table.execute(query, values).fetchall()

    def columns(self, names: str, after: int, most: int) -> list[tuple[Any, ...]]:
        """Return the number and some columns of captions that are not gone, from a number on.

        Args:
            names: of the columns.
            after: the number before the first; -1: from the beginning.
            most: maximum number of rows.
        """
        where = "number > ? AND NOT gone ORDER BY number LIMIT ?"
        return self.ask(f"SELECT number, {names} FROM items WHERE {where}", after, most)

    def figure(self, figure: str) -> int:
        """Return a figure about all captions that are not gone, such as `count(*)`."""
        return int(self.ask(f"SELECT {figure} FROM items WHERE NOT gone")[0][0] or 0)

    def shown(self, words: Iterable[str] = (), filter_by: str = "all", sort_by: str = "file") -> array[int]:
        """Return the captions that fit, in order.

        Args:
            words: in lower case; all must be in the text or the name.
            filter_by: of `FILTERS`.
            sort_by: of `SORTS`.

        Returns:
            For each its number times 4, plus its decision: 0 none, 1 accepted, 2 rejected.
        """
        wanted = list(words)
        where = " AND ".join(["NOT gone", f"({FILTERS[filter_by]})", *["instr(said, ?) > 0"] * len(wanted)])
        query = f"SELECT number * 4 + decision FROM items WHERE {where} ORDER BY {SORTS[sort_by]}"
        with self._lock:
            return array("i", (row[0] for row in self._table.execute(query, wanted)))


def _new_table() -> sqlite3.Connection:
    table = sqlite3.connect("", check_same_thread=False, isolation_level=None)  # a file without a name
    for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE}"):
        table.execute(f"PRAGMA {setting}")
    table.execute(_TABLE)
    table.execute("INSERT INTO items (number, name, method, nth, gone) VALUES (-1, '', '', -1, 1)")  # the next is 0
    return table
