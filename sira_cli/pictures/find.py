"""Find the pictures of a run: files, folders, globs, lists, stores -> pictures in a stable order."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from sira_cli.errors import PictureError, SettingsError
from sira_cli.pictures import stores
from sira_cli.pictures.datasets import IN_FOLDERS, TARS, DataFile, is_data_file, is_tar
from sira_cli.pictures.left_out import Pictures, count, formats, in_words, system_folder
from sira_cli.pictures.names import on_disk, one_line
from sira_cli.pictures.opening import endings
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import STDIN, StdinSource, has_scheme, located

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_COMPUTED = re.compile(r"cache-[0-9a-f]{16}(_\d+_of_\d+)?\.arrow")  # by `Dataset.map` and the like


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


def find_pictures(
    paths: Iterable[str],
    *,
    recursive: bool = False,
    exclude: Sequence[str] = (),
    shard: Shard | None = None,
    limit: int | None = None,
    image_column: str | None = None,
    id_column: str | None = None,
    repeats: bool = False,
) -> Pictures:
    """Return every picture once, in the order of `paths`; those in a folder are sorted by name.

    Args:
        paths: files, folders, globs (where no such file exists), URIs of stores, URLs, `-` for stdin. Missing files
            are also listed: each becomes an error of its own when it is opened. WebDataset shards, Parquet, Arrow, JSON
            and CSV files stand for the pictures in them, `{000..123}` for many files; a folder without pictures for the
            shards, Parquet and Arrow files in it.
        recursive: include subfolders, after the files of a folder; links to folders are not followed.
        exclude: patterns of names of files and folders, or of paths below the folder that was given, to leave out.
        shard: keep this part only. A file that holds many pictures belongs to one part as a whole.
        limit: keep at most this many; the rest is not looked at.
        image_column: the column with the pictures; where a WebDataset shard has several per key, the extension of the
            one to take. None: found by type and name.
        id_column: names the rows of a table, instead of their numbers.
        repeats: keep a picture as often as it is named.

    Raises:
        DataError: a table has no column of pictures or ids.
        SettingsError: a path is empty, `-` is given twice, a store does not answer, or there are no pictures.
    """
    paths = list(paths)
    if "" in paths:
        raise SettingsError("a picture's path is empty")
    if paths.count(STDIN) > 1:
        raise SettingsError("'-' (stdin) can be given once")
    found: dict[str, Picture] = {}
    any_place, any_data = False, False
    left_out: Counter[str] = Counter()
    every = [path for given in paths for path in _expand_ranges(given)]
    for place in _places(every, recursive, image_column, id_column, left_out):
        any_place = True
        if any(fnmatchcase(name, glob) for glob in exclude for name in (place.relative, *Path(place.relative).parts)):
            continue
        if shard is not None and not shard.holds(place.relative):
            continue
        any_data = any_data or isinstance(place, DataFile)
        for picture in place.pictures() if isinstance(place, DataFile) else (place,):
            found.setdefault(f"{len(found)}" if repeats else picture.identity, picture)
            if len(found) == limit:
                return Pictures(found.values())
    if exclude and any_place and not found and shard is None:
        raise SettingsError(f"`exclude=` {' '.join(exclude)} leaves out all pictures")
    if any_data and not found:
        raise SettingsError(f"{_shown(paths)}: no pictures inside")
    if not any_place:
        # Only folders can be empty: everything else is listed as it is.
        subfolders = "" if recursive else " (subfolders count with -r)"
        raise SettingsError(f"{_shown(paths)}: no pictures in this folder{_but(left_out) or subfolders}")
    return Pictures(found.values(), left_out)


def _but(left_out: Counter[str]) -> str:
    files = formats(Pictures((), left_out).left_out)
    return f", but {in_words(files)}: these formats are not read" if files else ""


def check_any_exists(pictures: Sequence[Picture]) -> None:
    """Check that not all of some pictures are missing, before a model is loaded."""
    if pictures and all(picture.is_missing() for picture in pictures):
        others = f", nor any of the other {len(pictures) - 1}" * (len(pictures) > 1)
        first = next(source for source in pictures[0].sources if source.is_missing())
        raise PictureError(f"{first.shown}: no such file{others}")


def check_images(folder: Path, names: Sequence[str]) -> None:
    """Check that a folder holds any of a benchmark's pictures, before a model is loaded."""
    if not folder.is_dir():
        raise SettingsError(f"`images=` {folder}: is not a folder")
    if not any(os.path.lexists(on_disk(str(folder / name))) for name in names):
        others = f", nor any of the other {len(names) - 1}" * (len(names) > 1)
        raise PictureError(f"{folder / names[0]}: no such file{others}: is `images=` right?")


def _is_folder(path: str) -> bool:
    """Return whether the path is a folder; False for names that no file can have."""
    try:
        return Path(path).is_dir()
    except OSError:
        return False


def _places(
    paths: Sequence[str],
    recursive: bool,
    image_column: str | None,
    id_column: str | None,
    left_out: Counter[str],
) -> Iterator[Picture | DataFile]:
    for path in paths:
        for location, relative in _expand(on_disk(path), recursive, left_out, alone=len(paths) == 1):
            if location == STDIN:
                yield Picture((StdinSource(STDIN, STDIN, sys.stdin.buffer.read()),))
            elif is_data_file(location) and not has_scheme(location):
                yield DataFile(location, relative, image_column, id_column)
            else:
                yield located(location, relative)


def _expand(path: str, recursive: bool, left_out: Counter[str], *, alone: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the files that a path stands for, each with its path below the folder that was given."""
    if path == STDIN:
        yield STDIN, STDIN
    elif has_scheme(path):
        yield path, path
    elif stores.is_uri(path):
        try:
            listed = list(stores.walk(path, recursive))
        except SettingsError:
            if alone:
                raise
            listed = [(path, path)]
        is_file = any(uri == path for uri, _ in listed)
        yield from listed if is_file else _pictures_or_containers(each for each in listed if _counts(each[1], left_out))
    elif _is_folder(path):
        inside = _walk(path, recursive, left_out)
        yield from _pictures_or_containers((file, os.path.relpath(file, path)) for file in inside)
    elif os.path.lexists(path) or not (matches := _matches(path)):
        yield path, path
    else:
        for match in matches:
            if (system := system_folder(match)) and not system_folder(path):
                left_out[f"{system}/"] += 1
                continue
            yield from _expand(match, recursive, left_out)


def _pictures_or_containers(files: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the pictures of a folder; without any, the files that hold many.

    Not all such files hold pictures of their own: img2dataset writes a table about each shard next to it, and a data
    set that was loaded from its folder caches its results in it.
    """
    containers, any_picture = {}, False
    for location, relative in files:
        if is_data_file(relative):
            containers[relative] = location
        else:
            any_picture = True
            yield location, relative
    for relative, location in containers.items() if not any_picture else ():
        about_shard = not is_tar(relative) and any(str(Path(relative).with_suffix(tar)) in containers for tar in TARS)
        if not about_shard and not _COMPUTED.fullmatch(Path(relative).name):
            yield location, relative


def _matches(pattern: str) -> list[str]:
    if not glob.has_magic(pattern):
        return []
    return sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 (a Path takes no absolute pattern)


def _walk(folder: str, recursive: bool, left_out: Counter[str]) -> Iterator[str]:
    """Yield a folder's pictures and containers that are not hidden; of an unreadable folder, the folder itself."""
    try:
        with os.scandir(folder) as entries:
            inside = sorted(
                (entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name
            )
    except OSError:
        yield folder
        return
    for entry in inside:
        if not _is_folder(entry.path) and _counts(entry.name, left_out):
            yield str(Path(folder, entry.name))
    for entry in inside:
        if entry.is_dir(follow_symlinks=False):
            if system_folder(entry.name):
                left_out[f"{entry.name}/"] += 1
            elif not recursive:
                left_out[f"./{entry.name}/"] += any(map(_is_picture, _walk(entry.path, True, Counter())))
            else:
                yield from _walk(str(Path(folder, entry.name)), recursive, left_out)


def _is_picture(path: str) -> bool:
    return Path(path).suffix.lower() in endings()


def _counts(name: str, left_out: Counter[str]) -> bool:
    """Return whether a name is that of a picture or container; count other pictures as left out."""
    counts = Path(name).suffix.lower() in endings() or name.lower().endswith(IN_FOLDERS)
    if not counts:
        count(left_out, name)
    return counts


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


def _shown(paths: list[str]) -> str:
    return one_line(paths[0]) + f" and {len(paths) - 1} more" * (len(paths) > 1)
