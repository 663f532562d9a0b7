"""Pictures in data sets: WebDataset shards, and tables, which Hugging Face's `datasets` (extra `data`) streams.

A file is passed over once for the names of its pictures, and once more when they are read; few samples are in memory.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import itertools
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from sira_cli.errors import PictureError, SiraError
from sira_cli.pictures.names import as_text, is_base64, is_uri, one_line
from sira_cli.pictures.opening import endings
from sira_cli.pictures.packed import TARS, endings_of
from sira_cli.pictures.picture import File, Picture, Source
from sira_cli.pictures.rows import TEXT_TABLES, read_table
from sira_cli.pictures.shards import MEMBER, Sample, apart_in, is_tar, keys_in
from sira_cli.pictures.sources import columns_of, located, opened
from sira_cli.pictures.tables import TABLES, ending_of, kind_of, kind_of_type, parts_of, picture_columns, rows_of
from sira_cli.pictures.web import is_web

IN_FOLDERS = (*TARS, *TABLES)  # other tables are mostly about something else
_TEXTS = ("txt", "json", "cls")  # members of a tar file that can fill prompts
_HELD = 32  # samples: threads ask for them a little out of order
_LOOKED_AT = 1000  # rows of a table of text, which tell its columns and their types
_COMPRESSED = r"(?:\.(?:gz|bz2|xz|zst))?"
_ENDINGS = "|".join(re.escape(ending) for ending in (*TARS, *TABLES, *TEXT_TABLES))
_IN_DATA_FILE = re.compile(rf"(.*(?:{_ENDINGS}){_COMPRESSED})/.+", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Member:
    """A sample of a file, with fields as in `SampleSource`."""

    name: str
    number: int = -1
    names: tuple[str, ...] = ()
    listed: bool = False
    columns: tuple[str, ...] = ()
    fault: str = ""  # why it cannot be read, as a message


@dataclass(frozen=True, slots=True)
class SampleSource(Source):
    """A row, or a key in a tar file; it may hold several pictures that are shown together."""

    container: Source  # the file
    member: str  # the row's number, from 1, its line in a table of text; or the name in the tar file
    number: int  # of the sample in the file, from 0
    names: tuple[str, ...]  # columns or extensions with the picture: bytes, path or URI, base64, or a struct of both
    listed: bool  # whether the column holds lists of these
    all_columns: tuple[str, ...] = ()  # of a table of text, whose rows may lack some
    has_columns = True
    no_text_file = "{label}: texts are not written into a data set: give `output=` or `output_dir=`"

    @property
    def several(self) -> bool:
        """Whether its pictures are of several columns, or of a list."""
        return self.listed or len(self.names) > 1

    @property
    def identity(self) -> str:
        """The path without detours, and the name inside."""
        return f"{self.container.identity}/{self.member}"

    @property
    def address(self) -> str:
        """The address of the file that holds it, and its name inside."""
        return f"{self.container.address}/{as_text(self.member)}"

    def name_in(self, folder: Path | None) -> str:
        """Return the name of the file that holds it, as seen from `folder`, and its name inside."""
        return f"{self.container.name_in(folder)}/{as_text(self.member)}"

    def files(self) -> list[File]:
        """Return the file of each picture; a path is read."""
        sample = self._sample()
        files = []
        for name in self.names:
            cell = sample.get(name)
            values = cell if isinstance(cell, list) else [cell]
            files += [self._file(name, value) for value in values]
        if not files:
            raise PictureError(f"{self.label}: has no picture in column {self.names[0]}")
        if not self.several:
            return [(self.label, files[0])]
        return [(f"{self.label}, picture {number}", file) for number, file in enumerate(files, start=1)]

    def columns(self) -> Mapping[str, Any]:
        """Return the other columns, or what the text and JSON members of the key hold."""
        columns: dict[str, Any] = dict.fromkeys(self.all_columns)
        columns |= self._sample()
        for name in self.names:
            columns.pop(name, None)
        if not is_tar(self.container.location):
            return columns
        texts = {name: data for name, data in columns.items() if name.rpartition(".")[2].lower() in _TEXTS}
        return columns_of(self.label, texts)

    def disorder(self) -> str:
        """Return that members of its key stand apart in the tar file, where only those that follow each other count."""
        shard = self.container
        if not is_tar(shard.location):
            return ""
        match = MEMBER.fullmatch(self.member)
        key = self.member if match is None else match[1]
        apart = apart_in(shard.location, _version(shard.location)).get(key)
        if apart is None:
            return ""
        way = "unpack it, and pack it with tar --sort=name"
        return f"{shard.label} is not sorted, {one_line(apart)} stands apart from the picture: {way}"

    def _sample(self) -> Sample:
        place = self.container.location
        try:
            return _shared_pass(place, _version(place)).sample(self.number)
        except SiraError:
            raise
        except Exception as error:  # of tarfile, pyarrow, pandas, a store
            raise PictureError(f"{self.label}: cannot be read: {_reason(error)}") from None

    def _file(self, column: str, value: Any) -> bytes:
        """Return the bytes of a picture that a cell holds, or names: relative to the table's folder, or by a URL."""
        if isinstance(value, dict):
            value = value.get("path") if value.get("bytes") is None else value["bytes"]
        if isinstance(value, bytes):
            return value
        if not isinstance(value, str) or not value:
            raise PictureError(f"{self.label}: has no picture in column {column}")
        if is_base64(value):
            with contextlib.suppress(binascii.Error):
                return base64.b64decode(value.partition("base64,")[2] or value)
        return located(self._place(value)).sources[0].read()

    def _place(self, name: str) -> str:
        """Return the location of a picture that a cell names."""
        table = self.container.location
        in_store = is_uri(table)
        folder = os.path.dirname(table)  # noqa: PTH120 (may be a URI)
        store, _, _ = table.partition("://")
        if is_web(name) or (in_store and name.startswith(f"{store}://")):
            return name
        if is_uri(name):  # a table from elsewhere does not open connections of any kind
            raise PictureError(f"{self.label}: {one_line(name)}: expected a path, or a URL of the web")
        return f"{folder}/{name}" if in_store else os.path.join(folder, name)  # noqa: PTH118 (no text)


class _Pass:
    """A pass over the samples of a file that reading threads share; going back begins another one."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._lock = threading.Lock()
        self._next = -1  # not begun
        self._held: dict[int, Sample] = {}
        self._error: Exception | None = None

    def sample(self, number: int) -> Sample:
        """Return a sample."""
        with self._lock:
            if self._next < 0 or (number < self._next and number not in self._held):
                self._rest = _samples_of(self._location)
                self._next = 0
                self._held = {}
                self._error = None
            while number not in self._held:
                if self._error is not None:  # so is each later sample
                    raise self._error
                try:
                    self._held[self._next] = next(self._rest)
                    self._held.pop(self._next - _HELD, None)
                    self._next += 1
                except StopIteration:
                    self._error = PictureError(f"{one_line(self._location)}: has changed: run the command again")
                except Exception as error:
                    self._error = error
            return self._held[number]


def _samples_of(location: str) -> Iterator[Sample]:
    """Yield the samples of a file; one that cannot be read is empty."""
    if is_tar(location):
        return (sample for _, sample in keys_in(location))
    if _is_text(location):
        return (row.values for row in read_table(location))
    return iter(rows_of(location))


def _version(location: str) -> tuple[int, ...] | None:
    """Return numbers that change when a file is replaced; None for one in a store, or gone."""
    try:
        file = os.stat(location)  # noqa: PTH116 (for every picture)
    except (OSError, ValueError):
        return None
    return file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns


_shared_pass = functools.lru_cache(maxsize=4)(lambda location, version: _Pass(location))  # files that are read at once


def pictures_in(location: str, relative: str, image: str | None = None) -> Iterator[Picture]:
    """Yield the pictures in a file, in order; `image` is as `image_column` of `find_pictures`, several as `a,b`.

    What cannot be read becomes a picture that raises its error when opened.
    """
    whole = located(location, relative)
    (container,) = whole.sources
    if container.is_here() is False:
        yield whole
        return
    after = ""
    try:
        for member in _members(location, image):
            after = f" after {one_line(member.name)}"
            source = SampleSource(
                f"{location}/{member.name}",
                f"{relative}/{member.name}",
                container=container,
                member=member.name,
                number=member.number,
                names=member.names,
                listed=member.listed,
                all_columns=member.columns,
            )
            yield Picture((source,), fault=member.fault)
    except PictureError as error:
        yield whole.known(fault=str(error))
    except SiraError:
        raise
    except Exception as error:  # of tarfile, pyarrow, a store
        yield whole.known(fault=f"{whole.label}: cannot be read{after}: {_reason(error)}")


def _members(location: str, image: str | None) -> Iterator[_Member]:
    if is_tar(location):
        return _tar_keys(location, image)
    if _is_text(location):
        return _text_rows(location, image)
    return _typed_rows(location, image)


def recorded_sample(path: str) -> Picture | None:
    """Return the picture of a path in a data set, as records name it: `shard.tar/000.png`; None for any other path."""
    match = _IN_DATA_FILE.fullmatch(path)
    version = _version(match[1]) if match else None
    if match is None or version is None:
        return None
    return _samples(match[1], version).get(path)


@functools.lru_cache(maxsize=1)  # records of a file follow each other
def _samples(location: str, version: tuple[int, ...]) -> dict[str, Picture]:
    return {picture.location: picture for picture in pictures_in(location, location)}


def is_data_file(name: str) -> bool:
    """Return whether a file of this name is one of a data set."""
    return is_tar(name) or _is_text(name) or ending_of(name) in TABLES


def _is_text(name: str) -> bool:
    return endings_of(name)[0] in TEXT_TABLES


def _reason(error: Exception) -> str:
    """Return a library's message, on one line."""
    return (getattr(error, "strerror", None) or str(error).strip() or type(error).__name__).splitlines()[0]


# --- tar files


def _tar_keys(location: str, image: str | None) -> Iterator[_Member]:
    """Yield the picture of each key in a tar file; keys without one are left out."""
    wanted = [part.removeprefix(".") for part in parts_of((image or "").lower())]
    count = len(wanted) or 1
    expected = f"one of each of {', '.join(wanted)}" if wanted else "one: choose with `image_column=`"
    for number, (key, sample) in enumerate(keys_in(location)):
        if wanted:
            found = [name for extension in wanted for name in sample if name.lower() == extension]
        else:
            found = [name for name in sample if f".{name.lower()}" in endings()]
        if len(found) == count:
            yield _Member(f"{key}.{found[0]}" if count == 1 else key, number, tuple(found))
            continue
        if not found and not wanted:  # such as `left.png`
            found = [name for name in sample if PurePath(name).suffix in endings()]
        if found:
            pictures = "1 picture" if len(found) == 1 else f"{len(found)} pictures"
            has = f"has {pictures} ({', '.join(found[:8])}), expected {expected}"
            yield _Member(key, fault=f"{one_line(f'{location}/{key}')}: {has}")


# --- tables


def _typed_rows(location: str, image: str | None) -> Iterator[_Member]:
    """Yield the pictures of each row of a table with types."""
    rows = rows_of(location)
    kinds = {name: kind_of_type(feature) for name, feature in rows.features.items()}
    columns, listed = picture_columns(one_line(location), kinds, image)
    if ending_of(location) == ".parquet":
        from pyarrow import parquet

        with opened(location) as file:
            numbers: Iterable[int] = range(parquet.ParquetFile(file).metadata.num_rows)
    else:
        numbers = (number for number, _ in enumerate(rows_of(location)))
    for number in numbers:
        yield _Member(str(number + 1), number, columns, listed)


def _text_rows(location: str, image: str | None) -> Iterator[_Member]:
    """Yield the pictures of each row of a table of text, also of those that cannot be read."""
    rows = read_table(location)
    first = list(itertools.islice(rows, _LOOKED_AT))
    good = [row for row in first if not row.fault]
    if not good:
        raise PictureError(first[0].fault if first else f"{one_line(location)}: holds no rows")
    values: dict[str, list[Any]] = {}  # of each column
    for row in good:
        for name, value in row.values.items():
            values.setdefault(name, []).append(value)
    kinds = {name: kind_of(cells) for name, cells in values.items()}
    columns, listed = picture_columns(one_line(location), kinds, image)
    for number, row in enumerate(itertools.chain(first, rows)):
        yield _Member(str(row.number), number, columns, listed, tuple(values), row.fault)
