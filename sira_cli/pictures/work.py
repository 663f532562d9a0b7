"""Work that the number of pixels does not bound: files that ask for it are refused before Pillow opens them."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator

from PIL import BmpImagePlugin, IcnsImagePlugin, IcoImagePlugin, Jpeg2KImagePlugin, PngImagePlugin

from sira_cli.pictures.segments import scans_of

SCANS = 200  # of a JPEG, each a pass over all blocks; real ones have 10 or so
LAYERS = 200  # of a JPEG 2000, each a pass over all blocks; real ones have up to 20
TILE = 64  # pixels of a side of its tiles and precincts, of which each takes memory; real ones have 128 and more
BLOCK = 256  # pixels of its blocks; real ones have 1,024 and more
ICON = 1024  # pixels of a side of the pictures in an icon
_ICO = b"\0\0\1\0"
_ICNS = b"icns"
_PNG = b"\x89PNG\r\n\x1a\n"
_CODESTREAM = b"\xff\x4f\xff\x51"
_JPEG2000 = (_CODESTREAM, b"\0\0\0\x0cjP  \r\n\x87\n")
_SIZE_HEADER = struct.Struct(">H8I")  # capabilities; width, height, their offsets, the tiles' width, height, offsets
_CODING_STYLE = 0xFF52
_TILE_PART = 0xFF90
_PRECINCTS = 1  # flag: their sizes follow, as exponents of 2


def excess_of(data: bytes) -> str:
    """Return the excess of a picture's file, and what is expected; empty: it is decoded in the usual time.

    Raises what Pillow raises for damaged files.
    """
    scans = scans_of(data)
    if scans is not None and scans.count > SCANS:
        return f"{scans.count:,} scans, expected at most {SCANS}"
    if data.startswith((_ICO, _ICNS)):
        for width, height in _icon_sizes(data):
            if max(width, height) > ICON:
                return f"{width:,} x {height:,} pixels in an icon, expected sides of at most {ICON:,}"
    if data.startswith(_JPEG2000):
        return _excess_of_codestream(data)
    return ""


def _icon_sizes(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the sizes of an icon's pictures by their own headers, of those that Pillow may decode to open the icon."""
    file = io.BytesIO(data)
    with warnings.catch_warnings(action="ignore"):  # about sizes that are refused here
        if data.startswith(_ICO):
            largest = IcoImagePlugin.IcoFile(file).entry[0]
            yield _size_at(file, largest.offset)
            return
        for place, length in IcnsImagePlugin.IcnsFile(file).dct.values():
            if data.startswith((_PNG, *_JPEG2000), place):
                yield _size_at(io.BytesIO(data[place : place + length]), 0)


def _size_at(file: io.BytesIO, place: int) -> tuple[int, int]:
    """Return the size of a PNG, a JPEG 2000, or a bitmap without a file's header, that begins at a place."""
    file.seek(place)
    beginning = file.read(12)
    file.seek(place)
    if beginning.startswith(_PNG):
        return PngImagePlugin.PngImageFile(file).size
    if beginning.startswith(_JPEG2000):
        return Jpeg2KImagePlugin.Jpeg2KImageFile(file).size
    width, height = BmpImagePlugin.DibImageFile(file).size
    return width, height // 2  # the other half is its mask


def _excess_of_codestream(data: bytes) -> str:
    """Return the excess of a JPEG 2000 by its main header."""
    begin = place = data.find(_CODESTREAM) + 2
    while place + 4 <= len(data):
        marker, length = struct.unpack_from(">HH", data, place)
        segment = data[place + 4 : place + 2 + length]
        if marker == _TILE_PART:
            break
        if place == begin:
            _, width, height, _, _, tile_width, tile_height, _, _ = _SIZE_HEADER.unpack_from(segment)
            if tile_width < min(TILE, width) or tile_height < min(TILE, height):
                return f"tiles of {tile_width} x {tile_height} pixels, expected sides of at least {TILE}"
        elif marker == _CODING_STYLE:
            return _excess_of_style(segment)
        place += 2 + length
    return ""


def _excess_of_style(style: bytes) -> str:
    """Return the excess of a JPEG 2000 by its coding style."""
    layers = int.from_bytes(style[2:4], "big")
    if layers > LAYERS:
        return f"{layers:,} layers, expected at most {LAYERS}"
    width = 4 << (style[6] & 15)
    height = 4 << (style[7] & 15)
    if width * height < BLOCK:
        return f"blocks of {width} x {height} pixels, expected at least {BLOCK} pixels"
    if style[0] & _PRECINCTS:
        for level, exponents in enumerate(reversed(style[10:])):  # each of half of the resolution
            side = 1 << min(exponents & 15, exponents >> 4)
            if side < TILE >> level:
                return f"precincts of {side} pixels, expected sides of at least {TILE >> level}"
    return ""
