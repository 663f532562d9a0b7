"""Work and memory that the number of pixels does not bound: refused by the header, before anything is decoded."""

from __future__ import annotations

import io
import struct

import pytest
from PIL import BmpImagePlugin, IcnsImagePlugin, Image, Jpeg2KImagePlugin, JpegImagePlugin, PngImagePlugin
from PIL.ImageFile import ImageFile

from sira_cli.errors import HugePictureError, PictureError
from sira_cli.pictures import work
from sira_cli.pictures.opening import decode_picture, picture_size

PLAIN = Image.new("RGB", (160, 120), (200, 60, 60))


def encoded(image: Image.Image = PLAIN, kind: str = "PNG", **options: object) -> bytes:
    image.save(file := io.BytesIO(), kind, **options)
    return file.getvalue()


def with_scans(count: int) -> bytes:
    """A progressive JPEG whose last scan is repeated until it has so many."""
    plain = encoded(PLAIN.convert("L"), "JPEG", progressive=True)
    last = plain[plain.rindex(b"\xff\xda") : -2]
    return plain[:-2] + last * (count - plain.count(b"\xff\xda")) + plain[-2:]


def icon(*pictures: bytes) -> bytes:
    """An icon of Windows, whose directory says 64 x 64."""
    place = 6 + 16 * len(pictures)
    head = struct.pack("<HHH", 0, 1, len(pictures))
    for picture in pictures:
        head += struct.pack("<BBBBHHII", 64, 64, 0, 0, 1, 32, len(picture), place)
        place += len(picture)
    return head + b"".join(pictures)


def bitmap(width: int, height: int) -> bytes:
    """The header of a bitmap in an icon, with the height of its mask."""
    return struct.pack("<IiiHHIIiiII", 40, width, 2 * height, 1, 32, 0, 0, 0, 0, 0, 0)


def icns(code: bytes, picture: bytes) -> bytes:
    """An icon of macOS with one picture."""
    block = code + struct.pack(">I", 8 + len(picture)) + picture
    return b"icns" + struct.pack(">I", 8 + len(block)) + block


def with_layers(count: int) -> bytes:
    """A JPEG 2000 whose header says that it has so many layers."""
    plain = encoded(PLAIN, "JPEG2000")
    style = plain.index(b"\xff\x52\0")
    return plain[: style + 6] + count.to_bytes(2, "big") + plain[style + 8 :]


BIG = Image.new("L", (1025, 8))
REFUSED = {
    "scans": (with_scans(work.SCANS + 1), "201 scans, expected at most 200"),
    "icon": (icon(encoded(BIG)), "1,025 x 8 pixels in an icon, expected sides of at most 1,024"),
    "icon of a bitmap": (icon(bitmap(8, 1025)), "8 x 1,025 pixels in an icon, expected sides of at most 1,024"),
    "icon of macOS": (icns(b"ic07", encoded(BIG)), "1,025 x 8 pixels in an icon, expected sides of at most 1,024"),
    "icon of JPEG 2000": (icns(b"icp4", encoded(BIG, "JPEG2000")), "1,025 x 8 pixels in an icon, expected sides"),
    "layers": (with_layers(work.LAYERS + 1), "201 layers, expected at most 200"),
    "tiles": (encoded(PLAIN, "JPEG2000", tile_size=(63, 64)), "tiles of 63 x 64 pixels, expected sides of at least 64"),
    "precincts": (encoded(PLAIN, "JPEG2000", precinct_size=(32, 32), codeblock_size=(16, 16)), "precincts of 32"),
    "blocks": (encoded(PLAIN, "JPEG2000", codeblock_size=(4, 32)), "blocks of 4 x 32 pixels, expected at least 256"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_asks_for_too_much_work_is_refused_undecoded(name, monkeypatch):
    """Neither to tell its size nor to open it."""
    content, message = REFUSED[name]
    loaded = []
    for kind in (
        ImageFile,
        JpegImagePlugin.JpegImageFile,
        PngImagePlugin.PngImageFile,
        BmpImagePlugin.DibImageFile,
        Jpeg2KImagePlugin.Jpeg2KImageFile,
        IcnsImagePlugin.IcnsImageFile,
    ):
        monkeypatch.setattr(kind, "load", loaded.append)
    for read in (picture_size, decode_picture):
        with pytest.raises(HugePictureError, match=f"x: has {message}"):
            read("x", content)
    assert loaded == []


OPENED = {
    "scans": with_scans(work.SCANS),
    "icon": icon(encoded(PLAIN), encoded(BIG)),
    "layers": with_layers(1),
    "tiles": encoded(PLAIN, "JPEG2000", tile_size=(64, 64)),
    "precincts": encoded(PLAIN, "JPEG2000", precinct_size=(64, 64)),
}


@pytest.mark.parametrize("name", OPENED)
@pytest.mark.filterwarnings("ignore:Image was not the expected size")
def test_a_file_at_the_limits_opens(name):
    image, _ = decode_picture("x", OPENED[name])
    assert image.size == PLAIN.size


def test_icons_as_programs_write_them_open():
    square = PLAIN.resize((256, 256))
    for kind in ("ICO", "ICNS"):
        image, _ = decode_picture("x", encoded(square.convert("RGBA"), kind))
        assert image.getpixel((9, 9)) == PLAIN.getpixel((0, 0))
    for content in (icon(), icon(b""), b"icns\0\0\0\x10ic07\0\0\0\0"):
        with pytest.raises(PictureError, match="x: is damaged"):
            picture_size("x", content)


def test_a_file_of_another_format_in_one_of_iptc_is_not_opened():
    """It might be PostScript, which runs programs."""
    with pytest.raises(PictureError, match="is not a picture that Pillow can read"):
        picture_size("x", iptc(encoded(PLAIN, "EPS")))


def iptc(picture: bytes) -> bytes:
    def field(number: int, part: int, content: bytes) -> bytes:
        return bytes([0x1C, number, part]) + len(content).to_bytes(2, "big") + content

    head = field(3, 60, b"\3\1") + field(3, 20, (160).to_bytes(2, "big")) + field(3, 30, (120).to_bytes(2, "big"))
    return head + field(3, 120, b"\x01") + field(8, 10, picture[:30000])
