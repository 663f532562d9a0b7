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

from sira_cli.errors import DataError, PictureError, PictureSettingsError, SettingsError, install
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
        self.left_out = dict(sorted((+Counter(left_out or {})).items(), key=lambda each: (-each[1], each[0])))


def left_out_message(left_out: Mapping[str, int]) -> str:
    """Return the line of a summary about what a run has left out."""
    number = sum(count for name, count in left_out.items() if not name.endswith("/"))
    inside = [name[2:-1] for name in left_out if name.startswith("./")]
    system = [f"{count} {name[:-1]}" for name, count in left_out.items() if name.endswith("/") and name[:2] != "./"]
    parts = [f"{number} {'file was' if number == 1 else 'files were'} not read: {_by_ending(left_out)}"] * bool(number)
    if system:
        parts.append(f"thumbnails and deleted files were left out: {', '.join(system)}")
    if inside:
        folders = f"{len(inside)} subfolder{'s' * (len(inside) > 1)} with pictures (-r includes them)"
        parts.append(f"{folders}: {some(inside, 3)}")
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
    if "" in (paths := [*paths]):
        raise SettingsError("a picture's path is empty")
    if paths.count(STDIN) > 1:
        raise SettingsError("'-' (stdin) can be given once")
    every = [on_disk(path) for given in paths for path in _expand_ranges(given)]
    looking, found = _Looking(recursive, alone=len(every) == 1), dict[str, Picture]()
    any_place, any_data = False, False
    for location, relative in (place for path in every for place in looking.at(path)):
        any_place = True
        if any(fnmatchcase(name, glob) for glob in exclude for name in (relative, *Path(relative).parts)):
            continue
        if shard is not None and not shard.holds(relative):
            continue
        inside: Iterable[Picture] = (_single(location, relative),)
        if location == STDIN:
            inside = (Picture((MemorySource(STDIN, "", sys.stdin.buffer.read()),)),)
        elif is_data_file(location) and not scheme_source(location):
            any_data, inside = True, pictures_in(location, relative, image_column)
        for picture in inside:
            found.setdefault(f"{len(found)}" if repeats else picture.identity, picture)
            if len(found) == limit:
                return Pictures(found.values())
    pictures = Pictures(found.values(), looking.left_out)
    shown = one_line(paths[0]) + f" and {len(paths) - 1} more" * (len(paths) > 1) if paths else ""
    if exclude and any_place and not found and shard is None:
        raise SettingsError(f"`exclude=` {' '.join(exclude)} leaves out all pictures")
    if any_data and not found:
        raise SettingsError(f"{shown}: no pictures inside")
    if not any_place:  # only folders can be empty: everything else is listed as it is
        others = _by_ending(pictures.left_out)
        but = f", but {others}: these formats are not read" if others else " (subfolders count with -r)"
        raise SettingsError(f"{shown}: no pictures in this folder{but if others or not recursive else ''}")
    return pictures


def _single(location: str, relative: str) -> Picture:
    """Return the picture at a path, with its fault if its name says that it is something else."""
    picture, why = located(location, relative), unread(location)
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
        elif os.path.lexists(path) or not (matches := sorted(glob.glob(path, recursive=True))):  # noqa: PTH207 (a Path takes no absolute pattern)
            yield path, path
        else:
            for match in matches:
                if (system := _system_folder(match)) and not _system_folder(path):
                    self.left_out[f"{system}/"] += 1
                else:
                    self.alone = False
                    yield from self.at(match)

    def _in_store(self, uri: str) -> Iterator[tuple[str, str]]:
        """Yield the files in a folder of a store; `*` in the last part of a URI stands for any characters."""
        folder, inside, relative = uri.rstrip("/"), None, uri.partition("://")[2]
        try:
            with connected(uri) as (store, path):
                above, _, last = path.rpartition("/")
                if store.isdir(path):
                    depth = None if self.recursive else 1
                    inside = [*self._inside(path.rstrip("/"), store.walk(path, maxdepth=depth, on_error="raise"))]
                elif "*" in last and not store.exists(path):
                    folder, names = uri.rpartition("/")[0], [name.rpartition("/")[2] for name in store.glob(path)]
                    inside = [*self._inside(above, [(above, [], names)])]
        except (OSError, SettingsError) as error:
            if self.alone:
                text = f"{public(uri)}: cannot be listed: {error}" if isinstance(error, OSError) else str(error)
                raise SettingsError(text) from error
            relative = uri
        if inside is None:
            yield uri, relative
        else:
            yield from _pictures_or_containers((f"{folder}/{below}", below) for below in inside)

    def _inside(self, top: str, folders: Folders, sep: str = "/", failed: list[OSError] | None = None) -> Iterator[str]:
        """Yield the pictures and containers in a folder that are not hidden, and subfolders that cannot be read."""
        for root, below, files in chain(folders, [(top, [], [])]):
            while failed:  # of `os.walk`
                yield str(failed.pop().filename)[len(top) :].strip(f"/{sep}")
            folder = root[len(top) :].strip(f"/{sep}")
            system = [name for name in below if _system_folder(name) and name[0] != "."]
            below[:] = sorted(name for name in below if name[0] != "." and name not in system)
            names = [folder + sep * bool(folder) + name for name in sorted(files) if not name.startswith(".")]
            if folder and not self.recursive:
                place = f"./{PurePath(folder).parts[0]}/"
                self.left_out[place] |= any(PurePath(name).suffix.lower() in endings() for name in names)
                below[:] = [] if self.left_out[place] else below
                continue
            self.left_out.update(f"{name}/" for name in system)
            for name in names:
                ending = PurePath(name).suffix.lower()
                if ending in endings() or name.lower().endswith(IN_FOLDERS):
                    yield name
                elif ending in _KNOWN:
                    self.left_out[ending] += 1


def _system_folder(path: str) -> str:
    """Return the first part of a path that is a folder of `_SYSTEM`; empty without one."""
    return next((part for part in Path(path).parts if any(fnmatch(part.lower(), each) for each in _SYSTEM)), "")


def _pictures_or_containers(files: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the pictures of a folder; without any, the files that hold many, but tables about shards and caches."""
    containers, any_picture = {}, False
    for location, relative in files:
        if is_data_file(relative):
            containers[relative] = location
        else:
            any_picture = True
            yield location, relative
    for relative, location in containers.items() if not any_picture else ():
        about_shard = not is_tar(relative) and any(_without(relative) + tar in containers for tar in TARS)
        if not about_shard and not _COMPUTED.fullmatch(Path(relative).name):  # img2dataset writes a table per shard
            yield location, relative


def _without(name: str) -> str:
    return str(Path(name).with_suffix(""))


def _expand_ranges(path: str) -> Iterator[str]:
    """Yield the paths of a pattern such as `cc3m-{00000..00575}.tar`; any other path as it is."""
    match = _RANGE.search(path)
    if match is None or os.path.lexists(path):
        yield path
        return
    first, last = match[1], match[2]
    if int(first) > int(last):
        raise SettingsError(f"{one_line(path)}: the range {match[0]} is empty: expected the smaller number first")
    width = max(len(first), len(last)) if first.startswith("0") or last.startswith("0") else 0
    for number in range(int(first), int(last) + 1):
        yield from _expand_ranges(f"{path[: match.start()]}{number:0{width}}{path[match.end() :]}")


def check_any_exists(pictures: Sequence[Picture], advice: str = "") -> None:
    """Check that not all of some pictures are missing or known to be unreadable, before a model is loaded."""
    if not pictures or not all(picture.fault or picture.is_here() is False for picture in pictures):
        return
    more = len(pictures) - 1
    first = pictures[0]
    if first.fault:
        raise DataError(first.fault + (f"; nor can any of the other {more} be read" if more else ""))
    missing = next(source for source in first.sources if source.is_here() is False)
    others = f", nor any of the other {more}" if more else ""
    raise PictureSettingsError(f"{missing.label}: no such file{others}{advice}")


def check_any_readable(pictures: Sequence[Picture]) -> None:
    """Check that a few named files are not all of another kind than pictures, before a model is loaded."""
    faults = []
    if any(picture.is_here() is None for picture in pictures):
        return  # it is somewhere else
    for picture in pictures:
        try:
            picture.pixels(picture.files())
        except PictureError as error:
            faults.append(error)
    if faults and len(faults) == len(pictures):
        others = f", nor is any of the other {len(pictures) - 1}" if len(pictures) > 1 else ""
        raise PictureSettingsError(f"{faults[0]}{others}") from faults[0]


def check_images(folder: Path, names: Sequence[str]) -> None:
    """Check that a folder holds any of a benchmark's pictures, before a model is loaded."""
    if not folder.is_dir():
        raise SettingsError(f"`images=` {folder}: is not a folder")
    check_any_exists([located(str(folder / name)) for name in names], ": is `images=` right?")


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
