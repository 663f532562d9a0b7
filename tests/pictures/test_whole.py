"""Whole pictures that seem damaged: long texts in a PNG, a JPEG without the mark of its end; and what is really cut."""

from __future__ import annotations

import io
import zlib
from base64 import b64decode

import numpy as np
import pytest
from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo
from skimage import data

from sira_cli.errors import PictureError
from sira_cli.pictures.opening import decode_picture
from sira_cli.pictures.segments import scans_of
from sira_cli.run.endpoint import data_url

PHOTO = Image.fromarray(data.astronaut()).resize((160, 120))
UNENDED = ("lacks the mark of its end: all samples are there, but what followed them may be lost",)
UNUSABLE = ("has a colour profile that cannot be applied: its colours were taken as sRGB",)
LONG = "1," * 700_000
XMP = '<x tiff:Orientation="6"/>'


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    image.save(file := io.BytesIO(), kind, **options)
    return file.getvalue()


def with_texts(*texts: tuple[str, str, bool]) -> bytes:
    """The photograph as PNG with texts by key, each compressed or not; those that begin with `i` in Unicode."""
    info = PngInfo()
    for key, text, packed in texts:
        add = info.add_itxt if key[0] in "iX" else info.add_text
        add(key, text, zip=packed)
    return encoded(PHOTO, pnginfo=info)


@pytest.mark.parametrize(("key", "packed"), [("workflow", True), ("iworkflow", True), ("workflow", False)])
def test_a_png_with_long_texts_opens(key, packed):
    """Generators of pictures write their workflow into them. Pillow takes what unfolds so far for a bomb."""
    image, warnings = decode_picture("x", with_texts((key, LONG, packed), ("prompt", LONG, packed)))
    assert np.array_equal(np.asarray(image), np.asarray(PHOTO))
    assert warnings == ()


def test_texts_after_the_samples_of_a_png_are_not_read():
    plain = encoded(PHOTO)
    chunk = b"zTXtworkflow\0\0" + zlib.compress(LONG.encode())
    text = (len(chunk) - 4).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")
    image, _ = decode_picture("x", plain[:-12] + text + plain[-12:])
    assert np.array_equal(np.asarray(image), np.asarray(PHOTO))


@pytest.mark.parametrize("packed", [True, False])
def test_a_png_with_long_texts_keeps_the_orientation_in_its_xmp(packed):
    content = with_texts(("workflow", LONG, True), ("XML:com.adobe.xmp", XMP, packed))
    image, _ = decode_picture("x", content)
    assert np.array_equal(np.asarray(image), np.asarray(PHOTO.transpose(Image.Transpose.ROTATE_270)))


def test_metadata_of_a_png_that_are_too_long_are_left_out():
    """Metadata in XMP, and a profile of zeros, of which a warning tells."""
    image, warnings = decode_picture("x", with_texts(("XML:com.adobe.xmp", LONG + XMP, True)))
    assert np.array_equal(np.asarray(image), np.asarray(PHOTO))
    assert warnings == ()
    image, warnings = decode_picture("x", encoded(PHOTO, icc_profile=bytes(2**20 + 1)))
    assert np.array_equal(np.asarray(image), np.asarray(PHOTO))
    assert warnings == UNUSABLE


KINDS = {
    "plain": {},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_blocks": 1},
    "rows": {"restart_marker_rows": 1, "quality": 95},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_without_its_last_bytes_opens_with_a_warning(kind, mode):
    content = encoded(PHOTO.convert(mode), "JPEG", **KINDS[kind])
    expected, none = decode_picture("x", content)
    assert none == ()
    for missing in (1, 2):
        image, warnings = decode_picture("x", content[:-missing])
        assert np.array_equal(np.asarray(image), np.asarray(expected))
        assert warnings == UNENDED


@pytest.mark.parametrize("kind", KINDS)
def test_a_jpeg_that_lacks_samples_is_damaged(kind):
    """Wherever it is cut: also by a byte, between two scans, and before a mark of restart."""
    content = encoded(PHOTO, "JPEG", **KINDS[kind])
    first = content.index(b"\xff\xda")
    scans = [place for place in range(first + 1, len(content)) if content[place : place + 2] == b"\xff\xc4"]
    restarts = [
        place
        for place in range(first, len(content))
        if content[place] == 0xFF and content[place + 1] in range(0xD0, 0xD8)
    ]
    assert bool(scans) == (kind == "progressive")
    assert bool(restarts) == (kind in ("restarts", "rows"))
    for length in (first + 20, len(content) // 2, *scans, *restarts[-3:], *range(len(content) - 40, len(content) - 2)):
        with pytest.raises(PictureError, match="x: is damaged: image file is truncated"):
            decode_picture("x", content[:length])


def test_scans_are_counted_as_libjpeg_reads_them():
    """Marks in metadata, stuffed bytes and fill bytes are none; what follows the end is not read."""
    content = encoded(PHOTO, "JPEG", progressive=True, exif=turned(), comment=b"\xff\xda\xff\xd9")
    scans = scans_of(content + content)
    assert scans.count == 10
    assert scans.ended is True
    assert scans.complete is True
    filled = encoded(PHOTO, "JPEG", progressive=True).replace(b"\xff\xda", b"\xff\xff\xff\xda")
    assert scans_of(filled).count == 10
    assert scans_of(encoded(PHOTO, "JPEG")).count == 1
    assert scans_of(encoded(PHOTO)) is None


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 1
    return exif


def test_another_server_gets_a_file_that_it_can_read():
    """As it is read here: without long texts, and with the mark of its end."""
    for content in (with_texts(("workflow", LONG, True)), encoded(PHOTO, "JPEG")[:-2]):
        image, _ = decode_picture("x", content)
        sent = Image.open(io.BytesIO(b64decode(data_url(content, image).partition(",")[2])))
        sent.load()
        assert np.array_equal(np.asarray(sent), np.asarray(image))
        assert sent.info.keys() <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
