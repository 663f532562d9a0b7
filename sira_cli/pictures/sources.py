"""Pictures from a program: a path, a URI, bytes, a stream, an image, an array."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from sira_cli.errors import PictureError
from sira_cli.pictures import stores
from sira_cli.pictures.names import from_text, on_disk, parted
from sira_cli.pictures.picture import OpenedPicture, Picture
from sira_cli.pictures.samples import suspicious, to_rgb
from sira_cli.pictures.single import STDIN, FilePicture, StorePicture
from sira_cli.pictures.together import Together
from sira_cli.pictures.web import WebPicture


@dataclass(frozen=True)
class MemoryPicture(Picture):
    """A picture that a program gives: a binary stream that has been read, or a PIL image."""

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
        return super().sizes(data) if isinstance(self.content, bytes) else [self.content.size]

    def opened(self, data: bytes) -> OpenedPicture:
        """Decode the bytes; an image is decoded already."""
        if isinstance(self.content, bytes):
            return super().opened(data)
        return OpenedPicture(self.location, to_rgb(self.content), self.digest(data), suspicious(self.content))


SingleSource = str | os.PathLike[str] | bytes | BinaryIO | Image.Image | np.ndarray[Any, Any] | Picture
PictureSource = SingleSource | list[Any] | tuple[Any, ...]  # a list of `SingleSource`: shown together


def as_picture(source: PictureSource) -> Picture:
    """Return a picture for a source that a program gives."""
    if isinstance(source, Picture):
        return source
    if isinstance(source, list | tuple):
        return Together.of(map(as_picture, source))
    if isinstance(source, Image.Image):
        return MemoryPicture("<image>", "<image>", source)
    if isinstance(source, str | os.PathLike):
        return located(os.fspath(source))
    if isinstance(source, np.ndarray):
        return MemoryPicture("<array>", "<array>", _of_samples(source))
    if hasattr(source, "read"):
        source = source.read()
    if isinstance(source, bytes | bytearray | memoryview):
        return MemoryPicture(STDIN, STDIN, bytes(source))
    raise PictureError(
        f"a {type(source).__name__} is not a picture: expected a path, a URI, bytes, a binary file, a PIL image or a "
        "numpy array; `caption_many` takes several pictures"
    )


def _of_samples(samples: np.ndarray[Any, Any]) -> Image.Image:
    fits = samples.ndim == 2 or (samples.ndim == 3 and samples.shape[2] == 3)
    if not fits or samples.dtype != np.uint8 or not samples.size:
        raise PictureError(
            f"an array of {samples.dtype} {list(samples.shape)} is not a picture: expected uint8, [H, W] grey or "
            "[H, W, 3] RGB"
        )
    return Image.fromarray(samples)


# Kinds of pictures by the scheme of their URL; other URIs are of stores. A kind takes location, and path below the
# folder that was given.
SCHEMES: dict[str, Callable[[str, str], Picture]] = {"http": WebPicture, "https": WebPicture}


def has_scheme(location: str) -> bool:
    """Return whether a location is a picture of a kind in `SCHEMES`."""
    scheme, colon, _ = location.partition("://")
    return bool(colon) and scheme.lower() in SCHEMES


def located(location: str, below: str | None = None) -> Picture:
    """Return the picture at a path, URI or URL."""
    if has_scheme(location):
        scheme = location.partition("://")[0].lower()
        return SCHEMES[scheme](location, location if below is None else below)
    kind = StorePicture if stores.is_uri(location) else FilePicture
    return kind(on_disk(location), location if below is None else below)


def recorded(name: str, folder: Path) -> Picture:
    """Return the picture that a file in `folder` names.

    A name written by another program may look escaped, or like a group's name, without being one.
    """
    if len(names := parted(name)) > 1 and not os.path.lexists(folder / name):
        return Together.of(recorded(each, folder) for each in names)
    if stores.is_uri(name):
        return located(name)
    known = from_text(name) if os.path.lexists(folder / from_text(name)) else name
    return located(str(folder / known), known)


def open_picture(source: PictureSource) -> OpenedPicture:
    """Open a path, a URI, a binary stream, a PIL image or a picture.

    EXIF orientation is applied, transparency is laid on white, 16-bit and float samples are scaled to 8 bits, and of an
    animation the first frame is taken.
    """
    return as_picture(source).open()
