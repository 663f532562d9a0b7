"""Pictures inside a page, found by the names and the hash in a trace or a record."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from sira_cli.errors import PictureError
from sira_cli.pictures.opening import decode_picture
from sira_cli.pictures.sources import recorded

Embedded = tuple[str, int, int]  # a picture as a `data:` URI, its width and height
CHANGED = "The picture was replaced or changed since (its sha256 differs)."
MISSING = "The picture was not found: put it next to the file, and make the page again."


def find_picture(places: Iterable[tuple[str, Path]], sha256: str, side: int = 640) -> tuple[list[Embedded], str]:
    """Return the picture that one of some names in folders means, preferably the one of a hash, and a remark.

    It may be a group. The longest side is reduced to `side` pixels. Nothing is fetched for a page.
    """
    problem = ""
    other: list[Embedded] | None = None
    for name, folder in dict.fromkeys(places):
        if name and (picture := recorded(name, folder)).is_here():
            try:
                files, found = picture.read()
                images = [_embedded(decode_picture(shown, file, side)[0], side) for shown, file in files]
            except PictureError as error:
                problem = problem or str(error)
                continue
            if not sha256 or found == sha256:
                return images, ""
            other = other or images
    return (other, CHANGED) if other else ([], problem or MISSING)


def _embedded(image: Image.Image, side: int) -> Embedded:
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    image.save(data, "WEBP", quality=80, method=2)  # of JPEG's size 60 %; a better method takes twice as long for 4 %
    return "data:image/webp;base64," + base64.b64encode(data.getvalue()).decode(), *image.size
