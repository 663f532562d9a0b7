"""The file of records: one line of JSON per picture, appended and flushed as soon as it is known.

The file of a killed process is complete, except perhaps for its last line, which the next run cuts off.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sira_cli.data.records.continued_file import ContinuedFile, check_same, kept_in_place
from sira_cli.data.records.lines import Line, as_line, given, head_of
from sira_cli.data.records.record import CONFIGURATION, configuration_of
from sira_cli.data.records.repeated import Said, marked, wrongly_marked
from sira_cli.errors import DataError, SettingsError
from sira_cli.files import replacing

_BEGINNING = b'{"schema": "sira.'


class Ledger(ContinuedFile):
    """An open, locked file of records.

    Attributes:
        path: the file.
        configuration: the fields that are equal in all its records.
        columns: the names of all fields of its records.
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
        """Open or create the file, lock out other processes, and read it.

        Args:
            path: the file.
            overwrite: do not read it; `begin` empties it, and keeps a copy until `finish`.
            by: the field that identifies records: `file_name`, or `id` where a picture has several prompts.
            same_prompt: whether all records have the same prompt, if they are told apart by `file_name`.
            failures: where `finish` puts the records of failed pictures, instead of leaving them among the others.

        Raises:
            DataError: it is not a file of records.
            SettingsError: another process writes to it.
            SiraError: the file cannot be opened.
        """
        self._by, self._same_prompt = by, same_prompt and by == "file_name"
        self._same = [name for name in CONFIGURATION if self._same_prompt or name != "prompt"]
        self._lines: dict[str, bytes] = {}  # the newest of each picture, packed
        self._failures, self._failed = failures, dict[str, bytes]()  # the lines of that file
        self._superseded = False
        self.columns: set[str] = set()
        self.configuration: dict[str, Any] = {}
        self._overwrite = overwrite
        self._before = b""  # the configuration of the line before, as it is written
        super().__init__(path, overwrite=overwrite)

    def __len__(self) -> int:
        return len(self._lines)

    def check(self, now: Mapping[str, Any], there: Mapping[str, Any] | None = None) -> None:
        """Check that records of a configuration belong in the file.

        Args:
            now: the configuration, or its known part.
            there: the file's configuration; None: that of its records. Only fields in both are compared.

        Raises:
            SettingsError: they differ; the message names the differences.
        """
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
        return self._line(file_name).key if file_name in self._lines else ""

    def is_error(self, file_name: str) -> bool:
        """Return whether a picture's record is a failure."""
        return file_name in self._lines and self._line(file_name).status == "error"

    def append(self, record: dict[str, Any]) -> None:
        """Append a record; when this returns, the system has it.

        Raises:
            SiraError: the file cannot be written (no space left); it holds what it held before. Or another program
                has changed or replaced the file.
        """
        line = as_line(record)
        start = self._end
        self.add(line)
        self._note(record[self._by], Line.of(record, start, len(line)), given(record))

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the newest record of each picture in file order, without those in the file of failures."""
        return map(json.loads, self.lines())

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of `records`."""
        with self.path.open("rb") as file:  # with a buffer: most records follow each other
            for line in map(Line.unpacked, self._lines.values()):
                if line.start >= 0:
                    file.seek(line.start)
                    yield file.read(line.length)

    def record(self, file_name: str) -> dict[str, Any]:
        """Return the record of a picture that is in the file."""
        record: dict[str, Any] = json.loads(self._read(file_name))
        return record

    def finish(self, order: Iterable[str], *, repeated: bool = False) -> None:
        """Bring the file into the state after an uninterrupted run.

        Replaced records are dropped, captions shared by many pictures get a warning, and records are put in order, in a
        new file that replaces this one. Nothing is written if nothing changes.

        Args:
            order: names of this run's pictures. Records of other pictures stay after the ones that they follow.
            repeated: look for captions shared by many pictures.

        Raises:
            SiraError: the new file cannot be written; this one is as it was. Or as for `append`.
        """
        self._file = kept_in_place(self.path, self._file, self._end)
        names = self._in_order(order)
        before = [name for name in self._lines if self._line(name).start >= 0]
        if self._failures is not None:
            self._put_failures_aside([name for name in names if self.is_error(name)])
            names = [name for name in names if name not in self._failed]
        to_mark = wrongly_marked(self._said) if repeated else set()
        if self._superseded or to_mark or names != before:
            moved, start = {name: self._lines[name] for name in self._failed}, 0
            with replacing(self.path) as file:
                for name in names:
                    data = self._read(name)
                    if name in to_mark:
                        record = marked(json.loads(data))
                        data = as_line(record)
                        self.columns |= record.keys()
                    file.write(data)
                    line = self._line(name)
                    said = line.said._replace(marked=line.said.marked != (name in to_mark))
                    moved[name] = line._replace(start=start, length=len(data), said=said).packed()
                    start += len(data)
                file.flush()
                os.fsync(file.fileno())
            self._file.close()
            self._file = self.path.open("r+b", buffering=0)  # from now on it is only read: no lock
            self._lines, self._superseded, self._end = moved, False, start
        os.fsync(self._file.fileno())
        self.complete()

    def _put_failures_aside(self, names: Sequence[str]) -> None:
        """Write the file of failures with exactly these records."""
        assert self._failures is not None
        failed = {name: self._read(name) for name in names}
        if failed != self._failed:
            with replacing(self._failures) as file:
                file.writelines(failed.values())
        if not failed:
            self._failures.unlink(missing_ok=True)
        self._failed = failed
        self._lines |= {name: self._line(name)._replace(start=-1).packed() for name in names}

    def _in_order(self, order: Iterable[str]) -> list[str]:
        """Return the names in their final order; see `finish`."""
        numbers = {name: number for number, name in enumerate(order)}
        names, places, last = list(self._lines), array("q"), -1
        for name in names:
            number = numbers.get(name, -1)
            last = max(last, number)
            places.append(2 * last + 1 if number < 0 else 2 * number)
        return [names[each] for each in sorted(range(len(names)), key=places.__getitem__)]

    def _scan(self) -> None:
        """Note every record, its place and the configuration, beginning with the file of failures."""
        if self._failures is not None and self._failures.exists():
            with self._failures.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if line.endswith(b"\n"):
                        self._failed[self._note_line(self._failures, number, line, -1)] = line
                    elif number == 1 and not _BEGINNING.startswith(line[: len(_BEGINNING)]):
                        raise _foreign(self._failures, number)
        self._before = b""
        super()._scan()

    def _check_beginning(self, torn: bytes) -> None:
        if not _BEGINNING.startswith(torn[: len(_BEGINNING)]):
            raise _foreign(self.path, 1)

    def _read_line(self, number: int, line: bytes) -> None:
        self._note_line(self.path, number, line, self._end)

    def _note_line(self, path: Path, number: int, line: bytes, start: int) -> str:
        """Note a line, and return its record's name.

        It is parsed only if its configuration seems to differ from the previous line's.
        """
        try:
            head = head_of(line, by=self._by, same_prompt=self._same_prompt)
            if head is None or head.configuration != self._before:
                self._before = b"" if head is None else head.configuration
                record = self._parse(line)
                name, place = record[self._by], Line.of(record, start, len(line))
                columns: Iterable[str] = given(record)
            else:
                name, place = head.name, Line(head.key, head.status, start, len(line), head.said)
                columns = head.optional
        except SettingsError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _foreign(path, number) from None
        self._note(name, place, columns)
        return str(name)

    def _parse(self, line: bytes) -> dict[str, Any]:
        """Parse a record, and check that its configuration is the file's."""
        record: dict[str, Any] = json.loads(line)
        if not record["schema"].startswith("sira."):
            raise ValueError
        configuration = {name: value for name, value in configuration_of(record).items() if name in self._same}
        self.check(configuration)
        self.configuration |= configuration
        return record

    def _note(self, name: str, line: Line, columns: Iterable[str]) -> None:
        if name in self._lines and self._line(name).start < 0:
            del self._lines[name]  # this one is the last in the file
        elif name in self._lines:
            self._superseded = True
        self._lines[name] = line.packed()
        self.columns.update(columns)

    def _line(self, name: str) -> Line:
        return Line.unpacked(self._lines[name])

    def _said(self) -> Iterator[tuple[str, Said]]:
        return ((name, self._line(name).said) for name in self._lines)

    def _read(self, name: str) -> bytes:
        line = self._line(name)
        if line.start < 0:
            return self._failed[name]
        self._file.seek(line.start)
        data: bytes = self._file.read(line.length)
        return data


def _foreign(path: Path, number: int) -> DataError:
    return DataError(
        f"{path}: line {number} is not a record of sira: give another `output=`, or `overwrite=` to replace it"
    )
