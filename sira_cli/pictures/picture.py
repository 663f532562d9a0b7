"""A picture, from the moment it is named until its record is written.

Where pictures are kept differs: in files, in object stores, on stdin, in memory. Each place is a subclass of `Picture`,
and nobody else asks which one it is.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import stat
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from sira_cli.errors import PictureError, SettingsError
from sira_cli.files import relative
from sira_cli.pictures import stores
from sira_cli.pictures.names import as_text, one_line
from sira_cli.pictures.opening import decode_picture

STDIN = "-"


@dataclass(frozen=True)
class OpenedPicture:
    """A picture whose samples have been decoded.

    Attributes:
        name: where it came from, for messages and records.
        image: upright RGB.
        sha256: of the file's bytes, in hexadecimal.
        warnings: what is suspicious about it.
    """

    name: str
    image: Image.Image
    sha256: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Picture(ABC):
    """A picture that has been named.

    Attributes:
        location: where it is, as it was named: a path, a URI, `-`.
        relative: its path below the folder that was given, or `location`; decides shards and mirrored trees.
    """

    location: str
    relative: str

    @property
    def shown(self) -> str:
        """Its location in a message: one line, without credentials."""
        return one_line(self.location)

    @property
    def identity(self) -> str:
        """What two names of the same picture have in common."""
        return self.location

    @property
    def address(self) -> str:
        """Where it can be found from anywhere; empty if nowhere. For records."""
        return ""

    @property
    def depends_on_folder(self) -> bool:
        """Whether `location` means something else in another current folder."""
        return False

    def asked(self, prompt: str) -> str:
        """Return what is asked about it in a run with a prompt; a picture may bring a text of its own."""
        return prompt

    @property
    def id(self) -> str:
        """What tells it apart from others in a run, if not its name."""
        return ""

    @property
    def has_columns(self) -> bool:
        """Whether it is part of a data set, so that a prompt's `{names}` are columns."""
        return False

    def column_names(self) -> list[str]:
        """Return the names of what is known about it beside the picture.

        Raises:
            PictureError: that cannot be read.
        """
        return []

    def columns(self, names: Collection[str]) -> Mapping[str, Any]:
        """Return those of some columns that it has.

        Raises:
            PictureError: they cannot be read.
        """
        return {}

    def is_missing(self) -> bool:
        """Return whether it can be told without reading that there is no such picture."""
        return False

    def is_here(self) -> bool:
        """Return whether it is on this machine and can be opened without asking anyone."""
        return False

    def name_in(self, folder: Path | None) -> str:
        """Return its public name in a record.

        Args:
            folder: the folder of the record's file, without symbolic links; None: the record is not in a file.
        """
        return as_text(self.location)

    def text_file(self, extension: str) -> Path:
        """Return the text file beside it, with an extension such as `.txt`.

        Raises:
            SettingsError: there is no place beside it.
        """
        raise SettingsError(f"{self.shown}: there is no place for a text file beside it")

    def mirrored(self, extension: str) -> Path:
        """Return the relative path of its text file in a tree that mirrors the pictures' folders.

        Raises:
            SettingsError: it has no path.
        """
        path = Path(self.relative)
        inside = [part for part in path.parts if part not in (path.anchor, os.pardir)]
        return Path(*inside).with_suffix(extension)

    def make_ready(self) -> None:  # noqa: B027 (most kinds have nothing to do)
        """Get ready for `read`. Called in the main thread, before `read` is called in another one."""

    @abstractmethod
    def read(self) -> bytes:
        """Return the bytes of its file. Safe in threads.

        Raises:
            PictureError: there is none, or it cannot be read.
        """

    def open(self) -> OpenedPicture:
        """Read and decode it.

        Raises:
            PictureError: it cannot be read, or is no picture; one line that names it.
        """
        data = self.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's remarks on odd metadata
            image, suspicions = decode_picture(self.shown, data)
        return OpenedPicture(self.location, image, hashlib.sha256(data).hexdigest(), suspicions)


@dataclass(frozen=True)
class FilePicture(Picture):
    """A picture in a file."""

    @property
    def identity(self) -> str:
        """The path without detours."""
        return os.path.normpath(self.location)

    @property
    def address(self) -> str:
        """The absolute path."""
        return as_text(str(Path(self.location).absolute()))

    @property
    def depends_on_folder(self) -> bool:
        """Whether the path is relative."""
        return not Path(self.location).is_absolute()

    def is_missing(self) -> bool:
        """Return whether there is no such file, nor a link of that name."""
        return not os.path.lexists(self.location)

    def is_here(self) -> bool:
        """Return whether there is such a file."""
        try:
            return Path(self.location).is_file()
        except OSError:  # the name is too long, or the folder may not be looked into
            return False

    def name_in(self, folder: Path | None) -> str:
        """Return the path as seen from `folder`; without one, as it was named."""
        if folder is None:
            return as_text(self.location)
        own, file = os.path.split(self.location)
        return as_text(Path(_seen_from(folder, os.path.abspath(own)), file).as_posix())  # noqa: PTH100 (many pictures)

    def text_file(self, extension: str) -> Path:
        """Return the file of the same name with another extension."""
        return Path(self.location).with_suffix(extension)

    def column_names(self) -> list[str]:
        """Return `txt` for a text file beside it, and the names in a JSON file beside it."""
        return list(self._texts())

    def columns(self, names: Collection[str]) -> Mapping[str, Any]:
        """Return what the files beside it say."""
        return self._texts()

    def _texts(self) -> dict[str, Any]:
        texts = {}
        for extension in ("json", "txt"):
            with suppress(FileNotFoundError):
                texts[extension] = _read_file(self, self.text_file(f".{extension}"))
        return columns_of(self.shown, texts)

    def read(self) -> bytes:
        """Read the file."""
        try:
            mode = os.stat(self.location).st_mode  # noqa: PTH116 (a Path costs more than the call, and there are many)
            if stat.S_ISDIR(mode):
                raise PictureError(f"{self.shown}: is a folder, expected a picture")
            if not stat.S_ISREG(mode):
                raise PictureError(f"{self.shown}: is not a regular file")
            with open(self.location, "rb") as file:  # noqa: PTH123
                return file.read()
        except FileNotFoundError:
            raise PictureError(f"{self.shown}: no such file") from None
        except (OSError, ValueError) as error:
            raise _unreadable(self, error) from None


@dataclass(frozen=True)
class StorePicture(Picture):
    """A picture in an object store (`s3://`, `gs://`, ...)."""

    @property
    def address(self) -> str:
        """The URI without credentials."""
        return stores.public(self.location)

    def name_in(self, folder: Path | None) -> str:
        """Return the URI without credentials, wherever the record is."""
        return stores.public(self.location)

    def text_file(self, extension: str) -> Path:
        """Refuse: nothing is written to a store."""
        raise SettingsError(f"{self.shown}: texts are not written to a store: give `output_dir=`")

    def read(self) -> bytes:
        """Fetch the object."""
        try:
            return stores.read(self.location)
        except FileNotFoundError:
            raise PictureError(f"{self.shown}: no such file") from None
        except (OSError, ValueError) as error:
            raise _unreadable(self, error) from None


@dataclass(frozen=True)
class StdinPicture(Picture):
    """The picture that is piped into the process."""

    location: str = STDIN
    relative: str = STDIN

    @property
    def shown(self) -> str:
        """Its name in a message."""
        return "stdin"

    def text_file(self, extension: str) -> Path:
        """Refuse: there is no file to be beside."""
        raise SettingsError("'-' (stdin) has no place for a text file: leave out `sidecar=`")

    def mirrored(self, extension: str) -> Path:
        """Refuse: there is no name to take over."""
        return self.text_file(extension)

    def make_ready(self) -> None:
        """Wait for all of stdin here: in another thread, Ctrl-C would have to wait for it."""
        self.read()

    def read(self) -> bytes:
        """Return all of stdin, which can be read once only."""
        return self._bytes

    @functools.cached_property
    def _bytes(self) -> bytes:
        return sys.stdin.buffer.read()


def columns_of(shown: str, texts: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the columns that text files hold: those of JSON are its names, any other is named as its extension.

    Args:
        shown: the picture's name, for messages.
        texts: the files' bytes, by extension.

    Raises:
        PictureError: a JSON file holds something else than an object.
    """
    columns: dict[str, Any] = {}
    for extension, data in texts.items():
        if extension.rpartition(".")[2] != "json":
            columns[extension] = data.decode(errors="replace").strip()
            continue
        try:
            columns = {**json.loads(data), **columns}
        except (ValueError, TypeError) as error:
            raise PictureError(f"{shown}: its .{extension} is no JSON object: {error}") from None
    return columns


def _read_file(picture: Picture, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise _unreadable(picture, error) from None


def _unreadable(picture: Picture, error: Exception) -> PictureError:
    reason = getattr(error, "strerror", None) or str(error)
    return PictureError(f"{picture.shown}: cannot be read: {reason}")


@functools.lru_cache(maxsize=1024)  # many pictures share few folders
def _seen_from(folder: Path, own: str) -> str:
    return relative(Path(own), folder)
