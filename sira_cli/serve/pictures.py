"""The pictures of a request: URLs become files, which are decoded when their text begins."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from PIL.Image import Image

from sira_cli.errors import HugePictureError
from sira_cli.pictures.opening import decode_picture, picture_size
from sira_cli.pictures.picture import digest_of
from sira_cli.serve.limits import Limits, too_large
from sira_cli.serve.protocol import RequestError


@dataclass(frozen=True)
class Pictures:
    """The pictures of a request.

    Attributes:
        files: their bytes, by their names in messages.
        sha256: hash of the picture's bytes; for several, of their hashes.
        pixels: total of all pictures.
    """

    files: Mapping[str, bytes]
    sha256: str
    pixels: int

    def open(self) -> list[Image]:
        """Decode the pictures in RGB, in order."""
        return [decode_picture(name, data)[0] for name, data in self.files.items()]


def receive(urls: Sequence[str], limits: Limits, downloaded: Mapping[str, bytes]) -> Pictures:
    """Return pictures of which only the headers have been read."""
    names = ["the picture"] if len(urls) == 1 else [f"picture {number}" for number in range(1, len(urls) + 1)]
    files = {name: picture_data(url, limits.data, downloaded) for name, url in zip(names, urls, strict=True)}
    try:
        sizes = [picture_size(name, data) for name, data in files.items()]
    except HugePictureError as error:
        raise too_large(str(error)) from None
    pixels = sum(width * height for width, height in sizes)
    if pixels > limits.pixels:
        what = "the picture has" if len(urls) == 1 else "the pictures have"
        raise too_large(f"{what} {pixels:,} pixels; this server takes {limits.pixels:,}")
    sha256 = digest_of([hashlib.sha256(data).hexdigest() for data in files.values()])
    return Pictures(files, sha256, pixels)


def picture_data(url: str, most_bytes: int, downloaded: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a picture in a request."""
    if url in downloaded:
        if len(downloaded[url]) > most_bytes:
            raise too_large(f"image_url: larger than {most_bytes:,} bytes")
        return downloaded[url]
    head, comma, coded = url.partition(",")
    head, coded = head.strip().lower(), "".join(coded.split())  # MIME, and the command base64, break lines
    if not head.startswith("data:") or not comma or not head.endswith(";base64"):
        raise RequestError(
            f"image_url: expected data:image/...;base64,...; got {url[:40]!r}. This server opens no files, and "
            "fetches URLs only if it was started with `allow_urls=`",
            param="messages",
        )
    try:
        return base64.b64decode(coded + "=" * (-len(coded) % 4), validate=True)
    except ValueError as error:
        raise RequestError(f"image_url: is not base64: {error}", param="messages") from None
