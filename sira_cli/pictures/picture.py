"""A picture, from the moment it is named until its record is written.

A `Picture` is a record: where it is, and what is asked or known about it. Only its sources know how to read.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from PIL import Image

from sira_cli.errors import HugePictureError, PictureError, SettingsError
from sira_cli.pictures.names import as_text, is_uri, joined, one_line, parted, public
from sira_cli.pictures.opening import BOUND, decode_picture, picture_size, to_rgb

MOST_PIXELS = 4 * BOUND  # of pictures that are shown together: their samples are in memory at once
_SHOWN = 4  # names of a group in a message

T = TypeVar("T")

File = tuple[str, bytes | Image.Image]  # a picture's name in messages, and its file; or the image that a program gave


@dataclass(frozen=True)
class OpenedPicture:
    """A decoded picture, or those of a group, in upright RGB; `sha256` is of the file, for several see `digest_of`."""

    name: str
    images: tuple[Image.Image, ...]
    sha256: str
    warnings: tuple[str, ...] = ()

    @property
    def image(self) -> Image.Image:
        """The picture; of a group, the first."""
        return self.images[0]

    @property
    def for_prompt(self) -> Image.Image | tuple[Image.Image, ...]:
        """The pictures that a prompt shows: this one, or those of a group."""
        return self.images if len(self.images) > 1 else self.image


@dataclass(frozen=True, slots=True)
class Source:
    """A place where a picture is, and the way to read it. Most kinds need only `read`."""

    location: str  # as it was named: a path, a URI, `-`
    relative: str  # path below the folder that was given, else `location`: decides shards and mirrored trees; or empty
    has_columns: ClassVar[bool] = False  # whether it is part of a data set: a prompt's `{names}` are columns
    no_text_file: ClassVar[str] = "{label}: no text file can be written next to it"

    @property
    def label(self) -> str:
        """Location for a message: one line, without credentials."""
        return one_line(self.location)

    @property
    def identity(self) -> str:
        """Equal for two names of the same picture."""
        return self.location

    @property
    def address(self) -> str:
        """Location that does not depend on the current folder, for records, without credentials; empty without one."""
        return public(self.location) if is_uri(self.location) else ""

    @property
    def several(self) -> bool:
        """Whether it holds several pictures that are shown together."""
        return False

    def is_here(self) -> bool | None:
        """Return whether the picture is on this machine; None: nobody knows, without reading it."""
        return None

    def name_in(self, folder: Path | None) -> str:
        """Return the picture's name in a record that lies in a folder."""
        return self.address or as_text(self.location)

    def text_file(self, extension: str) -> Path:
        """Return the text file next to it, with an extension such as `.txt`."""
        raise SettingsError(self.no_text_file.format(label=self.label))

    def columns(self) -> Mapping[str, Any]:
        """Return its columns by name: texts about the picture."""
        return {}

    def disorder(self) -> str:
        """Return why its columns may not have been found, for a message; usually nothing."""
        return ""

    def file_size(self) -> int:
        """Return the size of the file in bytes; 0: unknown until the file is read."""
        return 0

    def read(self) -> bytes:
        """Return the bytes of its file. Safe in threads."""
        raise NotImplementedError

    def files(self) -> list[File]:
        """Return each picture's file: one, unless it holds several. Safe in threads."""
        return [(self.label, self.read())]


@dataclass(frozen=True, slots=True)
class Picture:
    """A named picture, not opened yet, or several that are shown together; and what is asked or known about it."""

    sources: tuple[Source, ...]  # of each picture
    together: bool = False  # whether it was named as a group, which may have one picture
    prompt: str | None = None  # its own; None: the run's
    caption: str | None = None  # an existing text
    number: int = 1  # of the caption; from 2 on it is part of the name
    id: str = ""  # unique in a run, if it differs from the name
    fault: str = ""  # why it is known to be unreadable, as a message
    fields: Mapping[str, Any] | None = field(default=None, compare=False)  # texts about a group, for `{names}`

    def known(self, **about: Any) -> Picture:
        """Return the picture with more about it."""
        return replace(self, **about)

    def asked(self, prompt: str) -> str:
        """Return the prompt for this picture in a run with `prompt`; with a caption, both: they decide the result."""
        if self.caption is not None:
            return json.dumps([prompt, self.caption])
        return prompt if self.prompt is None else self.prompt

    @property
    def location(self) -> str:
        """Where it is, as it was named."""
        return joined(source.location for source in self.sources)

    @property
    def relative(self) -> str:
        """Its path below the folder that was given, or `location`."""
        return joined(source.relative for source in self.sources)

    @property
    def _mark(self) -> str:
        return f"#{self.number}" if self.number > 1 else ""

    @property
    def label(self) -> str:
        """Location for a message: one line, without credentials; of many pictures, only the first."""
        names = joined(source.label for source in self.sources[:_SHOWN])
        more = len(self.sources) - _SHOWN
        if more > 0:
            names += f" and {more} more"
        return names + self._mark

    @property
    def identity(self) -> str:
        """Equal for two names of the same picture, with the same question or caption."""
        return self.id or joined(source.identity for source in self.sources) + self._mark

    @property
    def address(self) -> str:
        """Location that does not depend on the current folder, for records; empty without one."""
        addresses = [source.address for source in self.sources]
        return joined(addresses) if all(addresses) else ""

    @property
    def has_columns(self) -> bool:
        """Whether a prompt's `{names}` are its columns."""
        if self._has_prompt:
            return False
        return bool(self.fields) if self.together else self.sources[0].has_columns

    @property
    def _has_prompt(self) -> bool:
        """Whether its own prompt or caption decides what is asked."""
        return self.prompt is not None or self.caption is not None

    def columns(self) -> Mapping[str, Any]:
        """Return texts about the picture by name, for the prompt of a run."""
        if self._has_prompt:
            return {}
        self._check()
        if self.together:
            return self.fields or {}
        return self.sources[0].columns()

    def is_here(self) -> bool | None:
        """Return whether the picture is on this machine, all of a group; None: nobody knows, without reading it."""
        here = [source.is_here() for source in self.sources]
        if False in here:
            return False
        return None if None in here else True

    def name_in(self, folder: Path | None) -> str:
        """Return the picture's name in a record, such as `a.jpg`; `a.jpg#2` for the second text about it."""
        return joined(source.name_in(folder) for source in self.sources) + self._mark

    def images(self, name: str) -> list[str] | None:
        """Return the names of a group's pictures from its name in a record; None if it is no group."""
        if not self.together:
            return None
        name = name.removesuffix(self._mark)
        return parted(name) if len(self.sources) > 1 else [name]

    def text_file(self, extension: str) -> Path:
        """Return the text file next to it, with an extension such as `.txt`."""
        if self.id:  # there may be several questions
            raise SettingsError("answers to a file of questions are records: give `output=`, without text files")
        if len(self.sources) > 1:
            several = "a text about several pictures is written as a record, not as a text file"
            raise SettingsError(f"{self.label}: {several}: give `output=`")
        return self.sources[0].text_file(extension)

    def mirrored(self, extension: str) -> Path:
        """Return the relative path of its text file in a tree that mirrors the pictures' folders."""
        if self.id or len(self.sources) > 1 or not self.relative:
            return self.text_file(extension)  # refuses
        path = Path(self.relative)
        inside = [part for part in path.parts if part not in (path.anchor, os.pardir)]
        return Path("/".join(inside)).with_suffix(extension)  # one text: as a part, Windows takes `a:b` for a drive

    def file_size(self) -> int:
        """Return the size of its files in bytes; 0: unknown until they are read."""
        return sum(source.file_size() for source in self.sources)

    def files(self) -> list[File]:
        """Return each picture's file: one, unless several are shown together. Safe in threads."""
        self._check()
        return [file for source in self.sources for file in source.files()]

    def read(self) -> tuple[list[File], str]:
        """Return its files, and their hash. Safe in threads."""
        files = self.files()
        return files, digest(files)

    def read_once(self, cache: Cache[tuple[list[File], str]]) -> tuple[list[File], str]:
        """Read its files and hash, once for several questions; an image in memory has no address to know it by."""
        return cache.get(self.address, self.read) if self.id and self.address else self.read()

    def _check(self) -> None:
        if self.fault:
            raise PictureError(self.fault)

    def pixels(self, files: Sequence[File]) -> int:
        """Return the number of pixels to decode, from the headers alone."""
        total = 0
        for name, data in files:
            width, height = picture_size(name, data)
            total += min(width * height, BOUND)
        if len(files) > 1 and total > MOST_PIXELS:
            have = f"{len(files)} pictures have {total:,} pixels together, expected at most {MOST_PIXELS:,}"
            raise HugePictureError(f"{self.label}: {have}: give fewer, or scale them down")
        return total

    def opened(self, files: Sequence[File], sha256: str = "") -> OpenedPicture:
        """Decode its files; `sha256`: their hash, if it is known."""
        images = []
        remarks: list[str] = []
        for name, data in files:
            image, about = decode_picture(name, data)
            images.append(image)
            remarks += about
        return OpenedPicture(self.location, tuple(images), sha256 or digest(files), tuple(remarks))

    def open(self) -> OpenedPicture:
        """Read and decode it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's remarks on odd metadata
            return self.opened(self.files())


def group_of(pictures: Iterable[Picture], fields: Mapping[str, Any] | None = None) -> Picture:
    """Return pictures as one, to be shown together; `fields` are texts about them by name."""
    sources: list[Source] = []
    for picture in pictures:
        sources += picture.sources
    if not sources:
        raise PictureError("a group of pictures is empty: expected one picture or more")
    return Picture(tuple(sources), together=True, fields=fields)


def digest(files: Sequence[File]) -> str:
    """Return the hash of a file, or of several; of an image, that of its samples."""
    hashes = []
    for _, data in files:
        content = data if isinstance(data, bytes) else to_rgb(data).tobytes()
        hashes.append(hashlib.sha256(content).hexdigest())
    return digest_of(hashes)


def digest_of(hashes: Sequence[str]) -> str:
    """Return the hash of one file, or for several files the hash of their concatenated hashes."""
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


class Cache(Generic[T]):
    """The latest results, each made once, for questions that follow each other about one picture. Safe in threads."""

    def __init__(self, size: int) -> None:
        """Begin empty; keep at most `size` results, which may be 0."""
        self._size = size
        self._lock = threading.Lock()
        self._results: OrderedDict[Hashable, Future[T]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of `make`; if another thread is making it, wait for it."""
        with self._lock:
            waiting = self._results.get(key)
            if waiting is None:
                result = self._results[key] = Future()
                if len(self._results) > self._size:
                    self._results.popitem(last=False)
        if waiting is not None:
            return waiting.result()
        try:
            result.set_result(make())
        except BaseException as error:
            result.set_exception(error)
        return result.result()
