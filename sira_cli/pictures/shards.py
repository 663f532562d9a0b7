"""WebDataset shards: tar files in which the members of a key follow each other, `000.png`, `000.json`."""

from __future__ import annotations

import contextlib
import functools
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from sira_cli.pictures.names import one_line
from sira_cli.pictures.packed import TARS, unpacked

_LARGEST = 2**31  # bytes of a member
# As WebDataset has it: the key ends at the first full stop of the file's name.
MEMBER = re.compile(r"((?:.*/|)[^./]+)[.]([^/]*)")

Sample = Mapping[str, Any]  # values by column, or bytes by extension


def is_tar(name: str) -> bool:
    """Return whether a file of this name is a WebDataset shard."""
    return name.lower().endswith(TARS)


def keys_in(location: str) -> Iterator[tuple[str, Sample]]:
    """Yield each key in a tar file, and its members by extension: those of a key follow each other."""
    before = ""
    sample: dict[str, bytes] = {}
    for name, data in _tar_files(location):
        match = MEMBER.fullmatch(name)
        if match is None:
            continue
        key, extension = match.groups()
        if sample and (key != before or extension in sample):
            yield before, sample
            sample = {}
        before = key
        sample[extension] = data
    if sample:
        yield before, sample


@functools.lru_cache(maxsize=16)
def apart_in(location: str, version: tuple[int, ...] | None) -> dict[str, str]:
    """Return the keys of a tar file whose members do not follow each other, each with the first that stands apart."""
    seen: set[str] = set()
    apart: dict[str, str] = {}
    before = ""
    with contextlib.suppress(Exception):  # a damaged end is the error of its picture
        for name, _ in _tar_files(location, names_only=True):
            match = MEMBER.fullmatch(name)
            if match is None:
                continue
            key = match[1]
            if key != before and key in seen:
                apart.setdefault(key, name)
            seen.add(key)
            before = key
    return apart


def _tar_files(location: str, *, names_only: bool = False) -> Iterator[tuple[str, bytes]]:
    with unpacked(location) as file, tarfile.open(fileobj=file, mode="r|*") as archive:
        for member in archive:
            if member.isreg() and not PurePath(member.name).name.startswith((".", "__")):
                if member.size > _LARGEST:
                    raise ValueError(f"{one_line(member.name)} has more than {_LARGEST / 2**30:.0f} GiB")
                yield member.name, b"" if names_only else archive.extractfile(member).read()  # type: ignore[union-attr]
            archive.members = []  # type: ignore[attr-defined]  # else it keeps them
        if archive.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
            raise ValueError("a header is damaged")  # tarfile takes it for the end
