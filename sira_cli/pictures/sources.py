"""Which pictures a run is about: files, folders, globs, lists, stores -> `Source`s in a stable order."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sira_cli.errors import PictureError, SettingsError
from sira_cli.pictures import stores as remote
from sira_cli.pictures.opening import endings, one_line

STDIN = "-"


@dataclass(frozen=True)
class Source:
    """A picture to be opened.

    Attributes:
        path: where it is; `-` is stdin; may be the URI of an object store.
        relative: the path below the folder that was given, or as it was given: for shards and mirrored trees.
    """

    path: str
    relative: str


@dataclass(frozen=True)
class Shard:
    """Part `index` of `count`, 1-based: pictures are dealt out by a hash of their path, not by their number."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From `I/N`.

        Raises:
            SettingsError: not of this form, or I is not in 1..N.
        """
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise SettingsError(f"shard {text!r}: expected I/N with I from 1 to N, such as 1/8")
        return cls(int(match[1]), int(match[2]))

    def holds(self, source: Source) -> bool:
        """Whether this part does that picture. Every picture is in exactly one part, whatever others there are."""
        digest = hashlib.sha256(os.fsencode(source.relative)).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.index - 1


def find_sources(
    paths: Iterable[str], *, recursive: bool = False, shard: Shard | None = None, limit: int | None = None
) -> list[Source]:
    """Every picture once, in the order of `paths`; what is in a folder sorted by name.

    Args:
        paths: files, folders, globs (where no such file exists), URIs of stores, `-`. What does not
            exist is listed too: it becomes an error of its own when it is opened.
        recursive: with subfolders, after the files beside them; links to folders are not followed.
        shard: keep this part only.
        limit: keep so many at most.

    Raises:
        SettingsError: an empty path, `-` twice, a store that does not answer, or nothing is left.
    """
    paths = list(paths)
    if "" in paths:
        raise SettingsError("a picture's path is empty")
    if paths.count(STDIN) > 1:
        raise SettingsError("'-' (stdin) can be given once")
    found: dict[str, Source] = {}
    for path in paths:
        for source in _expand(path, recursive):
            same = source.path if remote.is_uri(source.path) else os.path.normpath(source.path)
            found.setdefault(same, source)
    if not found:
        # Only folders can hold nothing: all else is listed as it is.
        subfolders = "" if recursive else " (subfolders count with -r)"
        raise SettingsError(f"{_shown(paths)}: no pictures in this folder{subfolders}")
    sources = [source for source in found.values() if shard is None or shard.holds(source)]
    return sources[:limit]


def check_images(folder: Path, names: Sequence[str]) -> None:
    """Whether a folder is there and holds any of a benchmark's pictures, before a model is loaded.

    Args:
        folder: of the option --images.
        names: of the pictures, each once, at least one.

    Raises:
        SettingsError: it is no folder.
        PictureError: it holds none of them.
    """
    if not folder.is_dir():
        raise SettingsError(f"--images {folder}: is not a folder")
    if not any(os.path.lexists(folder / name) for name in names):
        others = f", nor any of the other {len(names) - 1}" * (len(names) > 1)
        raise PictureError(f"{folder / names[0]}: no such file{others}: is --images right?")


def read_list(data: bytes) -> list[str]:
    """Paths from a file: one a line, or each ended by a NUL byte if there is one (`find -print0`)."""
    separator = b"\0" if b"\0" in data else b"\n"
    lines = data.split(separator)
    if separator == b"\n":
        lines = [line.removesuffix(b"\r") for line in lines]
    return [os.fsdecode(line) for line in lines if line]


def _is_folder(path: str) -> bool:
    """Whether there is a folder; not an error for names that no file can have."""
    try:
        return Path(path).is_dir()
    except OSError:
        return False


def _expand(path: str, recursive: bool) -> Iterator[Source]:
    if path == STDIN:
        yield Source(STDIN, STDIN)
    elif remote.is_uri(path):
        for uri, relative in remote.walk(path, recursive):
            if uri == path or Path(relative).suffix.lower() in endings():
                yield Source(uri, relative)
    elif _is_folder(path):
        for picture in _walk(path, recursive):
            yield Source(picture, os.path.relpath(picture, path))
    elif os.path.lexists(path) or not (matches := _matches(path)):
        yield Source(path, path)
    else:
        for match in matches:
            yield from _expand(match, recursive)


def _matches(pattern: str) -> list[str]:
    if not glob.has_magic(pattern):
        return []
    return sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 (a Path takes no absolute pattern)


def _walk(folder: str, recursive: bool) -> Iterator[str]:
    """Files whose names end as those of pictures do, hidden ones left out; a folder that cannot be read itself."""
    try:
        with os.scandir(folder) as entries:
            inside = sorted(
                (entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name
            )
    except OSError:
        yield folder
        return
    for entry in inside:
        if Path(entry.name).suffix.lower() in endings() and not _is_folder(entry.path):
            yield str(Path(folder, entry.name))
    if recursive:
        for entry in inside:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(str(Path(folder, entry.name)), recursive)


def _shown(paths: list[str]) -> str:
    return one_line(paths[0]) + f" and {len(paths) - 1} more" * (len(paths) > 1)
