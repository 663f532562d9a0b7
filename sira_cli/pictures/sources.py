"""Sources of pictures: files, object stores, memory; from what a user or a program gives to a `Picture`."""

from __future__ import annotations

import functools
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from sira_cli.errors import DataError, PictureError
from sira_cli.files import length_on_windows, relative, text_in
from sira_cli.pictures import stores
from sira_cli.pictures.names import as_text, from_text, on_disk, parted
from sira_cli.pictures.opening import check_no_video, suspicious, to_rgb
from sira_cli.pictures.picture import OpenedPicture, Picture, Source, group_of
from sira_cli.pictures.web import WebSource

STDIN = "-"


@dataclass(frozen=True, slots=True)
class FileSource(Source):
    """A file."""

    @property
    def identity(self) -> str:
        """The path without detours."""
        return os.path.normpath(self.location)

    @property
    def address(self) -> str:
        """The absolute path."""
        return as_text(str(Path(self.location).absolute()))

    def is_missing(self) -> bool:
        """Return whether neither a file nor a link of that name exists."""
        return not os.path.lexists(self.location)

    def is_here(self) -> bool:
        """Return whether the file exists."""
        return os.path.isfile(self.location)  # noqa: PTH113 (False also for names that no file can have)

    def file_size(self) -> int:
        """Return the size of the file."""
        try:
            return os.stat(self.location).st_size  # noqa: PTH116 (many pictures)
        except (OSError, ValueError):  # `read` raises it
            return 0

    def name_in(self, folder: Path | None) -> str:
        """Return the path as seen from `folder`; without one, as it was named."""
        if folder is None:
            return as_text(self.location)
        own, file = os.path.split(self.location)
        return as_text(Path(_seen_from(folder, os.path.abspath(own)), file).as_posix())  # noqa: PTH100 (many pictures)

    def text_file(self, extension: str) -> Path:
        """Return the file of the same name with another extension."""
        return Path(self.location).with_suffix(extension)

    def columns(self) -> Mapping[str, Any]:
        """Return `txt` for a text file next to it, and the names in a JSON file next to it."""
        texts = {}
        for extension in ("json", "txt"):
            try:
                texts[extension] = self.text_file(f".{extension}").read_bytes()
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                raise _unreadable(self, error) from None
        return columns_of(self.shown, texts)

    def read(self) -> bytes:
        """Read the file."""
        try:
            mode = os.stat(self.location).st_mode  # noqa: PTH116 (a Path costs more than the call, and there are many)
            if stat.S_ISDIR(mode):
                raise PictureError(f"{self.shown}: is a folder, expected a picture")
            if not stat.S_ISREG(mode):
                raise PictureError(f"{self.shown}: is not a regular file")
            check_no_video(self.location)  # before gigabytes are read
            with open(self.location, "rb") as file:  # noqa: PTH123
                return file.read()
        except FileNotFoundError:
            raise PictureError(f"{self.shown}: no such file{length_on_windows(self.location)}") from None
        except (OSError, ValueError) as error:
            raise _unreadable(self, error) from None


@dataclass(frozen=True, slots=True)
class StoreSource(Source):
    """An object in a store (`s3://`, `gs://`, ...)."""

    no_text_file = "{shown}: texts are not written to a store: give `output_dir=`"

    @property
    def address(self) -> str:
        """The URI without credentials."""
        return stores.public(self.location)

    def read(self) -> bytes:
        """Fetch the object."""
        try:
            with stores.opened(self.location) as file:
                return file.read()
        except FileNotFoundError:
            raise PictureError(f"{self.shown}: no such file") from None
        except (OSError, ValueError) as error:
            raise _unreadable(self, error) from None


@dataclass(frozen=True, slots=True)
class MemorySource(Source):
    """What a program gives: a binary stream that has been read, or a PIL image."""

    content: bytes | Image.Image = b""

    @property
    def shown(self) -> str:
        """Its name in a message."""
        return "the picture's bytes" if isinstance(self.content, bytes) else self.location

    def read(self) -> bytes:
        """Return the stream's bytes, or the image's samples."""
        return self.content if isinstance(self.content, bytes) else to_rgb(self.content).tobytes()

    def sizes(self, data: bytes) -> list[tuple[int, int]]:
        """Return the size of the bytes' picture, or the image's."""
        return Source.sizes(self, data) if isinstance(self.content, bytes) else [self.content.size]

    def decoded(self, data: bytes) -> list[tuple[Image.Image, tuple[str, ...]]]:
        """Decode the bytes; an image is decoded already."""
        if isinstance(self.content, bytes):
            return Source.decoded(self, data)
        return [(to_rgb(self.content), suspicious(self.content))]


@dataclass(frozen=True, slots=True)
class StdinSource(MemorySource):
    """The picture that was piped into the process."""

    shown = "stdin"
    no_text_file = "'-' (stdin) has no place for a text file: leave out `sidecar=`"


def columns_of(shown: str, texts: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the columns that text files hold: the names of JSON objects; other files are named by extension."""
    columns: dict[str, Any] = {}
    for extension, data in texts.items():
        if extension.rpartition(".")[2] != "json":
            try:
                columns[extension] = text_in(data, f"{shown}: its .{extension}").strip()
            except DataError as error:
                raise PictureError(str(error)) from None
            continue
        try:
            columns = {**json.loads(data), **columns}
        except (ValueError, TypeError) as error:
            raise PictureError(f"{shown}: its .{extension} is not a JSON object: {error}") from None
    return columns


def _unreadable(source: Source, error: Exception) -> PictureError:
    reason = getattr(error, "strerror", None) or str(error)
    return PictureError(f"{source.shown}: cannot be read: {reason}")


@functools.lru_cache(maxsize=1024)  # many pictures share few folders
def _seen_from(folder: Path, own: str) -> str:
    return relative(Path(own), folder)


# Kinds of sources by the scheme of their URL; other URIs are of stores. A kind takes location, and path below the
# folder that was given.
SCHEMES: dict[str, type[Source]] = {"http": WebSource, "https": WebSource}


def has_scheme(location: str) -> bool:
    """Return whether a location is of a kind in `SCHEMES`."""
    scheme, colon, _ = location.partition("://")
    return bool(colon) and scheme.lower() in SCHEMES


def located(location: str, below: str | None = None) -> Picture:
    """Return the picture at a path, URI or URL."""
    below = location if below is None else below
    if has_scheme(location):
        return Picture((SCHEMES[location.partition("://")[0].lower()](location, below),))
    kind = StoreSource if stores.is_uri(location) else FileSource
    return Picture((kind(on_disk(location), below),))


def recorded(name: str, folder: Path) -> Picture:
    """Return the picture that a file in `folder` names.

    A name written by another program may look escaped, or like a group's name, without being one.
    """
    if len(names := parted(name)) > 1 and not os.path.lexists(folder / name):
        return group_of(recorded(each, folder) for each in names)
    if stores.is_uri(name):
        return located(name)
    known = from_text(name) if os.path.lexists(folder / from_text(name)) else name
    return located(str(folder / known), known)


SingleSource = str | os.PathLike[str] | bytes | BinaryIO | Image.Image | np.ndarray[Any, Any] | Picture
PictureSource = SingleSource | list[Any] | tuple[Any, ...]  # a list of `SingleSource`: shown together


def as_picture(source: PictureSource) -> Picture:
    """Return a picture for a source that a program gives."""
    if isinstance(source, Picture):
        return source
    if isinstance(source, list | tuple):
        return group_of(map(as_picture, source))
    if isinstance(source, str | os.PathLike):
        return located(os.fspath(source))
    if isinstance(source, Image.Image):
        return Picture((MemorySource("<image>", "<image>", source),))
    if isinstance(source, np.ndarray):
        return Picture((MemorySource("<array>", "<array>", _image_of(source)),))
    if hasattr(source, "read"):
        source = source.read()
    if isinstance(source, bytes | bytearray | memoryview):
        return Picture((MemorySource(STDIN, STDIN, bytes(source)),))
    raise PictureError(
        f"a {type(source).__name__} is not a picture: expected a path, a URI, bytes, a binary file, a PIL image or a "
        "numpy array; `caption_many` takes several pictures"
    )


def _image_of(samples: np.ndarray[Any, Any]) -> Image.Image:
    fits = samples.ndim == 2 or (samples.ndim == 3 and samples.shape[2] == 3)
    if not fits or samples.dtype != np.uint8 or not samples.size:
        raise PictureError(
            f"an array of {samples.dtype} {list(samples.shape)} is not a picture: expected uint8, [H, W] grey or "
            "[H, W, 3] RGB"
        )
    return Image.fromarray(samples)


def open_picture(source: PictureSource) -> OpenedPicture:
    """Open a path, a URI, a binary stream, a PIL image or a picture.

    EXIF orientation is applied, transparency is laid on white, 16-bit and float samples are scaled to 8 bits, and of an
    animation the first frame is taken.
    """
    return as_picture(source).open()
