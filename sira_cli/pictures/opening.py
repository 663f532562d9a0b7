"""Opening pictures safely: what comes out is what a viewer would show, upright and in RGB."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from sira_cli.errors import PictureError
from sira_cli.pictures import stores as remote

DECODING_ERRORS = (OSError, ValueError, SyntaxError, EOFError, MemoryError)  # what Pillow's decoders raise


@dataclass(frozen=True)
class Picture:
    """An opened picture.

    Attributes:
        name: where it came from, for messages and records.
        image: upright RGB.
        sha256: of the file's bytes.
    """

    name: str
    image: Image.Image
    sha256: str


def open_picture(source: str | os.PathLike[str] | BinaryIO | Image.Image) -> Picture:
    """Open a file, a binary stream or a PIL image.

    EXIF orientation is applied, transparency is laid on white, 16-bit and float samples are scaled
    to 8 bits, of an animation the first frame is taken.

    Raises:
        PictureError: one line that names the picture and says what is wrong with it.
    """
    if isinstance(source, Image.Image):
        rgb = _as_rgb(source)
        return Picture("<image>", rgb, hashlib.sha256(rgb.tobytes()).hexdigest())
    if isinstance(source, str | os.PathLike):
        name = os.fspath(source)
        data = read_picture(name)
    else:
        name, data = "-", source.read()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on odd metadata
        image = decode_picture(name, data)
    return Picture(name, image, hashlib.sha256(data).hexdigest())


def read_picture(path: str) -> bytes:
    """A picture file's bytes, from a disk or an object store.

    Raises:
        PictureError: there is no such file, or it cannot be read.
    """
    name = one_line(path)
    try:
        if remote.is_uri(path):
            return remote.read(path)
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            raise PictureError(f"{name}: is a folder, expected a picture")
        if not stat.S_ISREG(mode):
            raise PictureError(f"{name}: is not a regular file")
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise PictureError(f"{name}: no such file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PictureError(f"{name}: cannot be read: {reason}") from None


def decode_picture(name: str, data: bytes) -> Image.Image:
    """Upright RGB from a picture file's bytes; `name` is for messages. Safe in threads.

    Raises:
        PictureError: as `open_picture`.
    """
    with _opened(name, data) as image:
        try:
            image.load()
            return _as_rgb(image)
        except DECODING_ERRORS as error:
            raise _damaged(name, error) from None


def picture_size(name: str, data: bytes) -> tuple[int, int]:
    """Width and height as stored, from the header alone.

    Raises:
        PictureError: as `open_picture`.
    """
    with _opened(name, data) as image:
        return image.size


@functools.cache
def endings() -> frozenset[str]:
    """How the names of files end that are taken for pictures, in lower case: `.jpg`, ..."""
    readable = _formats()
    return frozenset(ending for ending, name in Image.registered_extensions().items() if name in readable)


@functools.cache
def _formats() -> list[str]:
    """All that Pillow reads, but for PostScript, which it would hand to an interpreter."""
    Image.init()
    return [name for name in Image.OPEN if name != "EPS"]


def one_line(name: str) -> str:
    """A file name for a message: newlines and bytes that are no text are escaped, credentials left out."""
    name = remote.public(name) if remote.is_uri(name) else name
    return name if name.isprintable() else ascii(name)


def _opened(name: str, data: bytes) -> Image.Image:
    """The header is read, the samples are not."""
    shown = one_line(name)
    if not data:
        raise PictureError(f"{shown}: is empty (0 bytes)")
    try:
        return Image.open(io.BytesIO(data), formats=_formats())
    except UnidentifiedImageError:
        raise PictureError(f"{shown}: is not a picture that Pillow can read; convert it to PNG or JPEG") from None
    except Image.DecompressionBombError:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise PictureError(f"{shown}: has more than {limit:,} pixels, a decompression bomb?; scale it down") from None
    except DECODING_ERRORS as error:
        raise _damaged(name, error) from None


def _damaged(name: str, error: BaseException) -> PictureError:
    return PictureError(f"{one_line(name)}: is damaged: {str(error) or type(error).__name__}")


def _as_rgb(image: Image.Image) -> Image.Image:
    image = ImageOps.exif_transpose(image)
    if image.mode == "F" or image.mode.startswith("I"):
        image = _to_8_bit(image)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _to_8_bit(image: Image.Image) -> Image.Image:
    """Grey samples of 16 or 32 bits or floats: the smallest usual full scale that holds them is white."""
    samples = np.nan_to_num(np.asarray(image, dtype=np.float64))
    if image.mode.startswith("I;16"):
        scale = 65535.0
    else:
        brightest = float(samples.max(initial=0.0))
        usual = (1.0, 255.0, 65535.0) if image.mode == "F" else (255.0, 65535.0)
        scale = next((full for full in usual if brightest <= full), brightest)
    return Image.fromarray(np.clip(np.rint(samples / scale * 255), 0, 255).astype(np.uint8))
