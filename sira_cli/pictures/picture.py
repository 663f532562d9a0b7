"""A picture, from the moment it is named until its record is written.

Pictures are in files, in object stores, on stdin or in memory. Each place is a subclass of `Picture`; no other code
depends on the place.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from sira_cli.errors import DataError, HugePictureError, PictureError, SettingsError
from sira_cli.files import text_in
from sira_cli.pictures.names import as_text, one_line
from sira_cli.pictures.opening import decode_picture, picture_size
from sira_cli.pictures.samples import BOUND

MOST_PIXELS = 4 * BOUND  # of pictures that are shown together: their samples are in memory at once


@dataclass(frozen=True)
class OpenedPicture:
    """A picture whose samples have been decoded.

    Attributes:
        name: where it came from, for messages and records.
        image: upright RGB; of a group, the first.
        sha256: of the file's bytes, in hexadecimal; for several files see `digest_of`.
        warnings: about the picture.
        more: of a group, the other pictures.
    """

    name: str
    image: Image.Image
    sha256: str
    warnings: tuple[str, ...] = ()
    more: tuple[Image.Image, ...] = ()

    @property
    def images(self) -> tuple[Image.Image, ...]:
        """All pictures, in order."""
        return (self.image, *self.more)

    @property
    def shown(self) -> Image.Image | tuple[Image.Image, ...]:
        """The pictures that a prompt shows: this one, or those of a group."""
        return self.images if self.more else self.image


@dataclass(frozen=True)
class Picture(ABC):
    """A named picture, not opened yet.

    Attributes:
        location: where it is, as it was named: a path, a URI, `-`.
        relative: its path below the folder that was given, or `location`; decides shards and mirrored trees.
    """

    location: str
    relative: str

    @property
    def shown(self) -> str:
        """Location for a message: one line, without credentials."""
        return one_line(self.location)

    @property
    def parts(self) -> tuple[Picture, ...]:
        """The pictures that are shown together; most kinds are one."""
        return (self,)

    @property
    def is_group(self) -> bool:
        """Whether it stands for several pictures that are shown together."""
        return len(self.parts) > 1

    @property
    def identity(self) -> str:
        """Equal for two names of the same picture."""
        return self.location

    @property
    def address(self) -> str:
        """Location that does not depend on the current folder, for records; empty without one."""
        return ""

    @property
    def depends_on_folder(self) -> bool:
        """Whether `location` means something else in another current folder."""
        return False

    def asked(self, prompt: str) -> str:
        """Return the prompt for this picture in a run with `prompt`; a picture may have its own."""
        return prompt

    @property
    def id(self) -> str:
        """Unique id in a run, if it differs from the name."""
        return ""

    @property
    def has_columns(self) -> bool:
        """Whether it is part of a data set, so that a prompt's `{names}` are columns."""
        return False

    def column_names(self) -> list[str]:
        """Return the names of its columns: texts about the picture."""
        return []

    def columns(self, names: Collection[str]) -> Mapping[str, Any]:
        """Return the given columns, as far as it has them."""
        return {}

    def is_missing(self) -> bool:
        """Return whether the picture is known to be missing, without reading it."""
        return False

    def is_here(self) -> bool:
        """Return whether the picture is on this machine, so that it can be opened without a network."""
        return False

    def name_in(self, folder: Path | None) -> str:
        """Return the picture's name in a record."""
        return as_text(self.location)

    def images(self, name: str) -> list[str] | None:
        """Return the names of a group's pictures in a record; None if there is only one picture."""
        return None

    def text_file(self, extension: str) -> Path:
        """Return the text file next to it, with an extension such as `.txt`."""
        raise SettingsError(f"{self.shown}: no text file can be written next to it")

    def text_next_to(self, extension: str) -> str | None:
        """Return the text in the text file next to it; None without one."""
        try:
            own = self.text_file(f"{Path(self.location).suffix}{extension}")  # a.jpg.txt, where a.txt is of another
            file = own if own.is_file() else self.text_file(extension)
            return text_in(file.read_bytes(), one_line(str(file))).strip()
        except (OSError, SettingsError):
            return None

    def mirrored(self, extension: str) -> Path:
        """Return the relative path of its text file in a tree that mirrors the pictures' folders."""
        path = Path(self.relative)
        inside = [part for part in path.parts if part not in (path.anchor, os.pardir)]
        return Path("/".join(inside)).with_suffix(extension)  # one text: as a part, Windows takes `a:b` for a drive

    def file_size(self) -> int:
        """Return the size of the file in bytes; 0: unknown until the file is read."""
        return 0

    def make_ready(self) -> None:  # noqa: B027 (most kinds have nothing to do)
        """Prepare `read`; called in the main thread, before another thread calls `read`."""

    @abstractmethod
    def read(self) -> bytes:
        """Return the bytes of its file. Safe in threads."""

    def files(self, data: bytes) -> list[tuple[str, bytes]]:
        """Return each picture's name in messages, and its file: one, unless several are shown together."""
        return [(self.shown, data)]

    def digest(self, data: bytes) -> str:
        """Return the hash of its file, or of several, from what `read` returned."""
        return digest_of([hashlib.sha256(file).hexdigest() for _, file in self.files(data)])

    def sizes(self, data: bytes) -> list[tuple[int, int]]:
        """Return each picture's width and height, from the headers alone."""
        return [picture_size(*file) for file in self.files(data)]

    def pixels(self, data: bytes) -> int:
        """Return the number of pixels to decode, from the headers alone."""
        sizes = self.sizes(data)
        total = sum(min(width * height, BOUND) for width, height in sizes)
        if len(sizes) > 1 and total > MOST_PIXELS:
            raise HugePictureError(
                f"{self.shown}: {len(sizes)} pictures have {total:,} pixels together, expected at most "
                f"{MOST_PIXELS:,}: give fewer, or scale them down"
            )
        return total

    def opened(self, data: bytes) -> OpenedPicture:
        """Decode it."""
        found = [decode_picture(*file) for file in self.files(data)]
        image, *more = (image for image, _ in found)
        suspicions = tuple(warning for _, warnings in found for warning in warnings)
        return OpenedPicture(self.location, image, self.digest(data), suspicions, tuple(more))

    def open(self) -> OpenedPicture:
        """Read and decode it."""
        data = self.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's remarks on odd metadata
            return self.opened(data)


def digest_of(hashes: Sequence[str]) -> str:
    """Return the hash of one file, or for several files the hash of their concatenated hashes."""
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


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
