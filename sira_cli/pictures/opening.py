"""From the bytes of a picture file to what a viewer would show: upright, in RGB."""

from __future__ import annotations

import functools
import io
import math

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from sira_cli.errors import HugePictureError, PictureError
from sira_cli.pictures.names import one_line

BOUND = 2**26  # pixels; half the width and height is still more than any model reads
SMALL = 32  # pixels; a patch of a vision encoder has 14 to 32
DECODING_ERRORS = (OSError, ValueError, SyntaxError, EOFError, MemoryError)  # what Pillow's decoders raise


def decode_picture(name: str, data: bytes) -> tuple[Image.Image, tuple[str, ...]]:
    """Return upright RGB from a picture file's bytes, and what is suspicious about it. Safe in threads.

    EXIF orientation is applied, transparency is laid on white, 16-bit and float samples are scaled to 8 bits, and of an
    animation the first frame is taken. Pictures of more than `BOUND` pixels are reduced, so that memory has a limit.

    Args:
        name: of the picture, for messages.
        data: of its file.

    Raises:
        PictureError: they are no picture, or a damaged one; one line that names it.
    """
    with _opened(name, data) as image:
        try:
            if (factor := _reduction(image)) > 1:
                image.draft(None, (image.width // factor, image.height // factor))  # of JPEG: it is decoded smaller
            warnings = suspicious(image)
            return to_rgb(image), warnings
        except DECODING_ERRORS as error:
            raise _damaged(name, error) from None


def suspicious(image: Image.Image) -> tuple[str, ...]:
    """Return why a picture's text may be about something else than one sees: usually nothing."""
    found = []
    # Phones store a second picture (MPO) for depth or a preview; what one sees is the first.
    if getattr(image, "is_animated", False) and image.format != "MPO":
        found.append("has several frames or pages: the first one was taken")
    image.load()
    if image.has_transparency_data:
        with_alpha = image if "A" in image.getbands() else image.convert("RGBA")
        if with_alpha.getchannel("A").getextrema() != (255, 255):
            found.append("is transparent in parts: they were taken as white")
    if min(image.size) < SMALL:
        found.append(f"is tiny: {image.width} x {image.height} pixels")
    return tuple(found)


def picture_size(name: str, data: bytes) -> tuple[int, int]:
    """Return width and height as stored, from the header alone.

    Raises:
        PictureError: as `decode_picture`.
    """
    with _opened(name, data) as image:
        return image.size


@functools.cache
def endings() -> frozenset[str]:
    """Return the endings of file names that count as pictures, in lower case: `.jpg`, ..."""
    readable = _formats()
    return frozenset(ending for ending, name in Image.registered_extensions().items() if name in readable)


@functools.cache
def _formats() -> list[str]:
    """Return all formats that Pillow reads, without PostScript, which it would hand to an interpreter."""
    Image.init()
    return [name for name in Image.OPEN if name != "EPS"]


def _opened(name: str, data: bytes) -> Image.Image:
    """Read the header, not the samples."""
    shown = one_line(name)
    if not data:
        raise PictureError(f"{shown}: is empty (0 bytes)")
    try:
        return Image.open(io.BytesIO(data), formats=_formats())
    except UnidentifiedImageError:
        raise PictureError(f"{shown}: is not a picture that Pillow can read; convert it to PNG or JPEG") from None
    except Image.DecompressionBombError:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise HugePictureError(
            f"{shown}: has more than {limit:,} pixels, which may be a decompression bomb: scale it down, or raise "
            "PIL.Image.MAX_IMAGE_PIXELS in Python"
        ) from None
    except DECODING_ERRORS as error:
        raise _damaged(name, error) from None


def _damaged(name: str, error: BaseException) -> PictureError:
    return PictureError(f"{one_line(name)}: is damaged: {str(error) or type(error).__name__}")


def to_rgb(image: Image.Image) -> Image.Image:
    """Return what a viewer would show of a decoded image; see `decode_picture`."""
    image = ImageOps.exif_transpose(image)
    if (factor := _reduction(image)) > 1:
        if image.mode in ("1", "P"):  # of these, `resize` would only take every other pixel
            image = image.convert("RGBA" if image.has_transparency_data else "RGB")
        image = image.resize((image.width // factor, image.height // factor), Image.Resampling.BOX)
    if image.mode == "F" or image.mode.startswith("I"):
        image = _to_8_bit(image)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _reduction(image: Image.Image) -> int:
    """Return by how much width and height are divided, so that a picture has at most `BOUND` pixels."""
    return math.ceil(math.sqrt(image.width * image.height / BOUND))


def _to_8_bit(image: Image.Image) -> Image.Image:
    """Scale grey samples of 16 or 32 bits or floats: the smallest usual full scale that holds them becomes white."""
    samples = np.nan_to_num(np.asarray(image, dtype=np.float64))
    if image.mode.startswith("I;16"):
        scale = 65535.0
    else:
        brightest = float(samples.max(initial=0.0))
        usual = (1.0, 255.0, 65535.0) if image.mode == "F" else (255.0, 65535.0)
        scale = next((full for full in usual if brightest <= full), brightest)
    return Image.fromarray(np.clip(np.rint(samples / scale * 255), 0, 255).astype(np.uint8))


def small_picture(name: str, data: bytes, side: int) -> Image.Image:
    """Return upright RGB that fits into a square; a larger JPEG is decoded smaller at once. Safe in threads.

    Args:
        name: of the picture, for messages.
        data: of its file.
        side: of the square, in pixels.

    Raises:
        PictureError: as `decode_picture`.
    """
    with _opened(name, data) as image:
        try:
            image.draft("RGB", (2 * side, 2 * side))  # still twice as large, so that it stays sharp
            small = to_rgb(image)
        except DECODING_ERRORS as error:
            raise _damaged(name, error) from None
    small.thumbnail((side, side), Image.Resampling.BICUBIC)
    return small
