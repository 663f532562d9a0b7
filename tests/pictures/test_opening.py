"""Pictures as a viewer would show them, or one line that says what is wrong; and how much memory that takes."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image
from skimage import data

from sira_cli.errors import HugePictureError, PictureError, PictureMemoryError, SettingsError
from sira_cli.pictures import find, opening
from sira_cli.pictures.find import find_pictures
from sira_cli.pictures.opening import BOUND, decode_picture, picture_size
from sira_cli.pictures.sources import as_picture

KINDS = [f"RGB.{each}" for each in ("png", "bmp", "tiff", "gif", "jpg", "webp", "avif", "ppm")]
KINDS += ["CMYK.jpg", "L.png", "I;16.png", "F.tiff"]
RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
PHOTO = Image.fromarray(data.astronaut())
SMALL = PHOTO.resize((96, 64))
opening.endings()  # registers HEIF


def save(image: Image.Image, path: Path, **options) -> Path:
    image.save(path, **options)
    return path


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    image.save(file := io.BytesIO(), kind, **options)
    return file.getvalue()


def opened(path: Path) -> Image.Image:
    return as_picture(path).open().image


def difference(one: Image.Image, other: Image.Image) -> float:
    return float(np.abs(np.asarray(one, dtype=float) - np.asarray(other, dtype=float)).mean())


def turned(orientation: int) -> Image.Exif:
    (exif := Image.Exif())[ExifTags.Base.Orientation] = orientation
    return exif


def error(source) -> str:
    with pytest.raises(PictureError) as raised:
        as_picture(source).open()
    return str(raised.value)


@pytest.mark.parametrize("kind", KINDS)
def test_formats_and_modes(tmp_path, kind):
    """Samples of 16 bits and floats keep their brightness."""
    mode = kind.partition(".")[0]
    made = SMALL.convert(mode if mode in ("RGB", "CMYK") else "L")
    deep = {"I;16": np.uint16(257), "F": np.float32(1 / 255)}
    stored = Image.fromarray(np.asarray(made) * deep[mode]) if mode in deep else made
    image = opened(save(stored, tmp_path / kind))
    assert (image.mode, image.size) == ("RGB", SMALL.size)
    assert difference(image, made.convert("RGB")) < 12  # lossy formats and palettes come near, others are equal


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied_once(tmp_path, orientation):
    """HEIF has transforms of its own besides EXIF, and writers set both."""
    corners = Image.new("RGB", (40, 20), WHITE)
    for box, colour in [((0, 0, 10, 10), RED), ((30, 0, 40, 10), GREEN), ((0, 10, 10, 20), BLUE)]:
        corners.paste(colour, box)
    undo = [None, 0, 3, 1, 5, 2, 6, 4][orientation - 1]  # flips and turns by Pillow's numbers
    stored = corners if undo is None else corners.transpose(Image.Transpose(undo))
    assert difference(opened(save(stored, tmp_path / "turned.png", exif=turned(orientation))), corners) == 0
    image, exif = PHOTO.crop((0, 0, 300, 200)), turned(orientation).tobytes()
    heic, jpeg = (decode_picture("x", encoded(image, kind, quality=95, exif=exif))[0] for kind in ("HEIF", "JPEG"))
    assert heic.size == jpeg.size
    assert difference(heic, jpeg) < 3


def test_transparency_is_laid_on_white(tmp_path):
    """Half transparent red is pink, and a palette may have a transparent colour."""
    image = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (0, 0, 4, 8))
    for made in (image, image.convert("LA"), image.quantize(8)):
        pixels = opened(save(made, tmp_path / "see-through.png"))
        assert pixels.getpixel((7, 4)) == WHITE
        assert pixels.getpixel((1, 4)) != WHITE
    path = save(Image.new("RGBA", (4, 4), (255, 0, 0, 128)), tmp_path / "half.png")
    assert opened(path).getpixel((0, 0)) == (255, 127, 127)


def test_files_that_are_no_pictures(tmp_path):
    """PostScript is not handed to an interpreter."""
    unknown = "is not a picture that Pillow can read; convert it to PNG or JPEG"
    files = {"empty.jpg": (b"", "is empty (0 bytes)"), "drawing.eps": (encoded(SMALL, "EPS"), unknown)}
    files["raw.NEF"] = (encoded(SMALL), "is a camera's RAW file, which is not read: convert it to JPEG")
    for name, (content, message) in files.items():
        (tmp_path / name).write_bytes(content)
        assert error(tmp_path / name) == f"{tmp_path / name}: {message}"
    assert error(tmp_path).endswith("is a folder, expected a picture")
    assert error("/dev/zero") == "/dev/zero: is not a regular file"
    for suffix in ("jpg", "png", "webp", "heic"):
        path = save(SMALL, tmp_path / f"cut.{suffix}")
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        assert error(path).startswith(f"{path}: is damaged: ")


def test_of_an_animation_the_first_frame_whatever_its_name(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    for suffix in ("gif", "webp", "png"):
        path = tmp_path / f"moving.{suffix}"
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=50)
        for name in ("wrong.jpg", os.fsdecode(b"a'b\"c\n\xff.png")):
            path = path.rename(tmp_path / name)
            assert difference(opened(path), frames[0]) < 3


def test_large_pictures_and_bombs(tmp_path):
    """13 KB would unfold to 600 megapixels; 95 are above Pillow's warning, and below its limit."""
    path = save(Image.new("1", (30000, 20000)), tmp_path / "bomb.png", optimize=True)
    assert path.stat().st_size < 100_000
    assert "decompression bomb" in error(path)
    path = save(Image.new("L", (10000, 9500)), tmp_path / "large.png")
    assert opened(path).size == (5000, 4750)
    assert BOUND / 4 >= 4096 * 4096  # Qwen3-VL, which reads most, reads so many pixels


# --- pictures of more pixels than the bound, which is lowered


@pytest.mark.parametrize("kind", ["RGB.png", "RGB.jpg", "1.tiff", "P.tiff", "LA.tiff", "CMYK.tiff", "F.tiff"])
def test_a_giant_picture_is_reduced_strip_by_strip(tmp_path, monkeypatch, kind):
    """As Pillow reduces the whole; a strip has 7 rows, so that edges of strips lie inside."""
    path = save(SMALL.convert(kind.partition(".")[0]), tmp_path / f"photo.{kind}", exif=turned(6))
    whole = opened(path)
    assert whole.size == (64, 96)
    monkeypatch.setattr(opening, "_STRIP", 7 * 96)
    monkeypatch.setattr(opening, "BOUND", whole.width * whole.height)
    assert opened(path).tobytes() == whole.tobytes()
    for bound, factor in ((whole.width * whole.height - 1, 2), (600, 4)):
        monkeypatch.setattr(opening, "BOUND", bound)
        reduced = opened(path)
        assert (reduced.mode, reduced.size) == ("RGB", (64 // factor, 96 // factor))
        assert difference(reduced, whole.reduce(factor)) < 3


# --- memory: what does not fit is refused, and shortage is no damage


@pytest.mark.parametrize(("kind", "each"), [("WEBP", 17), ("AVIF", 19), ("JPEG2000", 25), ("HEIF", 13), ("PNG", 10)])
def test_a_picture_whose_decoder_takes_too_much_is_refused(monkeypatch, kind, each):
    """The memory that there may be is lowered, so that a picture of 100 x 90 is too large."""
    assert opening.MEMORY.size >= 2 * Image.MAX_IMAGE_PIXELS * opening._USUAL  # the largest that Pillow opens
    content = encoded(Image.new("RGB", (100, 90)), kind)
    monkeypatch.setattr(opening, "MEMORY", opening.Memory(9000 * each))
    assert picture_size("x", content) == (100, 90)
    monkeypatch.setattr(opening, "MEMORY", opening.Memory(9000 * each - 1))
    for read in (picture_size, decode_picture):
        with pytest.raises(HugePictureError, match=f"x: has 9,000 pixels, expected at most 8,999 of {kind}: scale it"):
            read("x", content)


def test_sides_longer_than_those_of_any_jpeg_are_refused():
    assert picture_size("x", encoded(Image.new("L", (65_535, 1)))) == (65_535, 1)
    with pytest.raises(HugePictureError, match="x: has 1 x 65,536 pixels, expected sides of at most 65,535"):
        picture_size("x", encoded(Image.new("L", (1, 65_536))))


def test_a_shortage_of_memory_is_no_damage(monkeypatch):
    """The shortage is made up: here it would end the machine first. A picture is tried alone before it is refused."""
    tried = []
    monkeypatch.setattr(opening, "suspicious", lambda image: tried.append(image) or bytearray(2**62))
    with pytest.raises(PictureMemoryError, match="x: memory does not suffice to decode it: it may take"):
        decode_picture("x", encoded(PHOTO))
    assert len(tried) == 2


# --- HEIC from phones (extra `heif`)


def test_without_the_extra_a_message_names_it(monkeypatch, tmp_path):
    """As if the extra was missing: the import fails, and Pillow has not been told of the format."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.delitem(Image.OPEN, "HEIF")
    for cached in ("_formats", "endings"):
        monkeypatch.setattr(opening, cached, getattr(opening, cached).__wrapped__)
    monkeypatch.setattr(find, "endings", opening.endings)
    with pytest.raises(
        PictureError, match=r"x: is not a picture that Pillow can read; .*pip install 'pillow-heif>=[\d.]+'"
    ):
        decode_picture("x", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    (tmp_path / "a.HEIC").touch()
    (tmp_path / "b.jxl").touch()
    expected = (
        r"no pictures in this folder, but 1 \.heic \(.*pip install 'pillow-heif>=[\d.]+'\), 1 \.jxl: these formats"
    )
    with pytest.raises(SettingsError, match=expected):
        find_pictures([str(tmp_path)])


def test_heic_is_a_picture_of_a_folder(tmp_path):
    save(PHOTO, tmp_path / "a.heic")
    (picture,) = find_pictures([str(tmp_path)])
    assert picture.open().image.size == (512, 512)
