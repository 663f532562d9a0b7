"""Find the pictures of a run: files, folders, globs, lists, stores -> pictures in a stable order."""

from __future__ import annotations

import codecs
import glob
import hashlib
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch, fnmatchcase
from itertools import chain
from pathlib import Path, PurePath
from typing import BinaryIO

from sira_cli.errors import DataError, SettingsError, install
from sira_cli.pictures.datasets import IN_FOLDERS, is_data_file, pictures_in
from sira_cli.pictures.names import is_uri, on_disk, one_line, public
from sira_cli.pictures.opening import RAW, VIDEOS, endings
from sira_cli.pictures.packed import TARS, UNREAD, unread
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.rows import some
from sira_cli.pictures.shards import is_tar
from sira_cli.pictures.sources import STDIN, MemorySource, connected, located, scheme_source

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_COMPUTED = re.compile(r"cache-[0-9a-f]{16}(_\d+_of_\d+)?\.arrow")  # by `Dataset.map` and the like
# Endings of files that people keep among their pictures. Texts, records and systems' files are not named.
_PHOTOS = "heic heif hif avif jxl svg psd xcf raw gif bmp tif tiff"
MEDIA = RAW.union(VIDEOS, (f".{ending}" for ending in _PHOTOS.split()))
_KNOWN = MEDIA | UNREAD
_IN_HEIF = (".heic", ".heif", ".hif")
# Folders of thumbnails, deleted files and the like: Synology's, QNAP's, Windows', Lightroom's, macOS's, Linux's.
_SYSTEM = ("@eadir", "#recycle", "@recycle", "$recycle.bin", "*.lrdata", "__macosx", "lost+found")
_LONGEST = 2**16  # bytes of a path in a list: URLs may be longer than names of files
_MOST = 2**28  # bytes of a list


@dataclass(frozen=True)
class Shard:
    """Part `index` of `count`, counted from 1. Pictures are dealt out by a hash of their path, not by their number."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `I/N`."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise SettingsError(f"`shard=` {text}: expected I/N with I from 1 to N, such as 1/8")
        return cls(int(match[1]), int(match[2]))

    def holds(self, relative: str) -> bool:
        """Return whether a path belongs to this part. Each belongs to exactly one, independent of other paths."""
        digest = hashlib.sha256(os.fsencode(relative)).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.index - 1


class Pictures(list[Picture]):
    """The pictures of a run; `left_out` counts what is not read, by ending or folder (`@eaDir/`, `./sub/`)."""

    def __init__(self, pictures: Iterable[Picture] = (), left_out: Mapping[str, int] | None = None) -> None:
        """Make a list of pictures."""
        super().__init__(pictures)
        counts = [(-count, name) for name, count in (left_out or {}).items() if count > 0]
        self.left_out = {name: -count for count, name in sorted(counts)}


def left_out_message(left_out: Mapping[str, int]) -> str:
    """Return the line of a summary about what a run has left out."""
    files = 0
    subfolders = []
    system_folders = []
    for name, count in left_out.items():
        if name.startswith("./"):
            subfolders.append(name[2:-1])
        elif name.endswith("/"):
            system_folders.append(f"{count} {name[:-1]}")
        else:
            files += count
    parts = []
    if files:
        were = "file was" if files == 1 else "files were"
        parts.append(f"{files} {were} not read: {_by_ending(left_out)}")
    if system_folders:
        parts.append(f"thumbnails and deleted files were left out: {', '.join(system_folders)}")
    if subfolders:
        noun = "subfolder" if len(subfolders) == 1 else "subfolders"
        parts.append(f"{len(subfolders)} {noun} with pictures (-r includes them): {some(subfolders, 3)}")
    return "; ".join(parts)


def _by_ending(left_out: Mapping[str, int]) -> str:
    """Return the numbers of files by ending, with the remedies: `2 .heic (pip install ...), 1 .cr2`."""
    parts = []
    for ending, number in left_out.items():
        part = f"{number} {ending}"
        if ending in _IN_HEIF and ending not in endings():
            part += f" ({install('heif')})"
        if not ending.endswith("/"):
            parts.append(part)
    return ", ".join(parts)


def find_pictures(
    paths: Iterable[str],
    *,
    recursive: bool = False,
    exclude: Sequence[str] = (),
    shard: Shard | None = None,
    limit: int | None = None,
    image_column: str | None = None,
    repeats: bool = False,
) -> Pictures:
    """Return every picture once, in the order of `paths`; those in a folder are sorted by name.

    Args:
        paths: files, folders, globs (where no such file exists), URIs of stores, URLs, `-` for stdin. Missing files
            are also listed. WebDataset shards, Parquet, Arrow, JSON and CSV files stand for the pictures in them,
            `{000..123}` for many files; a folder without pictures for the shards, Parquet and Arrow files in it.
        recursive: include subfolders, after the files of a folder; links to folders are not followed.
        exclude: patterns of names of files and folders, or of paths below the folder that was given, to leave out.
        shard: keep this part only. A file that holds many pictures belongs to one part as a whole.
        limit: keep at most this many; the rest is not looked at.
        image_column: the column with the pictures, or the extension where a key of a shard has several; None: found.
        repeats: keep a picture as often as it is named.

    Raises:
        DataError: a table has no column of pictures.
        SettingsError: a path is empty, `-` is given twice, a store does not answer, or there are no pictures.
    """
    paths = [*paths]
    if "" in paths:
        raise SettingsError("a picture's path is empty")
    if paths.count(STDIN) > 1:
        raise SettingsError("'-' (stdin) can be given once")
    places = [on_disk(place) for path in paths for place in _expand_ranges(path)]
    looking = _Looking(recursive, alone=len(places) == 1)
    found: dict[str, Picture] = {}
    any_place = False
    any_data = False
    for location, relative in chain.from_iterable(map(looking.at, places)):
        any_place = True
        if _is_excluded(relative, exclude) or (shard is not None and not shard.holds(relative)):
            continue
        inside: Iterable[Picture] = (_single(location, relative),)
        if is_data_file(location) and not scheme_source(location):
            any_data = True
            inside = pictures_in(location, relative, image_column)
        for picture in inside:
            key = str(len(found)) if repeats else picture.identity
            found.setdefault(key, picture)
            if len(found) == limit:
                return Pictures(found.values())
    pictures = Pictures(found.values(), looking.left_out)
    if found:
        return pictures
    shown = ""
    if paths:
        shown = one_line(paths[0])
    if len(paths) > 1:
        shown += f" and {len(paths) - 1} more"
    if exclude and any_place and shard is None:
        raise SettingsError(f"`exclude=` {' '.join(exclude)} leaves out all pictures")
    if any_data:
        raise SettingsError(f"{shown}: no pictures inside")
    if not any_place:  # only folders can be empty: everything else is listed as it is
        raise SettingsError(f"{shown}: no pictures in this folder{_remedy(pictures.left_out, recursive)}")
    return pictures


def _remedy(left_out: Mapping[str, int], recursive: bool) -> str:
    """Return why a folder may have no pictures, as the end of a message."""
    others = _by_ending(left_out)
    if others:
        return f", but {others}: these formats are not read"
    return "" if recursive else " (subfolders count with -r)"


def _is_excluded(relative: str, patterns: Sequence[str]) -> bool:
    """Return whether patterns leave out a path: they match it, its name or the name of a folder."""
    names = (relative, *Path(relative).parts)
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


def _single(location: str, relative: str) -> Picture:
    """Return the picture at a path, with its fault if its name says that it is something else."""
    if location == STDIN:
        return Picture((MemorySource(STDIN, "", sys.stdin.buffer.read()),))
    picture = located(location, relative)
    why = unread(location)
    if not why or scheme_source(location) or picture.is_here() is False:
        return picture
    return picture.known(fault=f"{picture.label}: {why}")


Folders = Iterable[tuple[str, list[str], list[str]]]  # as from `os.walk`: the receiver may take subfolders out


@dataclass
class _Looking:
    """What paths stand for: the files, each with its path below the folder that was given."""

    recursive: bool
    alone: bool  # whether one path is looked at, so that a store that does not answer ends the run
    left_out: Counter[str] = field(default_factory=Counter)  # as in `Pictures`

    def at(self, path: str) -> Iterator[tuple[str, str]]:
        """Yield the files that a path stands for."""
        if path == STDIN or scheme_source(path):
            yield path, path
        elif is_uri(path):
            yield from self._in_store(path)
        elif os.path.isdir(path):  # noqa: PTH112 (False also for names that no file can have)
            failed: list[OSError] = []
            inside = self._inside(path, os.walk(path, onerror=failed.append), os.sep, failed)
            yield from _pictures_or_containers((str(Path(path, below)), below or ".") for below in inside)
        elif os.path.lexists(path):
            yield path, path
        else:
            yield from self._matching(path)

    def _matching(self, pattern: str) -> Iterator[tuple[str, str]]:
        """Yield the files that a glob stands for; without any, the path itself."""
        matches = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 (a Path takes no absolute pattern)
        if not matches:
            yield pattern, pattern
        for match in matches:
            system = _system_folder(match)
            if system and not _system_folder(pattern):
                self.left_out[f"{system}/"] += 1
            else:
                self.alone = False
                yield from self.at(match)

    def _in_store(self, uri: str) -> Iterator[tuple[str, str]]:
        """Yield the files in a folder of a store; `*` in the last part of a URI stands for any characters."""
        try:
            folder, inside = self._listed(uri)
        except (OSError, SettingsError) as error:
            if not self.alone:
                yield uri, uri
                return
            text = f"{public(uri)}: cannot be listed: {error}" if isinstance(error, OSError) else str(error)
            raise SettingsError(text) from error
        if inside is None:
            yield uri, uri.partition("://")[2]
        else:
            yield from _pictures_or_containers((f"{folder}/{below}", below) for below in inside)

    def _listed(self, uri: str) -> tuple[str, list[str] | None]:
        """Return the URI of a folder, and the files in it that a URI stands for; None: it is not a folder."""
        with connected(uri) as (store, path):
            if store.isdir(path):
                depth = None if self.recursive else 1
                folders = store.walk(path, maxdepth=depth, on_error="raise")
                return uri.rstrip("/"), list(self._inside(path.rstrip("/"), folders))
            above, _, last = path.rpartition("/")
            if "*" in last and not store.exists(path):
                names = [name.rpartition("/")[2] for name in store.glob(path)]
                return uri.rpartition("/")[0], list(self._inside(above, [(above, [], names)]))
        return "", None

    def _inside(self, top: str, folders: Folders, sep: str = "/", failed: list[OSError] | None = None) -> Iterator[str]:
        """Yield the pictures and containers in a folder that are not hidden, and subfolders that cannot be read.

        Args:
            top: the folder.
            folders: it and its subfolders.
            sep: stands between the parts of a path.
            failed: receives the errors of subfolders while `folders` goes on.
        """
        for root, below, files in chain(folders, [(top, [], [])]):
            while failed:
                yield _below(top, str(failed.pop().filename), sep)
            folder = _below(top, root, sep)
            system = {name for name in below if _system_folder(name) and not _is_hidden(name)}
            below[:] = sorted(name for name in below if not _is_hidden(name) and name not in system)
            names = [f"{folder}{sep}{name}" if folder else name for name in sorted(files) if not _is_hidden(name)]
            if folder and not self.recursive:
                place = f"./{PurePath(folder).parts[0]}/"
                self.left_out[place] |= any(PurePath(name).suffix.lower() in endings() for name in names)
                if self.left_out[place]:
                    below.clear()
                continue
            self.left_out.update(f"{name}/" for name in system)
            for name in names:
                ending = PurePath(name).suffix.lower()
                if ending in endings() or name.lower().endswith(IN_FOLDERS):
                    yield name
                elif ending in _KNOWN:
                    self.left_out[ending] += 1


def _below(top: str, path: str, sep: str) -> str:
    """Return a path as seen from a folder above it."""
    return path[len(top) :].strip(f"/{sep}")


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def _system_folder(path: str) -> str:
    """Return the first part of a path that is a folder of `_SYSTEM`; empty without one."""
    for part in Path(path).parts:
        if any(fnmatch(part.lower(), pattern) for pattern in _SYSTEM):
            return part
    return ""


def _pictures_or_containers(files: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the pictures of a folder; without any, the files that hold many, but tables about shards and caches."""
    containers: dict[str, str] = {}
    any_picture = False
    for location, relative in files:
        if is_data_file(relative):
            containers[relative] = location
        else:
            any_picture = True
            yield location, relative
    if any_picture:
        return
    for relative, location in containers.items():
        path = Path(relative)
        stem = str(path.with_suffix(""))
        is_about_shard = not is_tar(relative) and any(stem + tar in containers for tar in TARS)  # as of img2dataset
        if not is_about_shard and not _COMPUTED.fullmatch(path.name):
            yield location, relative


def _expand_ranges(path: str) -> Iterator[str]:
    """Yield the paths of a pattern such as `cc3m-{00000..00575}.tar`; any other path as it is."""
    match = _RANGE.search(path)
    if match is None or os.path.lexists(path):
        yield path
        return
    first, last = match.groups()
    if int(first) > int(last):
        raise SettingsError(f"{one_line(path)}: the range {match[0]} is empty: expected the smaller number first")
    width = 0
    if first.startswith("0") or last.startswith("0"):
        width = max(len(first), len(last))
    for number in range(int(first), int(last) + 1):
        yield from _expand_ranges(f"{path[: match.start()]}{number:0{width}}{path[match.end() :]}")


def read_list(file: BinaryIO, shown: str = "the list") -> list[str]:
    """Return the paths of a list in UTF-8 or UTF-16, one per line."""
    data = file.read(_MOST + 1)
    whole = len(data) <= _MOST
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = os.fsencode(data.decode("utf-16", "replace"))
    lines = [line.removesuffix(b"\r") for line in data.removeprefix(codecs.BOM_UTF8).split(b"\n")]
    if not whole or b"\0" in data or any(len(line) > _LONGEST for line in lines):
        raise DataError(
            f"{shown}: is not a list of paths: expected lines of at most {_LONGEST:,} bytes, and {_MOST:,} in all"
        )
    return [os.fsdecode(line) for line in lines if line]
