"""Pictures in data sets: WebDataset shards, Parquet, Arrow, JSON and CSV tables, on this machine or in a store.

Hugging Face's `datasets` (extra `data`) streams them: a file is passed over once for the names of its pictures, and
once more when they are read; few samples are in memory.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import glob
import os
import re
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError, PictureError, SettingsError, SiraError, install
from sira_cli.pictures import stores
from sira_cli.pictures.names import as_text, is_base64, one_line
from sira_cli.pictures.opening import endings
from sira_cli.pictures.picture import Picture, Source, pack, unpack
from sira_cli.pictures.sources import columns_of, located
from sira_cli.pictures.web import is_web

TARS = (".tar", ".tar.gz", ".tgz")
# Tables by ending: the builder of `datasets`, and its options.
TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    ".parquet": ("parquet", {"batch_size": 8}),
    ".arrow": ("arrow", {}),
    ".feather": ("arrow", {}),
    ".jsonl": ("json", {}),
    ".json": ("json", {}),
    ".csv": ("csv", {}),
    ".tsv": ("csv", {"sep": "\t"}),
}
IN_FOLDERS = (*TARS, ".parquet", ".arrow", ".feather")  # other tables are mostly about something else
_TEXTS = ("txt", "json", "cls")  # members of a tar file that can fill prompts
# Columns that are looked for, if none is named.
_NAMES = ["image", "img", "picture", "photo", "jpg", "jpeg", "png", "webp", "image_path", "file_name", "path"]
_NAMES += ["image_url", "url"]
_LARGEST = 2**31  # bytes of a member of a tar file
_HELD = 32  # samples: threads ask for them a little out of order
_LOOKED_AT = 20  # rows of a table without types, which tell them
# As WebDataset has it: the key ends at the first full stop of the file's name.
_MEMBER = re.compile(r"((?:.*/|)[^./]+)[.]([^/]*)")

Sample = Mapping[str, Any]  # values by column, or bytes by extension


@dataclass(frozen=True, slots=True)
class SampleSource(Source):
    """A row, or a key in a tar file; it may hold several pictures that are shown together.

    Attributes:
        container: the file.
        member: the row's number, or the name in the tar file; empty for the file as a whole.
        number: of the sample in the file, from 0.
        names: columns or extensions with the picture: its bytes, its path or URI, base64, or the Hub's struct of
            bytes and path; or a list of these.
        listed: whether the column holds lists.
    """

    container: Source
    member: str
    number: int = -1
    names: tuple[str, ...] = ()
    listed: bool = False
    has_columns = True
    no_text_file = "{shown}: texts are not written into a data set: give `output=` or `output_dir=`"

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
        return self._below(self.container.address)

    def is_missing(self) -> bool:
        """Return whether the file that should hold it does not exist."""
        return not self.member and self.container.is_missing()

    def name_in(self, folder: Path | None) -> str:
        """Return the name of the file that holds it, as seen from `folder`, and its name inside."""
        return self._below(self.container.name_in(folder))

    def _below(self, container: str) -> str:
        return f"{container}/{as_text(self.member)}" if self.member else container

    def read(self) -> bytes:
        """Return the picture's bytes, those of several packed; a path is read."""
        sample = self._sample()
        cells = [(name, sample.get(name)) for name in self.names]
        found = [self._file(name, one) for name, cell in cells for one in (cell if isinstance(cell, list) else [cell])]
        if not found:
            raise self._without(self.names[0])
        return pack(found) if self.several else found[0]

    def files(self, data: bytes) -> list[tuple[str, bytes]]:
        """Return the name and the bytes of each picture."""
        if not self.several:
            return [(self.shown, data)]
        return [(f"{self.shown}, picture {number}", file) for number, file in enumerate(unpack(data), start=1)]

    def columns(self) -> Mapping[str, Any]:
        """Return the other columns, or what the text and JSON members of the key hold."""
        sample = {name: value for name, value in self._sample().items() if name not in self.names}
        if not is_tar(self.container.location):
            return sample
        texts = {name: data for name, data in sample.items() if name.rpartition(".")[2].lower() in _TEXTS}
        return columns_of(self.shown, texts)

    def _sample(self) -> Sample:
        try:
            place = self.container.location
            return _shared_pass(place, _version(place)).sample(self.number)
        except SiraError:
            raise
        except Exception as error:  # of tarfile, pyarrow, pandas, a store
            raise PictureError(f"{self.shown}: cannot be read: {_reason(error)}") from None

    def _file(self, column: str, value: Any) -> bytes:
        """Return the bytes of a picture that a cell holds, or names: relative to the table's folder, or by a URL."""
        if isinstance(value, dict):
            value = value.get("path") if value.get("bytes") is None else value["bytes"]
        if isinstance(value, bytes):
            return value
        if not isinstance(value, str) or not value:
            raise self._without(column)
        if is_base64(value):
            with contextlib.suppress(binascii.Error):
                return base64.b64decode(value.partition("base64,")[2] or value)
        folder, scheme = os.path.dirname(self.container.location), self.container.location.partition("://")[0]  # noqa: PTH120 (may be a URI)
        in_store = stores.is_uri(self.container.location)
        if is_web(value) or (in_store and value.startswith(f"{scheme}://")):
            return located(value).read()
        if stores.is_uri(value):  # a table from elsewhere does not open connections of any kind
            raise PictureError(f"{self.shown}: {one_line(value)}: expected a path, or a URL of the web")
        return located(f"{folder}/{value}" if in_store else os.path.join(folder, value)).read()  # noqa: PTH118 (no text)

    def _without(self, column: str) -> PictureError:
        return PictureError(f"{self.shown}: has no picture in column {column}")


def pictures_in(location: str, relative: str, image: str | None = None) -> Iterator[Picture]:
    """Yield the pictures in a file, in order. What cannot be read becomes one that raises its error when opened.

    `image` is the column or the extension with the pictures; several, `a,b`, are shown together; None: found by type
    and name.
    """
    (container,), last = located(location).sources, ""

    def picture(
        member: str, number: int = -1, names: tuple[str, ...] = (), listed: bool = False, fault: str = ""
    ) -> Picture:
        below = f"/{member}" if member else ""
        source = SampleSource(location + below, relative + below, container, member, number, names, listed)
        found = Picture((source,))
        return found.known(fault=f"{source.shown}: {fault}") if fault else found

    if container.is_missing():
        yield picture("", fault="no such file")
        return
    try:
        for found in _members(location, image) if is_tar(location) else _rows(location, image):
            last = found[0]
            yield picture(*found)
    except SiraError:
        raise
    except Exception as error:  # of tarfile, pyarrow, pandas, a store
        after = f" after {one_line(last)}" if last else ""
        yield picture("", fault=f"cannot be read{after}: {_reason(error)}")


_Found = tuple[str, int, tuple[str, ...], bool, str]  # as for `SampleSource`, and a fault


def _members(location: str, image: str | None) -> Iterator[_Found]:
    """Yield the picture of each key in a tar file; keys without one are left out."""
    wanted = [part.removeprefix(".") for each in (image or "").lower().split(",") if (part := each.strip())]
    for number, (key, sample) in enumerate(_tar_samples(location)):
        named = [name for each in wanted for name in sample if name.lower() == each]
        found = named if wanted else [name for name in sample if f".{name.lower()}" in endings()]
        count = len(wanted) or 1
        if len(found) == count:
            yield f"{key}.{found[0]}" if count == 1 else key, number, tuple(found), False, ""
        elif found or (not wanted and (found := [name for name in sample if Path(name).suffix in endings()])):
            shown = ", ".join(found[:8])
            expected = f"one of each of {', '.join(wanted)}" if wanted else "one: choose with `image_column=`"
            fault = f"has {len(found)} picture{'s' * (len(found) > 1)} ({shown}), expected {expected}"
            yield key, -1, (), False, fault


def _rows(location: str, image: str | None) -> Iterator[_Found]:
    kinds = _kinds(location)
    columns = _picture_columns(one_line(location), kinds, image)
    listed = len(columns) == 1 and kinds[columns[0]].startswith("list of ")
    if _ending(location) == ".parquet":
        from pyarrow import parquet

        with stores.opened(location) as file:
            numbers: Iterable[int] = range(parquet.ParquetFile(file).metadata.num_rows)
    else:
        numbers = (number for number, _ in enumerate(_table(location, next(iter(kinds)))))
    for number in numbers:
        yield str(number), number, columns, listed, ""


def is_data_file(name: str) -> bool:
    """Return whether a file of this name is one of a data set."""
    return is_tar(name) or _ending(name) in TABLES


def is_tar(name: str) -> bool:
    """Return whether a file of this name is a WebDataset shard."""
    return name.lower().endswith(TARS)


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].lower()  # noqa: PTH122 (may be a URI)


def _picture_columns(shown: str, kinds: Mapping[str, str], name: str | None) -> tuple[str, ...]:
    """Return the column with the pictures, or those whose pictures are shown together."""
    if name is not None:
        names = [name] if name in kinds else [part for each in name.split(",") if (part := each.strip())] or [name]
        for each in names:
            if each not in kinds:
                raise DataError(f"{shown}: `image_column=` {each}: no such column; the columns are {_list(kinds)}")
            if kinds[each].removeprefix("list of ") not in ("picture", "plain"):
                raise DataError(
                    f"{shown}: `image_column=` {each} is of type {kinds[each]}: expected bytes, paths, or a struct of "
                    "both"
                )
        return tuple(names)
    pictures = [each for each, kind in kinds.items() if kind == "picture"]
    usual = [each for each in _NAMES if kinds.get(each) == "plain"]
    lists = [each for each, kind in kinds.items() if kind == "list of picture"]
    if not pictures and not usual and not lists:
        raise DataError(
            f"{shown}: no column of pictures found: the columns are {_list(kinds)}: name one with `image_column=`"
        )
    if len(pictures) > 1 or (not pictures and not usual and len(lists) > 1):
        raise DataError(
            f"{shown}: several columns of pictures: {_list(pictures or lists)}: name one with `image_column=`, or "
            "several that are shown together"
        )
    return ((pictures or usual or lists)[0],)


class _Pass:
    """A pass over the samples of a file that reading threads share; going back begins another one."""

    def __init__(self, location: str) -> None:
        self._location, self._lock = location, threading.Lock()
        self._rest: Iterator[Sample] = iter(())
        self._held: dict[int, Sample] = {}
        self._next = -1  # number of the next sample; -1: not begun
        self._end: tuple[int, Exception] | None = None  # the sample that cannot be read, and why

    def sample(self, number: int) -> Sample:
        """Return a sample."""
        with self._lock:
            if self._end is not None and number >= self._end[0]:
                raise self._end[1]
            if number not in self._held and not 0 <= self._next <= number:
                self._rest, self._held, self._next = _samples(self._location), {}, 0
            while number not in self._held:
                try:
                    self._held[self._next] = next(self._rest)
                except StopIteration:
                    raise PictureError(f"{one_line(self._location)}: has changed: run the command again") from None
                except Exception as error:
                    self._end = self._next, error
                    raise
                self._next += 1
                self._held.pop(self._next - 1 - _HELD, None)
            return self._held[number]


@functools.lru_cache(maxsize=4)  # files that are read at once
def _shared_pass(location: str, version: tuple[int, ...] | None) -> _Pass:
    return _Pass(location)


def _version(location: str) -> tuple[int, ...] | None:
    """Return a version that changes when a file is replaced; None: it is in a store, or gone."""
    try:
        found = os.stat(location)  # noqa: PTH116 (for every picture)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _samples(location: str) -> Iterator[Sample]:
    return (sample for _, sample in _tar_samples(location)) if is_tar(location) else iter(_table(location))


def _tar_samples(location: str) -> Iterator[tuple[str, Sample]]:
    """Yield key and members, by extension, of each sample in a tar file: the members of a key follow each other.

    `load_dataset("webdataset")` would decode each member, and refuse a shard whose samples are of different kinds.
    """
    library, before = _library(location), ""
    sample: dict[str, bytes] = {}
    for name, file in library.StreamingDownloadManager().iter_archive(_absolute(location)):
        if match := _MEMBER.fullmatch(name):
            key, extension = match[1], match[2]
            if sample and (key != before or extension in sample):
                yield before, sample
                sample = {}
            before, sample[extension] = key, _content(name, file)
    if sample:
        yield before, sample


def _content(name: str, file: Any) -> bytes:
    """Return the bytes of a member, read to its end: tarfile itself would pass over a missing end."""
    data = bytearray()
    while piece := file.read(2**20):
        data += piece
        if len(data) > _LARGEST:
            raise ValueError(f"{one_line(name)} has more than {_LARGEST / 2**30:.0f} GiB")
    return bytes(data)


def _table(location: str, column: str | None = None) -> Any:
    """Return the rows of a table as mappings, or one column of them; pictures are not decoded."""
    library = _library(location)
    builder, options = TABLES[_ending(location)]
    if builder == "parquet":
        from pyarrow.dataset import ParquetFragmentScanOptions

        # By default, all row groups that were read stay in memory. The other columns are not read if one is enough.
        options = {**options, "fragment_scan_options": ParquetFragmentScanOptions(pre_buffer=False)}
        options |= {} if column is None else {"columns": [column]}
    place = glob.escape(_absolute(location))
    with tempfile.TemporaryDirectory(prefix="sira-") as cache:  # for the builder's lock: nothing else is written
        rows = library.load_dataset(
            builder, data_files=place, split="train", streaming=True, cache_dir=cache, **options
        )
    rows = rows if rows.features is None else rows.decode(False)
    return rows if column is None else rows.select_columns([column])


def _absolute(location: str) -> str:
    return location if stores.is_uri(location) else os.path.abspath(location)  # noqa: PTH100 (may be no text)


def _kinds(location: str) -> dict[str, str]:
    """Return the kind of each column of a table, as for `_picture_columns`."""
    rows = _table(location)
    features = rows.features
    if features is None:
        import pyarrow
        from datasets import Features

        features = Features.from_arrow_schema(pyarrow.Table.from_pylist([*rows.take(_LOOKED_AT)]).schema)
    return {name: _kind(feature) for name, feature in features.items()}


def _kind(feature: Any) -> str:
    from datasets import Image

    if isinstance(feature, Image) or (isinstance(feature, dict) and {"bytes", "path"} <= feature.keys()):
        return "picture"
    if (each := getattr(feature, "feature", None)) is not None:
        return f"list of {_kind(each)}"
    kind = str(getattr(feature, "dtype", feature))
    return "plain" if re.fullmatch("(large_)?(string|binary)(_view)?|null", kind) else kind


@functools.cache
def _prepared() -> Any:
    """Import `datasets`, without its progress bars, messages, and count of downloads."""
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    return datasets


def _library(location: str) -> Any:
    try:
        library = _prepared()
    except ImportError as error:
        raise SettingsError(f"{one_line(location)}: is a data set: {install('data')}") from error
    if stores.is_uri(location):
        stores.filesystem_of(location)  # refuses what cannot be read here
    return library


def _list(names: Collection[str]) -> str:
    return ", ".join(map(one_line, names)) or "none"


def _reason(error: Exception) -> str:
    """Return a library's message, on one line."""
    return (getattr(error, "strerror", None) or str(error).strip() or type(error).__name__).splitlines()[0]
