"""The pictures of a request: URLs become bytes that wait, and samples only when needed."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Mapping, Sequence

from PIL import Image

from sira_cli.errors import HugePictureError
from sira_cli.pictures.opening import decode_picture, picture_size
from sira_cli.pictures.picture import OpenedPicture, digest_of
from sira_cli.serve.limits import Limits, too_large
from sira_cli.serve.protocol import RequestError


class Received:
    """The pictures of a request: files, and samples while they are open. Safe in threads.

    Attributes:
        sha256: hash of the picture's bytes; for several, of their hashes.
        pixels: total of all pictures.
        size: bytes of their files.
    """

    def __init__(self, files: Mapping[str, bytes], pixels: int) -> None:
        """Keep files, without opening them.

        Args:
            files: by their names in messages.
            pixels: total of all pictures.
        """
        hashes = [hashlib.sha256(data).hexdigest() for data in files.values()]
        self.sha256 = digest_of(hashes)
        self.pixels, self.size = pixels, sum(map(len, files.values()))
        self._files, self._lock = files, threading.Lock()
        self._images: Sequence[Image.Image] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the samples are in memory."""
        return self._images is not None

    def open(self) -> Sequence[Image.Image]:
        """Open the pictures, and return them in RGB, in order.

        Raises:
            PictureError: one is damaged.
        """
        with self._lock:
            images = self._images
            if images is None:
                images = self._images = [decode_picture(*file)[0] for file in self._files.items()]
            return images

    def opened(self) -> OpenedPicture:
        """Open the pictures, and return them as one opened picture."""
        first, *more = self.open()
        return OpenedPicture("", first, self.sha256, more=tuple(more))

    def close(self) -> None:
        """Release the samples' memory; they are opened again if needed.

        The event loop calls this, so it does not wait for a thread that is opening them.
        """
        self._images = None

    def forget(self) -> None:
        """Release all memory, after the last text about them has ended."""
        self._images, self._files = None, {}


def receive(urls: Sequence[str], limits: Limits, downloaded: Mapping[str, bytes]) -> Received:
    """Return pictures with only their headers read.

    Args:
        urls: `data:image/...;base64,...`, one for each picture.
        limits: of a request.
        downloaded: the files at those URLs that are on the web.

    Raises:
        RequestError: the pictures are too large, or one is damaged or not accessible.
        PictureError: one is not a picture.
    """
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
    return Received(files, pixels)


def picture_data(url: str, most_bytes: int, downloaded: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a picture in a request.

    Args:
        url: `data:image/...;base64,...`.
        most_bytes: larger pictures are refused.
        downloaded: the files at URLs of the web.

    Raises:
        RequestError: the picture is not accessible, damaged, or too large.
    """
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
    if len(coded) * 3 // 4 > most_bytes + 2:
        raise too_large(f"image_url: larger than {most_bytes:,} bytes")
    try:
        return base64.b64decode(coded + "=" * (-len(coded) % 4), validate=True)
    except ValueError as error:
        raise RequestError(f"image_url: is not base64: {error}", param="messages") from None
