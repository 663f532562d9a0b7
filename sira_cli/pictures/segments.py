"""The segments of JPEG files and the chunks of PNG files, read before Pillow reads them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

_JPEG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"
_MARKER = re.compile(rb"\xff([^\x00\xff])")  # without `+`, which takes 15 times as long
_START_OF_SCAN = 0xDA
_END = 0xD9
_ALONE = (0x01, *range(0xD0, 0xD8))  # markers without a segment: TEM, and restarts within a scan
_PROGRESSIVE = (0xC2, 0xCA)  # frames by Huffman and by arithmetic coding
_FRAMES = (0xC0, 0xC1, *_PROGRESSIVE, 0xC9)
_COEFFICIENTS = 64  # of a block
# What may follow a picture that is cut: anything. Samples that do not depend on it are all there.
_NOISE = bytes(range(254, 0, -1))
_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_NEEDED = (b"XML:com.adobe.xmp", b"Raw profile type exif")  # they may tell the orientation
_PROFILE = b"iCCP"
_LONGEST = 2**20  # bytes, above which Pillow takes a compressed text or profile for a bomb
_CHUNK = 12  # bytes of length, name and checksum


@dataclass
class Scans:
    """The scans of a JPEG file."""

    count: int = 0
    ended: bool = False  # whether the mark of the end is there
    restarts: int = 0  # marks in the last scan
    complete: bool = False  # whether the scans hold all coefficients of all components, as far as their headers say


def scans_of(data: bytes) -> Scans | None:
    """Return the scans of a JPEG file, found as libjpeg finds them; None for other files."""
    if not data.startswith(_JPEG):
        return None
    scans = Scans()
    components = b""
    progressive = False
    precision: dict[int, list[int | None]] = {}  # of each component, the lowest bit of each coefficient that came
    for marker, segment in _segments(data):
        if marker == _END:
            scans.ended = True
        elif marker in _FRAMES and not components:
            progressive = marker in _PROGRESSIVE
            components = segment[6::3]
            precision = {number: [None] * _COEFFICIENTS for number in components}
        elif marker == _START_OF_SCAN:
            scans.count += 1
            scans.restarts = 0
            _note(segment, precision, progressive)
        elif marker in _ALONE:
            scans.restarts += 1
    scans.complete = all(bit == 0 for bits in precision.values() for bit in bits)
    return scans


def _segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the markers of a JPEG file with their segments, until the end."""
    place = 2
    while (found := _MARKER.search(data, place)) is not None:
        marker = found[1][0]
        place = found.end()
        if marker in _ALONE:
            yield marker, b""
            continue
        length = int.from_bytes(data[place : place + 2], "big")
        yield marker, data[place + 2 : place + length]
        if marker == _END:
            return
        place += length


def _note(header: bytes, precision: dict[int, list[int | None]], progressive: bool) -> None:
    """Note which coefficients a scan brings, by its header."""
    if not header or len(header) < 4 + 2 * header[0]:
        return
    first, last, bits = header[1 + 2 * header[0] :][:3]
    if not progressive:
        first, last, bits = 0, _COEFFICIENTS - 1, 0
    for number in header[1 : 1 + 2 * header[0] : 2]:
        if number in precision:
            for place in range(first, min(last + 1, _COEFFICIENTS)):
                precision[number][place] = bits & 15


def ends(data: bytes, scans: Scans) -> tuple[bytes, bytes]:
    """Return a JPEG file that lacks its end mark with it, and the same with noise before the mark.

    Both decode to equal samples if the file holds them all. Noise in two intervals of restart is enough: where the next
    interval is missing, the first is not read.
    """
    data = data.rstrip(b"\xff")
    restart = bytes([0xFF, 0xD0 + scans.restarts % 8])
    end = bytes([0xFF, _END])
    return data + end, data + _NOISE + restart + _NOISE + end


def readable(data: bytes) -> bytes:
    """Return a PNG file without its texts, of which Pillow refuses long ones; other files as they are.

    A colour profile that Pillow would refuse becomes one that it notes as damaged.
    """
    if not data.startswith(_PNG):
        return data
    kept = list[bytes]()
    begin = place = len(_PNG)
    while place + 8 <= len(data):
        length = int.from_bytes(data[place : place + 4], "big")
        name = data[place + 4 : place + 8]
        after = place + _CHUNK + length
        if (name in _TEXTS or name == _PROFILE) and not _is_kept(name, data[place + 8 : after - 4]):
            kept.append(data[begin:place])
            if name == _PROFILE:
                kept.append(_chunk(name, b"damaged\0\0not zlib"))
            begin = after
        place = after
    if not kept:
        return data
    return b"".join([_PNG, *kept, data[begin:]])


def _is_kept(name: bytes, content: bytes) -> bool:
    """Return whether a chunk is a profile, or a text that may tell the orientation; and has the usual size."""
    key, _, text = content.partition(b"\0")
    if name != _PROFILE and key not in _NEEDED:
        return False
    if name == b"tEXt":
        return True
    packed = text[1:]
    if name == b"iTXt":  # flag and method of compression, language, translated name
        packed = text[2:].split(b"\0", 2)[-1]
    unpacked = zlib.decompressobj()
    try:
        unpacked.decompress(packed, _LONGEST)
    except zlib.error:  # it is not compressed, or Pillow finds out
        return True
    return not unpacked.unconsumed_tail


def _chunk(name: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(name + content)
    return len(content).to_bytes(4, "big") + name + content + checksum.to_bytes(4, "big")
