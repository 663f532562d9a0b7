"""Pictures in data sets: WebDataset shards, and tables, which Hugging Face's `datasets` (extra `data`) streams.

A file is passed over once for the names of its pictures, and once more when they are read; few samples are in memory.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import glob
import itertools
import os
import re
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from sira_cli.errors import DataError, PictureError, SettingsError, SiraError, install
from sira_cli.pictures.names import as_text, is_base64, is_uri, one_line
from sira_cli.pictures.opening import endings
from sira_cli.pictures.packed import TARS, endings_of
from sira_cli.pictures.picture import File, Picture, Source
from sira_cli.pictures.rows import IMAGE_COLUMNS, TEXT_TABLES, read_table, usual_column
from sira_cli.pictures.shards import MEMBER, Sample, apart_in, is_tar, keys_in
from sira_cli.pictures.sources import columns_of, connected, located, opened
from sira_cli.pictures.web import is_web

# Tables that Hugging Face's `datasets` reads, by ending: the builder, and its options.
TABLES: dict[str, tuple[str, dict[str, Any]]] = {".parquet": ("parquet", {"batch_size": 8}), ".arrow": ("arrow", {})}
IN_FOLDERS = (*TARS, *TABLES)  # other tables are mostly about something else
_TEXTS = ("txt", "json", "cls")  # members of a tar file that can fill prompts
_HELD = 32  # samples: threads ask for them a little out of order
_LOOKED_AT = 1000  # rows of a table of text, which tell its columns and their types
_COMPRESSED = r"(?:\.(?:gz|bz2|xz|zst))?"
_ENDINGS = "|".join(re.escape(ending) for ending in (*TARS, *TABLES, *TEXT_TABLES))
_IN_DATA_FILE = re.compile(rf"(.*(?:{_ENDINGS}){_COMPRESSED})/.+", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Found:
    """A sample in a file, with fields as in `SampleSource`."""

    member: str
    number: int = -1
    names: tuple[str, ...] = ()
    listed: bool = False
    known: tuple[str, ...] = ()
    fault: str = ""  # why it cannot be read, as a message


@dataclass(frozen=True, slots=True)
class SampleSource(Source):
    """A row, or a key in a tar file; it may hold several pictures that are shown together."""

    container: Source  # the file
    member: str  # the row's number, from 1, its line in a table of text; or the name in the tar file
    number: int  # of the sample in the file, from 0
    names: tuple[str, ...]  # columns or extensions with the picture: bytes, path or URI, base64, or a struct of both
    listed: bool  # whether the column holds lists of these
    known: tuple[str, ...] = ()  # columns of a table of text, whose rows may lack some
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
        cells = [(name, sample.get(name)) for name in self.names]
        files = [self._file(name, one) for name, cell in cells for one in (cell if isinstance(cell, list) else [cell])]
        if not files:
            raise PictureError(f"{self.label}: has no picture in column {self.names[0]}")
        if not self.several:
            return [(self.label, files[0])]
        return [(f"{self.label}, picture {number}", file) for number, file in enumerate(files, start=1)]

    def columns(self) -> Mapping[str, Any]:
        """Return the other columns, or what the text and JSON members of the key hold."""
        sample = {name: value for name, value in self._sample().items() if name not in self.names}
        if is_tar(self.container.location):
            texts = {name: data for name, data in sample.items() if name.rpartition(".")[2].lower() in _TEXTS}
            return columns_of(self.label, texts)
        return {name: None for name in self.known if name not in self.names} | sample

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
        table = self.container.location
        folder, scheme, in_store = os.path.dirname(table), table.partition("://")[0], is_uri(table)  # noqa: PTH120 (may be a URI)
        if is_web(value) or (in_store and value.startswith(f"{scheme}://")):
            return located(value).sources[0].read()
        if is_uri(value):  # a table from elsewhere does not open connections of any kind
            raise PictureError(f"{self.label}: {one_line(value)}: expected a path, or a URL of the web")
        place = f"{folder}/{value}" if in_store else os.path.join(folder, value)  # noqa: PTH118 (no text)
        return located(place).sources[0].read()


class _Pass:
    """A pass over the samples of a file that reading threads share; going back begins another one."""

    def __init__(self, location: str) -> None:
        self._location, self._lock, self._next = location, threading.Lock(), -1  # -1: not begun
        self._held: dict[int, Sample] = {}
        self._error: Exception | None = None

    def sample(self, number: int) -> Sample:
        """Return a sample."""
        with self._lock:
            if self._next < 0 or (number < self._next and number not in self._held):
                place = self._location
                self._rest = _samples_of(place)
                self._next, self._held, self._error = 0, {}, None
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
    return iter(_table(location))


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
    whole, after = located(location, relative), ""
    (container,) = whole.sources
    if container.is_here() is False:
        yield whole
        return
    try:
        for found in _found(location, image):
            after, below = f" after {one_line(found.member)}", f"/{found.member}"
            source = SampleSource(
                location + below,
                relative + below,
                container,
                found.member,
                found.number,
                found.names,
                found.listed,
                found.known,
            )
            yield Picture((source,), fault=found.fault)
    except PictureError as error:
        yield whole.known(fault=str(error))
    except SiraError:
        raise
    except Exception as error:  # of tarfile, pyarrow, a store
        yield whole.known(fault=f"{whole.label}: cannot be read{after}: {_reason(error)}")


def _found(location: str, image: str | None) -> Iterator[_Found]:
    if is_tar(location):
        return _members(location, image)
    return _text_rows(location, image) if _is_text(location) else _rows(location, image)


def recorded_sample(path: str) -> Picture | None:
    """Return the picture of a path in a data set, as records name it: `shard.tar/000.png`; None for any other path."""
    match = _IN_DATA_FILE.fullmatch(path)
    if match is None or (version := _version(match[1])) is None:
        return None
    return _samples(match[1], version).get(path)


@functools.lru_cache(maxsize=1)  # records of a file follow each other
def _samples(location: str, version: tuple[int, ...]) -> dict[str, Picture]:
    return {picture.location: picture for picture in pictures_in(location, location)}


def is_data_file(name: str) -> bool:
    """Return whether a file of this name is one of a data set."""
    return is_tar(name) or _is_text(name) or _ending(name) in TABLES


def _is_text(name: str) -> bool:
    return endings_of(name)[0] in TEXT_TABLES


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].lower()  # noqa: PTH122 (may be a URI)


def _reason(error: Exception) -> str:
    """Return a library's message, on one line."""
    return (getattr(error, "strerror", None) or str(error).strip() or type(error).__name__).splitlines()[0]


# --- tar files


def _members(location: str, image: str | None) -> Iterator[_Found]:
    """Yield the picture of each key in a tar file; keys without one are left out."""
    wanted = [part.removeprefix(".") for each in (image or "").lower().split(",") if (part := each.strip())]
    count = len(wanted) or 1
    expected = f"one of each of {', '.join(wanted)}" if wanted else "one: choose with `image_column=`"
    for number, (key, sample) in enumerate(keys_in(location)):
        named = [name for each in wanted for name in sample if name.lower() == each]
        found = named if wanted else [name for name in sample if f".{name.lower()}" in endings()]
        if len(found) == count:
            yield _Found(f"{key}.{found[0]}" if count == 1 else key, number, tuple(found))
        elif found or (not wanted and (found := [name for name in sample if PurePath(name).suffix in endings()])):
            has = f"{len(found)} picture{'s' * (len(found) > 1)} ({', '.join(found[:8])})"
            yield _Found(key, fault=f"{one_line(f'{location}/{key}')}: has {has}, expected {expected}")


# --- tables


def _rows(location: str, image: str | None) -> Iterator[_Found]:
    """Yield the pictures of each row of a table with types."""
    rows = _table(location)
    kinds = {name: _kind(feature) for name, feature in rows.features.items()}
    columns, listed = _picture_columns(one_line(location), kinds, image)
    if _ending(location) == ".parquet":
        from pyarrow import parquet

        with opened(location) as file:
            numbers: Iterable[int] = range(parquet.ParquetFile(file).metadata.num_rows)
    else:
        numbers = (number for number, _ in enumerate(_table(location)))
    for number in numbers:
        yield _Found(str(number + 1), number, columns, listed)


def _text_rows(location: str, image: str | None) -> Iterator[_Found]:
    """Yield the pictures of each row of a table of text, also of those that cannot be read."""
    rows = read_table(location)
    first = list(itertools.islice(rows, _LOOKED_AT))
    good = [row for row in first if not row.fault]
    if not good:
        raise PictureError(first[0].fault if first else f"{one_line(location)}: holds no rows")
    known = tuple(dict.fromkeys(name for row in good for name in row.values))
    kinds = {name: _kind_of([row.values.get(name) for row in good]) for name in known}
    columns, listed = _picture_columns(one_line(location), kinds, image)
    for number, row in enumerate(itertools.chain(first, rows)):
        yield _Found(str(row.number), number, columns, listed, known, row.fault)


def _picture_columns(shown: str, kinds: Mapping[str, str], name: str | None) -> tuple[tuple[str, ...], bool]:
    """Return the column with the pictures, or those whose pictures are shown together; and whether it holds lists."""
    columns = _named_columns(shown, kinds, name) if name is not None else (_usual_column(shown, kinds),)
    return columns, len(columns) == 1 and kinds[columns[0]].startswith("list of ")


def _named_columns(shown: str, kinds: Mapping[str, str], name: str) -> tuple[str, ...]:
    names = [name] if name in kinds else [part for each in name.split(",") if (part := each.strip())] or [name]
    for each in names:
        if each not in kinds:
            raise DataError(f"{shown}: `image_column=` {each}: no such column; the columns are {_names(kinds)}")
        if (kind := kinds[each]).removeprefix("list of ") not in ("picture", "plain"):
            expected = "expected bytes, paths, or a struct of both"
            raise DataError(f"{shown}: `image_column=` {each} is of type {kind}: {expected}")
    return tuple(names)


def _usual_column(shown: str, kinds: Mapping[str, str]) -> str:
    """Return the column of pictures by its type, or, if it holds texts, by a usual name."""
    texts = [name for name, kind in kinds.items() if kind in ("plain", "list of plain")]
    found = [name for name, kind in kinds.items() if kind == "picture"]
    if not found and (usual := usual_column(texts, IMAGE_COLUMNS)) is not None:
        found = [usual]
    found = found or [name for name, kind in kinds.items() if kind == "list of picture"]
    if not found:
        way = "name one with `image_column=`"
        raise DataError(f"{shown}: no column of pictures found: the columns are {_names(kinds)}: {way}")
    if len(found) > 1:
        way = "name one with `image_column=`, or several that are shown together"
        raise DataError(f"{shown}: several columns of pictures: {_names(found)}: {way}")
    return found[0]


def _names(columns: Iterable[str]) -> str:
    return ", ".join(map(one_line, columns)) or "none"


def _table(location: str) -> Any:
    """Return the rows of a table as mappings; pictures are not decoded."""
    try:
        import datasets
    except ImportError as error:
        raise SettingsError(f"{one_line(location)}: is a data set: {install('data')}") from error
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    if is_uri(location):
        with connected(location):
            pass  # refuses what cannot be read here
    builder, options = TABLES[_ending(location)]
    if builder == "parquet":
        from pyarrow.dataset import ParquetFragmentScanOptions

        # By default, all row groups that were read stay in memory.
        options = {**options, "fragment_scan_options": ParquetFragmentScanOptions(pre_buffer=False)}
    place = glob.escape(location if is_uri(location) else os.path.abspath(location))  # noqa: PTH100 (may be no text)
    with tempfile.TemporaryDirectory(prefix="sira-") as cache:  # for the builder's lock: nothing else is written
        rows = datasets.load_dataset(
            builder, data_files=place, split="train", streaming=True, cache_dir=cache, **options
        )
    return rows.decode(False)


def _kind(feature: Any) -> str:
    """Return the kind of a column: `picture`, `plain`, `list of ...`, or its type."""
    from datasets import Image

    if isinstance(feature, Image) or (isinstance(feature, dict) and {"bytes", "path"} <= feature.keys()):
        return "picture"
    if (each := getattr(feature, "feature", None)) is not None:
        return f"list of {_kind(each)}"
    kind = str(getattr(feature, "dtype", feature))
    return "plain" if re.fullmatch("(large_)?(string|binary)(_view)?|null", kind) else kind


def _kind_of(values: Iterable[Any]) -> str:
    """Return the kind of a column of JSON values, or of cells, as `_kind` does."""
    kinds = {_kind_of_one(value) for value in values if value is not None and value != []}
    return "plain" if not kinds else " or ".join(sorted(kinds))


def _kind_of_one(value: Any) -> str:
    if isinstance(value, list):
        return f"list of {_kind_of(value)}"
    if isinstance(value, dict) and {"bytes", "path"} <= value.keys():
        return "picture"
    return "plain" if isinstance(value, str) else type(value).__name__
