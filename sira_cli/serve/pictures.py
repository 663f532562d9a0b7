"""The pictures of a request: from where it says they are to samples, within the limits of the server."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from sira_cli.errors import HugePictureError
from sira_cli.pictures.opening import decode_picture, picture_size
from sira_cli.pictures.web import WebPicture, is_web
from sira_cli.serve.limits import Limits, too_large
from sira_cli.serve.protocol import RequestError


@dataclass(frozen=True)
class Received:
    """The pictures of a request.

    Attributes:
        images: RGB; one for each turn that has one.
        sha256: of the picture's bytes; of several, of their hashes.
    """

    images: Sequence[Image.Image]
    sha256: str

    @property
    def image(self) -> Image.Image:
        """The picture, where there is one."""
        (image,) = self.images
        return image


def receive(urls: Sequence[str], limits: Limits, *, allow_urls: bool = False) -> Received:
    """Return pictures, decoded.

    Args:
        urls: `data:image/...;base64,...`, one for each picture.
        limits: of a request.
        allow_urls: download those that are at a public address of the web.

    Raises:
        RequestError: they are too many or too large, or one is damaged or elsewhere.
        PictureError: one cannot be downloaded or decoded.
    """
    if len(urls) > limits.pictures:
        raise too_large(f"{len(urls)} pictures; this server takes {limits.pictures} in one conversation")
    names = ["the picture"] if len(urls) == 1 else [f"picture {number}" for number in range(1, len(urls) + 1)]
    found = [picture_data(url, limits.data, allow_urls=allow_urls) for url in urls]
    try:
        sizes = [picture_size(name, data) for name, data in zip(names, found, strict=True)]
    except HugePictureError as error:
        raise too_large(str(error)) from None
    pixels = sum(width * height for width, height in sizes)
    if pixels > limits.pixels:
        what = "the picture has" if len(urls) == 1 else "the pictures have"
        raise too_large(f"{what} {pixels:,} pixels; this server takes {limits.pixels:,}")
    images = [decode_picture(name, data)[0] for name, data in zip(names, found, strict=True)]
    hashes = [hashlib.sha256(data).hexdigest() for data in found]
    return Received(images, hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest())


def picture_data(url: str, most_bytes: int, *, allow_urls: bool = False) -> bytes:
    """Return the bytes of a picture that comes in a request.

    Args:
        url: `data:image/...;base64,...`.
        most_bytes: larger pictures are refused.
        allow_urls: download it, if it is at a public address of the web.

    Raises:
        RequestError: it is elsewhere, damaged, or too large.
        PictureError: it cannot be downloaded.
    """
    if allow_urls and is_web(url):
        return WebPicture(url, url).read()
    head, comma, coded = url.partition(",")
    head, coded = head.strip().lower(), "".join(coded.split())  # MIME, and the command base64, break lines
    if not head.startswith("data:") or not comma or not head.endswith(";base64"):
        raise RequestError(
            f"image_url: expected data:image/...;base64,...; got {url[:40]!r}. This server opens no files, and "
            "fetches pictures only if it was started with `allow_urls=`",
            param="messages",
        )
    if len(coded) * 3 // 4 > most_bytes + 2:
        raise too_large(f"image_url: larger than {most_bytes:,} bytes")
    try:
        return base64.b64decode(coded + "=" * (-len(coded) % 4), validate=True)
    except ValueError as error:
        raise RequestError(f"image_url: is no base64: {error}", param="messages") from None
