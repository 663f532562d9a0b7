"""Sources of pictures: files, object stores, memory; from what a user or a program gives to a `Picture`."""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from PIL import Image

from sira_cli.errors import DataError, PictureError, SettingsError
from sira_cli.files import length_on_windows, relative, text_in
from sira_cli.parsing import from_json
from sira_cli.pictures.names import as_text, from_text, is_uri, on_disk, parted, public
from sira_cli.pictures.neighbours import own_text
from sira_cli.pictures.opening import check_no_video
from sira_cli.pictures.picture import File, Picture, Source, group_of
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

    def is_here(self) -> bool | None:
        """Return whether the file exists; None for a link whose target may be there again tomorrow."""
        if os.path.isfile(self.location):  # noqa: PTH113 (no name of a file)
            return True
        return None if os.path.lexists(self.location) else False

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
        own_folder, file = os.path.split(self.location)
        seen = _seen_from(folder, os.path.abspath(own_folder))  # noqa: PTH100 (many pictures)
        return as_text(Path(seen, file).as_posix())

    def text_file(self, extension: str) -> Path:
        """Return the file of the same name with another extension."""
        return Path(self.location).with_suffix(extension)

    def columns(self) -> Mapping[str, Any]:
        """Return `txt` for a text file next to it, and the names in a JSON file next to it."""
        texts = {}
        try:
            for extension in ("json", "txt"):
                with suppress(FileNotFoundError):
                    texts[extension] = own_text(self.location, f".{extension}").read_bytes()
        except (OSError, ValueError) as error:
            raise _unreadable(self, error) from None
        return columns_of(self.label, texts)

    def read(self) -> bytes:
        """Read the file."""
        try:
            mode = os.stat(self.location).st_mode  # noqa: PTH116 (a Path costs more than the call, and there are many)
            if not stat.S_ISREG(mode):
                kind = "is a folder, expected a picture" if stat.S_ISDIR(mode) else "is not a regular file"
                raise PictureError(f"{self.label}: {kind}")
            check_no_video(self.location)  # before gigabytes are read
            with open(self.location, "rb") as file:  # noqa: PTH123
                return file.read()
        except (OSError, ValueError) as error:
            raise _unreadable(self, error, length_on_windows(self.location)) from None


@dataclass(frozen=True, slots=True)
class StoreSource(Source):
    """An object in a store (`s3://`, `gs://`, ...)."""

    no_text_file = "{label}: texts are not written to a store: give `output_dir=`"

    def read(self) -> bytes:
        """Fetch the object."""
        try:
            with opened(self.location) as file:
                return file.read()
        except (OSError, ValueError) as error:
            raise _unreadable(self, error) from None


@dataclass(frozen=True, slots=True)
class MemorySource(Source):
    """What a program gives, or stdin: a binary stream that has been read, or a PIL image."""

    content: bytes | Image.Image = b""
    label: str = "stdin"  # its name in messages
    no_text_file = "{label} has no place for a text file: leave out `sidecar=`"

    def files(self) -> list[File]:
        """Return the stream's bytes, or the image."""
        return [(self.label, self.content)]


def columns_of(shown: str, texts: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the columns that text files hold: the names of JSON objects; other files are named by extension."""
    columns: dict[str, Any] = {}
    for extension, data in texts.items():
        try:
            if extension.rpartition(".")[2] == "json":
                columns = {**from_json(data), **columns}
            else:
                columns[extension] = text_in(data, f"{shown}: its .{extension}").strip()
        except DataError as error:
            raise PictureError(str(error)) from None
        except (ValueError, TypeError) as error:
            raise PictureError(f"{shown}: its .{extension} is not a JSON object: {error}") from None
    return columns


def _unreadable(source: Source, error: Exception, remark: str = "") -> PictureError:
    if isinstance(error, FileNotFoundError):
        return PictureError(f"{source.label}: no such file{remark}")
    return PictureError(f"{source.label}: cannot be read: {getattr(error, 'strerror', None) or error}")


@functools.lru_cache(maxsize=1024)  # many pictures share few folders
def _seen_from(folder: Path, other: str) -> str:
    return relative(Path(other), folder)


@contextmanager
def connected(uri: str) -> Iterator[tuple[Any, str]]:
    """Yield the store of a URI, by fsspec, and the path in it; its errors of every kind become an OSError."""
    from fsspec.core import url_to_fs

    try:
        try:
            store = url_to_fs(uri)
        except ImportError as error:
            raise SettingsError(f"{public(uri)}: {error}, with pip") from error
        except ValueError as error:
            raise SettingsError(f"{public(uri)}: {error}: expected a store such as s3://bucket/folder") from error
        yield store
    except (OSError, SettingsError):
        raise
    except Exception as error:
        raise OSError(f"{public(uri)}: {str(error) or type(error).__name__}") from error


@contextmanager
def opened(location: str) -> Iterator[BinaryIO]:
    """Open an object in a store, or a file, for random access."""
    if not is_uri(location):
        with open(location, "rb") as file:  # noqa: PTH123 (may be no text)
            yield file
        return
    with connected(location) as (filesystem, path), filesystem.open(path, "rb") as file:
        yield cast(BinaryIO, file)


# Kinds of sources by the scheme of their URL; other URIs are of stores.
SCHEMES: dict[str, type[Source]] = {"http": WebSource, "https": WebSource}


def scheme_source(location: str) -> type[Source] | None:
    """Return the kind of a location in `SCHEMES`; None without one."""
    scheme, colon, _ = location.partition("://")
    return SCHEMES.get(scheme.lower()) if colon else None


def located(location: str, below: str | None = None) -> Picture:
    """Return the picture at a path, URI or URL; `below` is its path below the folder that was given."""
    kind = scheme_source(location) or (StoreSource if is_uri(location) else FileSource)
    return Picture((kind(on_disk(location), location if below is None else below),))


def recorded(name: str, folder: Path) -> Picture:
    """Return the picture that a file in `folder` names; a name of another program may only look like a group's."""
    names = parted(name)
    if len(names) > 1 and not os.path.lexists(folder / name):
        return group_of(recorded(part, folder) for part in names)
    if is_uri(name):
        return located(name)
    if os.path.lexists(folder / from_text(name)):
        name = from_text(name)
    return located(str(folder / name), name)


SingleSource = str | os.PathLike[str] | bytes | BinaryIO | Image.Image | np.ndarray[Any, Any] | Picture
PictureSource = SingleSource | list[Any] | tuple[Any, ...]  # a list of `SingleSource`: shown together


def as_picture(source: PictureSource) -> Picture:
    """Return a picture for a source that a program gives."""
    match source:
        case Picture():
            return source
        case list() | tuple():
            return group_of(map(as_picture, source))
        case str() | os.PathLike():
            return located(os.fspath(source))
        case Image.Image():
            return _in_memory(source, "<image>")
        case np.ndarray():
            is_shape = source.ndim == 2 or source.shape[2:] == (3,)
            if source.dtype != np.uint8 or not source.size or not is_shape:
                found = f"an array of {source.dtype} {list(source.shape)}"
                raise PictureError(f"{found} is not a picture: expected uint8, [H, W] grey or [H, W, 3] RGB")
            return _in_memory(Image.fromarray(source), "<array>")
    data = source.read() if hasattr(source, "read") else source
    if isinstance(data, bytes | bytearray | memoryview):
        return _in_memory(bytes(data), STDIN, label="the picture's bytes")
    raise PictureError(
        f"a {type(source).__name__} is not a picture: expected a path, a URI, bytes, a binary file, a PIL image or a "
        "numpy array; `caption_many` takes several pictures"
    )


def _in_memory(content: bytes | Image.Image, name: str, label: str = "") -> Picture:
    """Return a picture that a program gives, by a name that stands for its location; `label` is for messages."""
    source = MemorySource(location=name, relative=name, content=content, label=label or name)
    return Picture((source,))
