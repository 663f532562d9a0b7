"""Files of records that stay on disk: each record is found by its place in the file, and by its picture."""

from __future__ import annotations

import json
import os
import weakref
from array import array
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError
from sira_cli.pictures.names import is_uri
from sira_cli.run.records import REQUIRED

Record = dict[str, Any]
_SCHEMAS, _COMMANDS = ("sira.caption/", "sira.ask/", "sira.check/"), "sira caption, sira ask or sira check"
_SAME_PICTURE = ("name", "path", "image")  # ways to tell it, the surest first


class RecordFile:
    """Records of captions, answers or checks; `file[start]` reads the one at a place.

    A torn last line, of a run that was killed, is left out.
    """

    def __init__(self, path: Path) -> None:
        folder, start = path.parent.resolve(), 0
        self.path, self._starts, self._keys = path, array("q"), {name: array("q") for name in _SAME_PICTURE}
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
                name, image = name_of(record), record["image_sha256"] or name_of(record)
                place = name if is_uri(name) or "id" in record else os.path.normpath(folder / name)
                for keys, key in zip(self._keys.values(), (name, place, image), strict=True):
                    keys.append(hash(key))
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

    def newest(self, by: str = "name") -> dict[int, int]:
        """Return where each picture's last record begins, in the order in which the pictures come first."""
        return dict(zip(self._keys[by], self._starts, strict=True))

    def paired(self, other: RecordFile) -> tuple[list[tuple[int, int | None]], list[int]]:
        """Return the newest record of each picture with that in another file, and the records only there.

        Pictures are told by name, or, if that pairs more, by path (files in different folders) or by content.
        """
        pairs, rest = list[tuple[int, int | None]](), None
        for by in _SAME_PICTURE:
            mine, theirs = self.newest(by), other.newest(by)
            left = [start for key, start in theirs.items() if key not in mine]
            if rest is None or len(left) < len(rest):
                pairs, rest = [(start, theirs.get(key)) for key, start in mine.items()], left
            if not rest:
                break
        if all(partner is None for _, partner in pairs):
            raise DataError(
                f"{self.path} and {other.path} have no picture in common: give records about the same pictures"
            )
        return pairs, rest or []


def name_of(record: Record) -> str:
    """Return a record's name of its picture."""
    return str(record.get("id") or record["file_name"])


def _parsed(line: bytes) -> Record:
    record: Record = json.loads(line.decode(errors="surrogatepass").removeprefix("\ufeff"))  # from bytes it is slower
    for name in ("finish_reason", "error", "image_sha256"):
        record.setdefault(name, "")  # in a record of another program
    return record
