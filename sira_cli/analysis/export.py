"""The records of a run in other forms, with texts that somebody has corrected."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sira_cli.analysis.exiftool import arguments, is_namable
from sira_cli.analysis.record_file import WITH_CHECKS, RecordFile
from sira_cli.analysis.tables import write_table
from sira_cli.data.captions.sidecars import Sidecars
from sira_cli.data.rows import read_rows
from sira_cli.errors import DataError
from sira_cli.files import replacing
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import FileSource, recorded
from sira_cli.run.records import as_line

CORRECTION = "sira.correction/1"
_OF_THE_TEXT = ("words", "choices", "removed", "added")  # of the text before, and of no other


class Correction(NamedTuple):
    """A text that somebody has corrected, and the picture's name."""

    name: str
    text: str


class Item(NamedTuple):
    """A record, and as it was before somebody corrected it; None: nobody did."""

    record: dict[str, Any]
    before: dict[str, Any] | None


@dataclass
class Written:
    """What became of the records.

    Attributes:
        texts: number of records written.
        left_out: numbers of records without a text file or sidecar, by reason.
    """

    texts: int = 0
    left_out: dict[str, int] = field(default_factory=dict)

    def leave_out(self, reason: str) -> None:
        """Count a record that has none."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1


class Export:
    """The newest record of each picture in a file, in order. The texts stay on disk."""

    def __init__(self, path: Path, corrections: Path | None = None) -> None:
        """Scan the file."""
        self.path = path
        self._file = RecordFile(path, WITH_CHECKS)
        self._numbers = self._file.newest("name")[1]
        self._corrections = {} if corrections is None else read_corrections(corrections)
        self.keys: set[str] = set()
        missing = dict(self._corrections)
        for record, _ in self:
            self.keys.update(record)
            missing.pop(record["key"], None)
        for correction in missing.values():
            raise DataError(f"{corrections}: {correction.name}: no record of {path} has the key of this correction")

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Item]:
        for number in self._numbers:
            record: dict[str, Any] = json.loads(self._file.line(int(number)))
            correction = self._corrections.get(record["key"])
            if correction is None or correction.text == record["text"]:
                yield Item(record, None)
            else:
                yield Item(corrected(record, correction.text), record)

    def pictures(self) -> Iterator[tuple[Picture, Item]]:
        """Yield the records with their pictures."""
        for item in self:
            yield recorded(item.record["file_name"], self.path.parent), item

    def write_table(self, path: Path) -> None:
        """Write all records as a table, .csv or .parquet."""
        write_table((item.record for item in self), path, self.keys)

    def write_records(self, path: Path) -> None:
        """Write all records as lines; names of pictures are relative to the file's folder."""
        folder = path.parent.resolve()
        moved = folder != self.path.parent.resolve()
        with replacing(path) as file:
            for picture, item in self.pictures():
                name = picture.name_in(folder) if moved else item.record["file_name"]
                images = picture.images(name) if moved else None
                file.write(as_line(item.record | {"file_name": name} | ({"images": images} if images else {})))

    def write_sidecars(self, extension: str, output_dir: Path | None = None, *, overwrite: bool = False) -> Written:
        """Write text files as a run does. One that holds the text before a correction is replaced."""
        written = Written()
        found = [picture for picture, item in self.pictures() if not _without_text(item.record)]
        kept = Sidecars(found, extension=extension, output_dir=output_dir, overwrite=overwrite)
        replaced = Sidecars((), extension=extension, output_dir=output_dir, overwrite=True)
        replaced.apart = kept.apart
        for picture, (record, before) in self.pictures():
            if reason := _without_text(record):
                written.leave_out(reason)
                continue
            own = before is not None and kept.is_there(picture) and kept.text(picture).split() == before["text"].split()
            if not own and kept.keeps(picture):
                written.leave_out("texts whose files exist")
                continue
            (replaced if own else kept).write(picture, record["text"])
            written.texts += 1
        return written

    def write_arguments(self, path: Path, *, replace: bool = False) -> Written:
        """Write an argument file for ExifTool."""
        written = Written()
        with replacing(path) as file:
            for picture, (record, before) in self.pictures():
                if reason := _without_text(record) or _without_sidecar(picture):
                    written.leave_out(reason)
                    continue
                lines = arguments(Path(picture.location), record, before, replace=replace)
                file.write(b"".join(os.fsencode(line) + b"\n" for line in lines))
                written.texts += 1
        return written


def read_corrections(path: Path) -> dict[str, Correction]:
    """Return corrected texts by the key of their records; the last one of a picture counts.

    Each line is `{"schema": "sira.correction/1", "file_name": ..., "key": ..., "text": ...}`.
    """
    found: dict[str, Correction] = {}
    for where, row in read_rows(path):
        name, key, text = (row.get(each) for each in ("file_name", "key", "text"))
        if row.get("schema") != CORRECTION or not all(isinstance(each, str) for each in (name, key, text)):
            raise DataError(f"{where}: is not a correction: expected a file that the page of sira report saved")
        found[str(key)] = Correction(str(name), str(text).strip())
    return found


def corrected(record: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return a record with another text, and the text before as `draft`.

    An object stays, at its new places, if the new text has one of the words that named it. The other objects and all
    scores of words leave, and the support of a check is that of the objects that stay.
    """
    new = {name: value for name, value in record.items() if name not in _OF_THE_TEXT}
    new |= {"text": text, "draft": record["text"], "status": "ok", "error": ""}
    if "objects" in record:
        moved = (_moved(claim, record["text"], text) for claim in record["objects"])
        new["objects"] = [claim for claim in moved if claim["spans"]]
        if "support" in record:
            new["support"] = min((claim["support"] for claim in new["objects"]), default=1.0)
    if record.get("json_schema"):
        try:
            new["data"] = json.loads(text)
        except ValueError as error:
            raise DataError(
                f"{record['file_name']}: its text follows a schema, and its correction is no JSON"
            ) from error
    return new


def _moved(claim: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    """Return a claim with the places in the new text of the words that stand at its places in the old one."""
    words = {old[start:end].lower() for start, end in claim["spans"]} - {""}
    pattern = "|".join(rf"\b{re.escape(word)}\b" for word in sorted(words, key=len, reverse=True))
    spans = [list(found.span()) for found in re.finditer(pattern, new, re.IGNORECASE)] if pattern else []
    return {**claim, "spans": spans}


def _without_text(record: Mapping[str, Any]) -> str:
    """Return why a record has no text; empty if it has."""
    if record["status"] != "ok":
        return "records of pictures that failed"
    return "" if record["text"].strip() else "empty texts"


def _without_sidecar(picture: Picture) -> str:
    """Return why ExifTool cannot write a sidecar of a picture; empty if it can."""
    if not isinstance(picture.sources[0], FileSource) or len(picture.sources) > 1:
        return "texts about several pictures, or about pictures that are no files"
    if not picture.is_here():
        return "texts about pictures that are not there"
    if not is_namable(Path(picture.location)):
        return "texts about pictures whose names ExifTool cannot read"
    return ""
