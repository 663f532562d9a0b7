"""Damaged files."""

from __future__ import annotations

import random
from collections.abc import Iterator

HEAD = 600  # bytes, in which formats say what they hold


def damaged(good: bytes, *, least: int) -> Iterator[bytes]:
    """200 copies of a file, each with `least` to 20 bytes of its head changed; every second one is cut off."""
    draw = random.Random(0)
    for number in range(200):
        content = bytearray(good)
        if number % 2:
            content = content[: draw.randrange(len(good))]
        for _ in range(draw.randint(least, 20)):
            content[draw.randrange(min(HEAD, len(content) or 1))] = draw.randrange(256) if content else 0
        yield bytes(content)
