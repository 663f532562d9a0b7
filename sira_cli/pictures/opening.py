"""From the bytes of a picture file to the picture as viewers show it: upright, in RGB."""

from __future__ import annotations

import contextlib
import functools
import io
from pathlib import PurePath

from PIL import Image, TiffImagePlugin, UnidentifiedImageError

from sira_cli.errors import HugePictureError, PictureError, PictureMemoryError
from sira_cli.pictures.names import one_line
from sira_cli.pictures.room import ROOM, give_back
from sira_cli.pictures.samples import in_rgb, reduced, reduction, suspicious, upright

_DECODING_ERRORS = (OSError, ValueError, SyntaxError, EOFError)  # raised by Pillow's decoders
_LONGEST = 65_535  # pixels of a side: JPEG has no longer ones
# Bytes per pixel that decoding takes: at most 4 for samples, as many for a copy, and the decoders' own, as measured.
_USUAL = 10
_DECODERS = {"WEBP": 17, "AVIF": 19, "JPEG2000": 25, "HEIF": 13}
_MUCH = 2**28  # bytes
HEIF = "pip install 'sira-cli[heif]'"  # reads pictures of phones
_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")  # of HEIF files, in their first box
# Camera RAW files, told by their names: many are TIFF by their bytes, and Pillow shows a stamp that is in them.
_RAW = "cr2 cr3 crw nef nrw arw srf sr2 dng orf rw2 raf pef srw x3f 3fr"
RAW = frozenset(f".{kind}" for kind in _RAW.split())
_BITS_PER_SAMPLE = 258  # tag of TIFF
_VIDEO_KINDS = "mp4 mov m4v mkv webm avi wmv mpg mpeg mts m2ts 3gp flv"
VIDEOS = frozenset(f".{kind}" for kind in _VIDEO_KINDS.split())


def decode_picture(name: str, data: bytes, side: int | None = None) -> tuple[Image.Image, tuple[str, ...]]:
    """Return upright RGB from a picture file's bytes, and warnings about it. Safe in threads.

    EXIF orientation is applied, transparency is laid on white, 16-bit and float samples are scaled to 8 bits, and of an
    animation the first frame is taken. Pictures of more than `BOUND` pixels are reduced, so that memory has a limit.
    """

    needed = _needed(opened_header(name, data)) + len(data)
    for room in (needed, ROOM.size):  # a picture that needs all of it is decoded alone
        with ROOM.taken(room):
            try:
                return _decoded(name, data, side)
            except _DECODING_ERRORS as error:
                raise _damaged(name, error) from None
            except MemoryError:
                continue
            finally:
                if needed > _MUCH:
                    give_back()
    raise PictureMemoryError(
        f"{one_line(name)}: memory does not suffice to decode it: it may take {needed / 1e9:.1f} GB; close other "
        "programs, or scale the picture down"
    )


def _decoded(name: str, data: bytes, side: int | None) -> tuple[Image.Image, tuple[str, ...]]:
    image = opened_header(name, data)
    if side is not None:
        image.draft("RGB", (2 * side, 2 * side))  # still twice as large, so that it stays sharp
    if (factor := reduction(image)) > 1:
        image.draft(None, (image.width // factor, image.height // factor))  # of JPEG: it is decoded smaller
    warnings = suspicious(image)
    # One after the other, so that the larger one is gone before the next is made.
    image = upright(image)
    image = reduced(image)
    return in_rgb(image), warnings


def picture_size(name: str, data: bytes) -> tuple[int, int]:
    """Return width and height as stored, from the header alone."""
    return opened_header(name, data).size


@functools.cache
def endings() -> frozenset[str]:
    """Return the endings of file names that count as pictures, in lower case: `.jpg`, ..."""
    readable = _formats()
    found = frozenset(ending for ending, name in Image.registered_extensions().items() if name in readable)
    return found - RAW


@functools.cache
def _formats() -> list[str]:
    """Return all formats that Pillow reads, with HEIF (extra `heif`).

    PostScript, which runs programs, and MPEG, of which Pillow reads the header only, are left out.
    """
    Image.init()
    with contextlib.suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False)
    return [name for name in Image.OPEN if name not in ("EPS", "MPEG")]


def _needed(image: Image.Image) -> int:
    """Return the maximum number of bytes for decoding."""
    each = _DECODERS.get(image.format or "", _USUAL)
    if isinstance(image, TiffImagePlugin.TiffImageFile):  # a strip of it may be the whole picture
        each = max(each, 5 + sum(image.tag_v2.get(_BITS_PER_SAMPLE, (1,))) // 8)
    return image.width * image.height * each


def opened_header(name: str, data: bytes) -> Image.Image:
    """Open a picture, and read only its header."""
    shown = one_line(name)
    if not data:
        raise PictureError(f"{shown}: is empty (0 bytes)")
    check_no_video(name)
    if PurePath(name).suffix.lower() in RAW:
        raise PictureError(f"{shown}: is a camera's RAW file, which is not read: convert it to JPEG")
    try:
        image = Image.open(io.BytesIO(data), formats=_formats())
    except UnidentifiedImageError:
        remedy = HEIF if _is_heif(data) and "HEIF" not in _formats() else "convert it to PNG or JPEG"
        raise PictureError(f"{shown}: is not a picture that Pillow can read; {remedy}") from None
    except Image.DecompressionBombError:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise HugePictureError(
            f"{shown}: has more than {limit:,} pixels, which may be a decompression bomb: scale it down, or raise "
            "PIL.Image.MAX_IMAGE_PIXELS in Python"
        ) from None
    except (*_DECODING_ERRORS, MemoryError) as error:
        raise _damaged(name, error) from None
    if max(image.size) > _LONGEST:
        raise HugePictureError(
            f"{shown}: has {image.width:,} x {image.height:,} pixels, expected sides of at most {_LONGEST:,}: scale "
            "it down, or cut it"
        )
    if (needed := _needed(image)) > ROOM.size:
        most = ROOM.size * image.width * image.height // needed
        raise HugePictureError(
            f"{shown}: has {image.width * image.height:,} pixels, expected at most {most:,}, because {image.format} "
            f"takes {needed / 1e9:.1f} GB to decode: scale it down, or convert it to JPEG or PNG"
        )
    return image


def check_no_video(name: str) -> None:
    """Check, by its name, that a file is not a video."""
    if PurePath(name).suffix.lower() in VIDEOS:
        raise PictureError(
            f"{one_line(name)}: is a video, expected a picture: write its frames into a folder with ffmpeg, then "
            "`sira caption FOLDER`, one by one or all together"
        )


def _is_heif(data: bytes) -> bool:
    return data[4:8] == b"ftyp" and data[8:12] in _BRANDS


def _damaged(name: str, error: BaseException) -> PictureError:
    return PictureError(f"{one_line(name)}: is damaged: {str(error) or type(error).__name__}")
