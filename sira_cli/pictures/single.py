"""Single pictures: in a file, in an object store, on stdin."""

from __future__ import annotations

import functools
import os
import stat
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sira_cli.errors import PictureError, SettingsError
from sira_cli.files import length_on_windows, relative
from sira_cli.pictures import stores
from sira_cli.pictures.names import as_text
from sira_cli.pictures.opening import check_no_video
from sira_cli.pictures.picture import Picture, columns_of

STDIN = "-"

T = TypeVar("T")


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
        """Return whether neither a file nor a link of that name exists."""
        return not os.path.lexists(self.location)

    def is_here(self) -> bool:
        """Return whether the file exists."""
        try:
            return Path(self.location).is_file()
        except OSError:  # the name is too long, or the folder may not be looked into
            return False

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

    def column_names(self) -> list[str]:
        """Return `txt` for a text file next to it, and the names in a JSON file next to it."""
        return list(self._texts())

    def columns(self, names: Collection[str]) -> Mapping[str, Any]:
        """Return the columns of the files next to it."""
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
            check_no_video(self.location)  # before gigabytes are read
            with open(self.location, "rb") as file:  # noqa: PTH123
                return file.read()
        except FileNotFoundError:
            raise PictureError(f"{self.shown}: no such file{length_on_windows(self.location)}") from None
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
        """Refuse: stdin has no folder."""
        raise SettingsError("'-' (stdin) has no place for a text file: leave out `sidecar=`")

    def mirrored(self, extension: str) -> Path:
        """Refuse: stdin has no name."""
        return self.text_file(extension)

    def make_ready(self) -> None:
        """Read all of stdin here: another thread could not be stopped by Ctrl-C."""
        self.read()

    def read(self) -> bytes:
        """Return all of stdin, which can be read only once."""
        return self._bytes

    @functools.cached_property
    def _bytes(self) -> bytes:
        return sys.stdin.buffer.read()


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
