"""A line of a file of records, and the fields that are needed without parsing all of it, which takes much longer."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from sira_cli.data.records.record import CONFIGURATION, OPTIONAL
from sira_cli.data.records.repeated import WARNING

FAILED, MARKED = 1, 2  # flags of a record: its picture failed; it has the warning that many pictures share its text


class Head(NamedTuple):
    """The fields of a record that are needed without its text. Numbers are hashes.

    Attributes:
        text: of a caption; 0 for answers, which many pictures may share.
        image: of its picture's content.
        flags: of `FAILED` and `MARKED`.
        configuration: all that is equal in a file, as it is written; it may differ where that does not.
    """

    name: str
    key: str
    text: int
    image: int
    flags: int
    configuration: bytes

    @classmethod
    def of(cls, record: Mapping[str, Any], by: str) -> Head:
        """Return the fields of a record, whose name is its field `by`."""
        text, image, warnings = (
            json.dumps(record.get(name), ensure_ascii=False).encode() for name in ("text", "image_sha256", "warnings")
        )
        said = _hashed(record["schema"], record["status"] == "error", text, image, warnings)
        return cls(record[by], record["key"], *said, b"")


def _hashed(schema: str, failed: bool, text: bytes, image: bytes, warnings: bytes) -> tuple[int, int, int]:
    """Return `text`, `image` and `flags` of a record, from the JSON of its fields."""
    is_caption = not failed and "sira.caption/" in schema
    return hash(text) if is_caption else 0, hash(image), FAILED * failed + MARKED * (WARNING.encode() in warnings)


_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_HEAD = re.compile(
    rb'\{"schema": ("sira\.\w+/\d+"), (?:"id": (%(s)s), )?"key": "(\w*)", '
    rb'"file_name": (%(s)s), "status": "(ok|error)", "text": (%(s)s), "error": ' % {b"s": _STRING}
)


def head_of(line: bytes, *, by: str = "file_name", same_prompt: bool = True) -> Head | None:
    """Return the needed fields of a line that sira wrote; None for other lines.

    The searched byte strings cannot occur in a text, in which quotes are escaped.
    """
    found = _HEAD.match(line)
    if found is None:
        return None
    first = line.find(b', "prompt": ', found.end())
    last = line.find(b', "finish_reason": ', first)
    image = line.find(b', "image_sha256": ', last)
    version = line.find(b', "sira_version": ', image)
    if not 0 < first < last < image < version:
        return None
    first = first if same_prompt else line.find(b', "preset": ', first)
    schema, number, key, file_name, status, text = found.groups()
    name = file_name if by == "file_name" else number
    if name is None:
        return None
    end = _end_of(line[version:])
    content = line[image + len(b', "image_sha256": ') : version]
    said = _hashed(schema.decode(), status == b"error", text, content, end.warnings)
    name = name[1:-1].decode() if b"\\" not in name else json.loads(name)
    return Head(name, key.decode(), *said, schema + line[first:last] + end.configuration)


class _End(NamedTuple):
    """The needed fields at a line's end: those equal in the whole file, and the warnings."""

    configuration: bytes
    warnings: bytes


@functools.lru_cache(maxsize=64)  # most lines of a file end alike
def _end_of(end: bytes) -> _End:
    rest, optional = split_optional(end)
    same = b"".join(name.encode() + value for name, value in optional.items() if name in CONFIGURATION)
    return _End(rest + same, optional.get("warnings", b""))


def split_optional(line: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Split a line of sira into its beginning and the JSON of its optional fields at the end."""
    rest, optional = line.rstrip().removesuffix(b"}"), {}
    for name in reversed(OPTIONAL):
        rest, found, value = rest.partition(b', "%s": ' % name.encode())
        if found:
            optional[name] = value
    return rest, optional


def as_line(record: dict[str, Any]) -> bytes:
    """Return a record as a line."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
