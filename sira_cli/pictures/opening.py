"""From the bytes of a picture file to the picture as viewers show it: upright, in sRGB.

A picture of 179 million pixels, the most that Pillow opens, takes 0.7 GB. Pictures that do not fit into `MEMORY` wait,
and whatever needs a second copy of the samples is done strip by strip.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import io
import math
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import PurePath

import numpy as np
from PIL import ExifTags, Image, ImageOps, TiffImagePlugin, UnidentifiedImageError

from sira_cli.errors import HugePictureError, PictureError, PictureMemoryError, install
from sira_cli.pictures.colours import Conversion, conversion_of, has_unusable_profile
from sira_cli.pictures.names import one_line
from sira_cli.pictures.segments import ends, readable, scans_of
from sira_cli.pictures.work import excess_of

BOUND = 2**26  # pixels; half the width and height is still more than any model reads
SMALL = 32  # pixels; a patch of a vision encoder has 14 to 32
_STRIP = 2**18  # pixels
_DECODING_ERRORS = (OSError, ValueError, SyntaxError, EOFError)  # raised by Pillow's decoders
_HEADER_ERRORS = (*_DECODING_ERRORS, IndexError, TypeError, KeyError, struct.error)
_LONGEST = 65_535  # pixels of a side: JPEG has no longer ones
# Bytes per pixel that decoding takes: at most 4 for samples, as many for a copy, and the decoders' own, as measured.
_USUAL = 10
_DECODERS = {"WEBP": 17, "AVIF": 19, "JPEG2000": 25, "HEIF": 13}
_UNENDED = "lacks the mark of its end: all samples are there, but what followed them may be lost"
_MUCH = 2**28  # bytes
_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")  # of HEIF files, in their first box
# Camera RAW files, told by their names: many are TIFF by their bytes, and Pillow shows a stamp that is in them.
_RAW = "cr2 cr3 crw nef nrw arw srf sr2 dng orf rw2 raf pef srw x3f 3fr"
RAW = frozenset(f".{kind}" for kind in _RAW.split())
_BITS_PER_SAMPLE = 258  # tag of TIFF
_VIDEO_KINDS = "mp4 mov m4v mkv webm avi wmv mpg mpeg mts m2ts 3gp flv"
VIDEOS = frozenset(f".{kind}" for kind in _VIDEO_KINDS.split())


class Memory:
    """A number of bytes that threads share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = size
        self._turn = threading.Lock()
        self._returned = threading.Condition()

    @contextlib.contextmanager
    def taken(self, needed: int) -> Iterator[None]:
        """Wait until `needed` bytes are free, and hold them. A thread that holds bytes may not ask for more."""
        needed = min(needed, self.size)  # a request above the total takes all
        with self._turn, self._returned:
            self._returned.wait_for(lambda: self._free >= needed)
            self._free -= needed
        try:
            yield
        finally:
            with self._returned:
                self._free += needed
                self._returned.notify_all()


MEMORY = Memory(1_800_000_000)  # bytes; the largest PNG that Pillow opens needs as much


def decode_picture(
    name: str, data: bytes | Image.Image, side: int | None = None
) -> tuple[Image.Image, tuple[str, ...]]:
    """Return upright RGB from a picture's file, or from an image, and warnings about it. Safe in threads.

    EXIF orientation and colour profile are applied, transparency is laid on white, 16-bit and float samples are scaled
    to 8 bits, and of an animation the first frame is taken. Pictures of more than `BOUND` pixels are reduced, so that
    memory has a limit; with `side`, a JPEG is decoded smaller, but still twice as large as that.
    """
    if isinstance(data, Image.Image):
        return to_rgb(data), suspicious(data)
    needed = memory_for(name, data)
    for share in (needed, MEMORY.size):  # a picture that needs all of it is decoded alone
        with MEMORY.taken(share):
            try:
                return _decoded(name, data, side)
            except _DECODING_ERRORS as error:
                raise _damaged(name, error) from None
            except MemoryError:
                continue
            finally:
                if needed > _MUCH:
                    give_back()
    takes = f"it may take {needed / 1e9:.1f} GB; close other programs, or scale the picture down"
    raise PictureMemoryError(f"{one_line(name)}: memory does not suffice to decode it: {takes}")


def _decoded(name: str, data: bytes, side: int | None) -> tuple[Image.Image, tuple[str, ...]]:
    file = whole(data)
    image = opened_header(name, file)
    if side is not None:
        image.draft("RGB", (2 * side, 2 * side))
    factor = reduction(image)
    if factor > 1:
        image.draft(None, (image.width // factor, image.height // factor))  # of JPEG: decoded smaller
    warnings = suspicious(image)
    if file is not data and image.format in ("JPEG", "MPO"):
        warnings += (_UNENDED,)
    image = upright(image)  # step by step, so that the larger one is gone before the next is made
    image = reduced(image)
    return in_rgb(image), warnings


def memory_for(name: str, data: bytes) -> int:
    """Return the maximum number of bytes for decoding a picture's file, from the header alone."""
    return _needed(opened_header(name, data)) + len(data)


def whole(data: bytes) -> bytes:
    """Return a picture's file as any program reads it: without long texts, and a JPEG with the mark of its end.

    A JPEG that lacks more than this mark stays as it is: where samples are missing, they depend on what stands in the
    place of the rest.
    """
    scans = scans_of(data)
    if scans is None:
        return readable(data)
    if scans.ended or not scans.complete:
        return data
    ended, noisy = ends(data, scans)
    return ended if _samples_hash(ended) == _samples_hash(noisy) else data


def _samples_hash(data: bytes) -> bytes:
    image = Image.open(io.BytesIO(data), formats=("JPEG",))
    samples = hashlib.sha256()
    for _, strip in _strips(image):
        samples.update(strip.tobytes())
    return samples.digest()


def picture_size(name: str, data: bytes | Image.Image) -> tuple[int, int]:
    """Return width and height as stored, from the header alone."""
    return data.size if isinstance(data, Image.Image) else opened_header(name, data).size


@functools.cache
def endings() -> frozenset[str]:
    """Return the endings of file names that count as pictures, in lower case: `.jpg`, ..."""
    formats = _formats()
    pictures = {ending for ending, name in Image.registered_extensions().items() if name in formats}
    return frozenset(pictures - RAW)


@functools.cache
def _formats() -> list[str]:
    """Return the formats that are read: all of Pillow and HEIF, but for three.

    PostScript runs programs, of MPEG there is only a header, and IPTC holds a file of any other format.
    """
    Image.init()
    with contextlib.suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False)
    return [name for name in Image.OPEN if name not in ("EPS", "MPEG", "IPTC")]


def _needed(image: Image.Image) -> int:
    """Return the maximum number of bytes for decoding."""
    per_pixel = _DECODERS.get(image.format or "", _USUAL)
    if isinstance(image, TiffImagePlugin.TiffImageFile):  # a strip of it may be the whole picture
        bits = sum(image.tag_v2.get(_BITS_PER_SAMPLE, (1,)))
        per_pixel = max(per_pixel, 5 + bits // 8)
    return image.width * image.height * per_pixel


def opened_header(name: str, data: bytes) -> Image.Image:
    """Open a picture, and read only its header."""
    shown = one_line(name)
    if not data:
        raise PictureError(f"{shown}: is empty (0 bytes)")
    check_no_video(name)
    if PurePath(name).suffix.lower() in RAW:
        raise PictureError(f"{shown}: is a camera's RAW file, which is not read: convert it to JPEG")
    try:
        excess = excess_of(data)
        if excess:
            raise HugePictureError(f"{shown}: has {excess}: convert it to PNG or JPEG")
        image = Image.open(io.BytesIO(readable(data)), formats=_formats())
    except UnidentifiedImageError:
        is_heif = data[4:8] == b"ftyp" and data[8:12] in _BRANDS
        remedy = install("heif") if is_heif and "HEIF" not in _formats() else "convert it to PNG or JPEG"
        raise PictureError(f"{shown}: is not a picture that Pillow can read; {remedy}") from None
    except Image.DecompressionBombError:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        has = f"has more than {most:,} pixels, which may be a decompression bomb"
        raise HugePictureError(
            f"{shown}: {has}: scale it down, or raise PIL.Image.MAX_IMAGE_PIXELS in Python"
        ) from None
    except (*_HEADER_ERRORS, MemoryError) as error:
        raise _damaged(name, error) from None
    excess = _excess_of_pixels(image)
    if excess:
        raise HugePictureError(f"{shown}: has {excess}: scale it down, or convert it to JPEG or PNG")
    return image


def _excess_of_pixels(image: Image.Image) -> str:
    """Return the excess of a picture's size, and what is expected; empty: it can be decoded."""
    if max(image.size) > _LONGEST:
        return f"{image.width:,} x {image.height:,} pixels, expected sides of at most {_LONGEST:,}"
    pixels = image.width * image.height
    needed = _needed(image)
    if needed > MEMORY.size:
        most = MEMORY.size * pixels // needed
        return f"{pixels:,} pixels, expected at most {most:,} of {image.format}"
    return ""


def check_no_video(name: str) -> None:
    """Check, by its name, that a file is not a video."""
    if PurePath(name).suffix.lower() in VIDEOS:
        way = "write its frames into a folder with ffmpeg, then `sira caption FOLDER`"
        raise PictureError(f"{one_line(name)}: is a video, expected a picture: {way}")


def _damaged(name: str, error: BaseException) -> PictureError:
    return PictureError(f"{one_line(name)}: is damaged: {' '.join(str(error).split()) or type(error).__name__}")


def give_back() -> None:
    """Return freed memory to the system. The C library of Linux keeps it, for each thread separately."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def to_rgb(image: Image.Image) -> Image.Image:
    """Return a decoded image as viewers show it, as a copy; see `decode_picture`."""
    return in_rgb(reduced(upright(image)))


def suspicious(image: Image.Image) -> tuple[str, ...]:
    """Return reasons to doubt a text about the picture: usually none."""
    found = []
    if getattr(image, "is_animated", False) and image.format != "MPO":  # phones store a preview or a depth map as MPO
        found.append("has several frames or pages: the first one was taken")
    image.load()
    if image.has_transparency_data:
        alphas = (strip.convert("RGBA").getchannel("A") for _, strip in _strips(image))
        if any(alpha.getextrema() != (255, 255) for alpha in alphas):
            found.append("is transparent in parts: they were taken as white")
    if has_unusable_profile(image):
        found.append("has a colour profile that cannot be applied: its colours were taken as sRGB")
    if min(image.size) < SMALL:
        found.append(f"is tiny: {image.width} x {image.height} pixels")
    return tuple(found)


def upright(image: Image.Image) -> Image.Image:
    """Return the image turned by its EXIF orientation; the image itself if it is upright."""
    if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
        return image
    return ImageOps.exif_transpose(image)


def reduced(image: Image.Image) -> Image.Image:
    """Return the image with at most `BOUND` pixels; the image itself if it has no more."""
    factor = reduction(image)
    if factor == 1:
        return image
    width = image.width // factor
    height = image.height // factor
    scale = image.height / height
    rows = max(1, _STRIP // image.width)
    small = image
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        first = math.floor(top * scale)
        last = min(math.ceil(bottom * scale), image.height)
        strip = image.crop((0, first, image.width, last))
        if strip.mode in ("1", "P"):  # of these, `resize` would only take every other pixel
            strip = strip.convert("RGBA" if strip.has_transparency_data else "RGB")
        box = (0, top * scale - first, image.width, bottom * scale - first)
        strip = strip.resize((width, bottom - top), Image.Resampling.BOX, box)
        if top == 0:
            small = Image.new(strip.mode, (width, height))
            small.info = strip.info
        small.paste(strip, (0, top))
    return small


def reduction(image: Image.Image) -> int:
    """Return the divisor of width and height, so that a picture has at most `BOUND` pixels."""
    return math.ceil(math.sqrt(image.width * image.height / BOUND))


def in_rgb(image: Image.Image) -> Image.Image:
    """Return a copy in sRGB: transparency on white, samples of 16 or 32 bits or floats scaled to 8 bits."""
    conversion = conversion_of(image)
    if image.mode == "F" or image.mode.startswith("I"):
        image = _to_8_bit(image)
    if conversion is None and not image.has_transparency_data:
        return image.convert("RGB")
    rgb = Image.new("RGB", image.size)
    for top, strip in _strips(image):
        rgb.paste(_opaque(strip, conversion), (0, top))
    return rgb


def _opaque(image: Image.Image, conversion: Conversion | None) -> Image.Image:
    """Return an image in sRGB, on white."""
    if not image.has_transparency_data:
        return image.convert("RGB") if conversion is None else conversion.applied(image)
    layer = image.convert("RGBA")
    if conversion is not None:
        alpha = layer.getchannel("A")
        layer = conversion.applied(layer)
        layer.putalpha(alpha)
    white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, layer).convert("RGB")


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Yield an image in strips of its full width, each with its first row."""
    rows = max(1, _STRIP // max(1, image.width))
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        yield top, image.crop((0, top, image.width, bottom))


def _to_8_bit(image: Image.Image) -> Image.Image:
    """Scale grey samples of 16 or 32 bits or floats: the smallest usual full scale that holds them becomes white."""

    def samples() -> Iterator[tuple[int, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]]:
        for top, strip in _strips(image):
            yield top, np.nan_to_num(np.asarray(strip, dtype=np.float64))

    scale = 65535.0
    if not image.mode.startswith("I;16"):
        brightest = max(float(strip.max(initial=0.0)) for _, strip in samples())
        usual = (1.0, 255.0, 65535.0) if image.mode == "F" else (255.0, 65535.0)
        scale = next((full for full in usual if brightest <= full), brightest)
    grey = Image.new("L", image.size)
    for top, strip in samples():
        levels = np.rint(strip / scale * 255).clip(0, 255)
        grey.paste(Image.fromarray(levels.astype(np.uint8)), (0, top))
    return grey
