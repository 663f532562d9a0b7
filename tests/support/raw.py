"""A camera's RAW file (DNG) as tests write it: a JPEG as preview, and samples of a sensor."""

from __future__ import annotations

import io
import struct

from PIL import Image

_CODES = {1: "B", 2: "B", 3: "H", 4: "I", 5: "I", 10: "i"}  # of TIFF's types


def dng(preview: Image.Image, orientation: int = 1) -> bytes:
    """A DNG whose preview has no EXIF of its own; its copyright is Anna's; its sensor has 96 x 64 samples."""
    file = io.BytesIO()
    preview.save(file, "JPEG", quality=95)
    jpeg, samples = file.getvalue(), struct.pack("<H", 1000) * (96 * 64)
    model = [*b"Camera\0"]
    matrix = [1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1, 0, 1, 1, 1]

    def directories(sensor: int, first: int, second: int) -> tuple[bytes, bytes]:
        main = {254: (4, [1]), 256: (4, [preview.width]), 257: (4, [preview.height]), 258: (3, [8, 8, 8])}
        main |= {259: (3, [7]), 262: (3, [6]), 271: (2, model), 272: (2, model), 273: (4, [first]), 277: (3, [3])}
        main |= {274: (3, [orientation]), 278: (4, [preview.height]), 279: (4, [len(jpeg)]), 330: (4, [sensor])}
        main |= {33432: (2, [*b"Anna\0"]), 50706: (1, [1, 4, 0, 0]), 50708: (2, model), 50721: (10, matrix)}
        main |= {50728: (5, [1] * 6), 50778: (3, [21])}
        raw = {254: (4, [0]), 256: (4, [96]), 257: (4, [64]), 258: (3, [16]), 259: (3, [1]), 262: (3, [32803])}
        raw |= {273: (4, [second]), 277: (3, [1]), 278: (4, [64]), 279: (4, [len(samples)]), 33421: (3, [2, 2])}
        raw |= {33422: (1, [0, 1, 1, 2]), 50717: (3, [4095])}
        return _directory(main, 8), _directory(raw, sensor)

    main, raw = map(len, directories(0, 0, 0))
    second = 8 + main + raw
    first = second + len(samples)
    return b"".join((struct.pack("<2sHI", b"II", 42, 8), *directories(8 + main, first, second), samples, jpeg))


def _directory(entries: dict[int, tuple[int, list[int]]], start: int) -> bytes:
    head, outside = struct.pack("<H", len(entries)), b""
    place = start + 2 + 12 * len(entries) + 4
    for tag, (kind, values) in sorted(entries.items()):
        data = struct.pack(f"<{len(values)}{_CODES[kind]}", *values)
        count = len(values) // 2 if kind in (5, 10) else len(values)
        field = data.ljust(4, b"\0") if len(data) <= 4 else struct.pack("<I", place + len(outside))
        outside += data.ljust(len(data) + len(data) % 2, b"\0") if len(data) > 4 else b""
        head += struct.pack("<HHI", tag, kind, count) + field
    return head + bytes(4) + outside
