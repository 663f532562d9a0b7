"""Lists of paths, as people and `find -print0` write them."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable
from typing import BinaryIO

from sira_cli.errors import DataError

_LONGEST = 2**16  # bytes of a path: URLs may be longer than names of files
_MOST = 2**30  # bytes of a list
_CHUNK = 2**20  # bytes


def read_list(file: BinaryIO, shown: str = "the list") -> list[str]:
    """Return the paths of a list: one per line, or ended by NUL bytes if there is one (`find -print0`).

    A byte order mark is not part of the first path; with that of UTF-16, the list is in UTF-16.
    """
    chunk = file.read(_CHUNK)
    decoded = _decoder(chunk)
    rest = decoded(chunk).removeprefix(codecs.BOM_UTF8)
    separator = b"\0" if b"\0" in rest else b"\n"
    found: list[str] = []
    size = 0
    while chunk:
        *lines, rest = rest.split(separator)
        size += len(chunk)
        if separator == b"\n":
            lines = [line.removesuffix(b"\r") for line in lines]
        elif b"" in lines:
            raise DataError(f"{shown}: is not a list of paths: two NUL bytes follow each other")
        if size > _MOST or any(len(line) > _LONGEST for line in (*lines, rest)):
            raise DataError(
                f"{shown}: is not a list of paths: expected lines of at most {_LONGEST:,} bytes, and {_MOST:,} in all"
            )
        found += [os.fsdecode(line) for line in lines if line]
        chunk = file.read(_CHUNK)
        rest += decoded(chunk)
    last = rest.removesuffix(b"\r") if separator == b"\n" else rest
    return [*found, os.fsdecode(last)] if last else found


def _decoder(head: bytes) -> Callable[[bytes], bytes]:
    """Return the function from the bytes of a list to those of file names."""
    if not head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return bytes
    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
    return lambda data: os.fsencode(decoder.decode(data))
