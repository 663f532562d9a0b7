"""A line of a file of records, and what is needed of it without parsing all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from sira_cli.models.records import CONFIGURATION, OPTIONAL
from sira_cli.runs.repeated import Said


class Head(NamedTuple):
    """What is needed of a line, taken from its bytes: to parse all of it takes several times as long.

    Attributes:
        configuration: all that is equal in a file; it may differ where that does not.
        optional: the names of the optional fields.
    """

    name: str
    key: str
    status: str
    said: Said
    configuration: bytes
    optional: list[str]


_HEAD = re.compile(
    rb'\{"schema": ("sira\.\w+/\d+"), "key": "(\w*)", '
    rb'"file_name": ("(?:[^"\\]|\\.)*"), "status": "(ok|error)", "text": '
)


def head_of(line: bytes, *, same_prompt: bool = True) -> Head | None:
    """Return what is needed of a line that looks as sira writes it; None for other lines.

    With `same_prompt`, all lines of the file have the same prompt.

    What is searched for here is in no text: there, quotes have a backslash before them.
    """
    found = _HEAD.match(line)
    error, first = line.find(b', "error": '), line.find(b', "prompt": ')
    last, image = line.find(b', "finish_reason": '), line.find(b', "image_sha256": ')
    version = line.find(b', "sira_version": ')
    if found is None or not 0 < error < first < last < image < version:
        return None
    first = first if same_prompt else line.find(b', "preset": ', first)
    rest, optional = split_optional(line[version:])
    same = b"".join(name.encode() + value for name, value in optional.items() if name in CONFIGURATION)
    schema, key, name, status = found.groups()
    name = name[1:-1].decode() if b"\\" not in name else json.loads(name)
    fields = [name for name, value in optional.items() if value != b"null"]
    said = Said.of(
        schema.decode(), status.decode(), line[found.end() : error], line[image:version], optional.get("warnings", b"")
    )
    return Head(name, key.decode(), status.decode(), said, schema + line[first:last] + rest + same, fields)


def split_optional(line: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Split a line as sira writes it into its beginning and the JSON of its optional fields, which stand at the end."""
    rest, optional = line.rstrip().removesuffix(b"}"), {}
    for name in reversed(OPTIONAL):
        rest, found, value = rest.partition(b', "%s": ' % name.encode())
        if found:
            optional[name] = value
    return rest, optional


def given(record: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields that say something."""
    return [name for name, value in record.items() if value is not None]


def as_line(record: dict[str, Any]) -> bytes:
    """Return a record as a line."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
