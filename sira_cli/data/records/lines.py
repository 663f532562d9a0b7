"""A line of a file of records, and the fields that are needed without parsing all of it."""

from __future__ import annotations

import functools
import json
import re
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from sira_cli.data.records.record import CONFIGURATION, OPTIONAL
from sira_cli.data.records.repeated import Said


class Head(NamedTuple):
    """The needed fields of a line, cut from its bytes: parsing takes several times as long.

    Attributes:
        configuration: the bytes of the fields that are equal in a file; equal fields may still have different bytes.
        optional: the names of the optional fields.
    """

    name: str
    key: str
    status: str
    said: Said
    configuration: bytes
    optional: list[str]


class Line(NamedTuple):
    """Where a record stands in the file; `start` is -1 for one in the file of failures."""

    key: str
    status: str
    start: int
    length: int
    said: Said

    @classmethod
    def of(cls, record: Mapping[str, Any], start: int, length: int) -> Line:
        """Return the fields of a record that stay in memory, packed."""
        return cls(record["key"], record["status"], start, length, Said.of_record(record))

    def packed(self) -> bytes:
        """Pack the fields into one object, a sixth of the size: a file may have millions of lines."""
        said = self.said
        hashed = _HASH.fullmatch(self.key) is not None
        key = bytes.fromhex(self.key) if hashed else self.key.encode()
        flags = _ERROR * (self.status == "error") + _CAPTION * (said.text is not None) + _MARKED * said.marked
        flags += _HASHED * hashed
        return _PACKED.pack(self.start, self.length, flags, said.text or 0, said.image) + key

    @classmethod
    def unpacked(cls, data: bytes) -> Line:
        """Return the head of a packed line."""
        start, length, flags, text, image = _PACKED.unpack_from(data)
        said = Said(text if flags & _CAPTION else None, image, bool(flags & _MARKED))
        rest = data[_PACKED.size :]
        key = rest.hex() if flags & _HASHED else rest.decode()
        return cls(key, "error" if flags & _ERROR else "ok", start, length, said)


_HASH = re.compile("[0-9a-f]{64}")
_PACKED = struct.Struct("<qqBqq")
_ERROR, _CAPTION, _MARKED, _HASHED = 1, 2, 4, 8

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_HEAD = re.compile(
    rb'\{"schema": ("sira\.\w+/\d+"), (?:"id": (%(s)s), )?"key": "(\w*)", '
    rb'"file_name": (%(s)s), "status": "(ok|error)", "text": (%(s)s), "error": ' % {b"s": _STRING}
)


def head_of(line: bytes, *, by: str = "file_name", same_prompt: bool = True) -> Head | None:
    """Return the needed fields of a line that sira wrote; None for other lines.

    The searched byte strings cannot occur in a text, in which quotes are escaped.

    Args:
        line: with its newline.
        by: the field that identifies records: `file_name` or `id`.
        same_prompt: whether all lines of the file have the same prompt.
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
    said = Said.of(schema.decode(), status.decode(), text, line[image:version], end.warnings)
    name = name[1:-1].decode() if b"\\" not in name else json.loads(name)
    return Head(name, key.decode(), status.decode(), said, schema + line[first:last] + end.configuration, end.fields)


class _End(NamedTuple):
    """The needed fields at a line's end: those equal in the whole file, the names of the others, the warnings."""

    configuration: bytes
    fields: list[str]
    warnings: bytes


@functools.lru_cache(maxsize=64)  # most lines of a file end alike
def _end_of(end: bytes) -> _End:
    rest, optional = split_optional(end)
    same = b"".join(name.encode() + value for name, value in optional.items() if name in CONFIGURATION)
    fields = [name for name, value in optional.items() if value != b"null"]
    return _End(rest + same, fields, optional.get("warnings", b""))


def split_optional(line: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Split a line of sira into its beginning and the JSON of its optional fields at the end."""
    rest, optional = line.rstrip().removesuffix(b"}"), {}
    for name in reversed(OPTIONAL):
        rest, found, value = rest.partition(b', "%s": ' % name.encode())
        if found:
            optional[name] = value
    return rest, optional


def given(record: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields that are not empty."""
    return [name for name, value in record.items() if value is not None]


def as_line(record: dict[str, Any]) -> bytes:
    """Return a record as a line."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
