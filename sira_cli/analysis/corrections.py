"""Texts that somebody has corrected on the page of `sira report`, and the records that they change."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sira_cli.analysis.record_file import Record
from sira_cli.errors import DataError
from sira_cli.parsing import from_json
from sira_cli.pictures.rows import read_rows

_OF_THE_TEXT = ("words", "choices", "removed", "added", "support")  # of the text before, and of no other


@dataclass(frozen=True)
class Correction:
    """The text that somebody wrote for a picture, and those before it; see the page of `sira report`."""

    name: str  # of the picture
    text: str
    earlier: tuple[str, ...] = ()  # corrections in files that were saved before


def read_corrections(path: Path) -> dict[str, Correction]:
    """Return the corrections in a file by the key of their record; the last one of a picture counts.

    Raises:
        DataError: a row is no correction.
    """
    corrections: dict[str, Correction] = {}
    for where, row in read_rows(path):
        texts: list[Any] = [row.get("file_name"), row.get("key"), row.get("text")]
        earlier = row.get("earlier", [])
        texts += earlier if isinstance(earlier, list) else [earlier]
        if row.get("schema") != "sira.correction/1" or not all(isinstance(value, str) for value in texts):
            raise DataError(f"{where}: is not a correction: expected a file that the page of sira report saved")
        name, key, text, *former = texts
        if key in corrections:
            former = [*corrections[key].earlier, corrections[key].text, *former]
        corrections[key] = Correction(name, text.strip(), tuple(map(str.strip, former)))
    return corrections


def versions(record: Record, correction: Correction) -> list[Record]:
    """Return a record with the texts that it had before a correction: the model's, and those of earlier corrections."""
    versions = [] if correction.text == record["text"] else [record]
    texts = list(correction.earlier)
    if "draft" in record:
        texts.append(record["draft"])
    for text in dict.fromkeys(texts):
        if text not in (correction.text, record["text"]):
            with suppress(DataError):  # a record with a schema, and a text that is no JSON
                versions.append(corrected(record, text))
    return versions


def corrected(record: Record, text: str) -> Record:
    """Return a record with another text, and the text before as `draft`; scores of the text before leave."""
    new = {name: value for name, value in record.items() if name not in _OF_THE_TEXT}
    new |= {"text": text, "draft": record["text"], "status": "ok", "error": ""}
    if "objects" in record:
        new["objects"] = []
    if record.get("json_schema"):
        try:
            new["data"] = from_json(text)
        except ValueError as error:
            name = record["file_name"]
            raise DataError(f"{name}: its text follows a schema, and its correction is no JSON") from error
    return new
