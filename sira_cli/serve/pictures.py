"""The pictures and clips of a request: URLs become bytes that wait, and samples only when needed."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Mapping, Sequence

from sira_cli.errors import HugePictureError
from sira_cli.pictures.clip import Sampling, Still
from sira_cli.pictures.clip_files import VIDEO, can_read_clips, container_of
from sira_cli.pictures.clip_worker import ANIMATION
from sira_cli.pictures.opening import clip_kind, decode_clip, decode_picture, picture_size
from sira_cli.pictures.picture import OpenedPicture, digest_of
from sira_cli.serve.limits import Limits, too_large
from sira_cli.serve.messages import ClipUrl
from sira_cli.serve.protocol import RequestError


class Received:
    """The pictures of a request: files, and samples while they are open. Safe in threads.

    Attributes:
        sha256: hash of the picture's bytes; for several, of their hashes.
        pixels: total of all pictures.
        size: bytes of their files.
    """

    def __init__(self, files: Mapping[str, bytes], pixels: int, sampling: Mapping[str, Sampling | None]) -> None:
        """Keep files, without opening them.

        Args:
            files: by their names in messages.
            pixels: total of all pictures.
            sampling: how frames of clips are chosen; None: it is a picture.
        """
        hashes = [hashlib.sha256(data).hexdigest() for data in files.values()]
        self.sha256 = digest_of(hashes)
        self.pixels, self.size = pixels, sum(map(len, files.values()))
        self._files, self._sampling, self._lock = files, sampling, threading.Lock()
        self._images: Sequence[Still] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the samples are in memory."""
        return self._images is not None

    def open(self) -> Sequence[Still]:
        """Open the pictures and clips, and return them in RGB, in order.

        Raises:
            PictureError: one is damaged.
        """
        with self._lock:
            images = self._images
            if images is None:
                images = self._images = [self._decoded(*file) for file in self._files.items()]
            return images

    def _decoded(self, name: str, data: bytes) -> Still:
        sampling = self._sampling[name]
        found = None if sampling is None else decode_clip(name, data, sampling)
        return (found or decode_picture(name, data))[0]

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


def receive(
    urls: Sequence[str], limits: Limits, downloaded: Mapping[str, bytes], sampling: Sampling | None = None
) -> Received:
    """Return pictures and clips with only their headers read.

    Args:
        urls: `data:image/...;base64,...`, one for each picture; a `ClipUrl` for a clip.
        limits: of a request.
        downloaded: the files at those URLs that are on the web.
        sampling: how frames of clips are chosen.

    Raises:
        RequestError: the pictures are too large, or one is damaged or not accessible.
        PictureError: one is not a picture.
    """
    kind = "clip" if any(isinstance(url, ClipUrl) for url in urls) else "picture"
    names = [f"the {kind}"] if len(urls) == 1 else [f"picture {number}" for number in range(1, len(urls) + 1)]
    files = {name: picture_data(url, limits.data, downloaded) for name, url in zip(names, urls, strict=True)}
    how = dict(
        zip(names, ((sampling or Sampling()) if isinstance(url, ClipUrl) else None for url in urls), strict=True)
    )
    for name, data in files.items():
        _check_kind(name, data, how[name] is not None)
    try:
        sizes = [picture_size(name, data) for name, data in files.items()]
    except HugePictureError as error:
        raise too_large(str(error)) from None
    pixels = sum(width * height for width, height in sizes)
    if pixels > limits.pixels:
        what = "the picture has" if len(urls) == 1 else "the pictures have"
        raise too_large(f"{what} {pixels:,} pixels; this server takes {limits.pixels:,}")
    return Received(files, pixels, how)


def _check_kind(name: str, data: bytes, as_clip: bool) -> None:
    """Check that a clip came as a clip; an animation is either.

    Raises:
        RequestError: it did not, or this server reads no clips.
        PictureError: the file is not a picture.
    """
    kind = clip_kind(name, data) if as_clip else container_of(data)
    if as_clip and kind is None:
        raise RequestError("video_url: is a picture: send it as image_url", param="messages")
    if not as_clip and kind is not None:
        raise RequestError("image_url: is a clip: send it as video_url", param="messages")
    if as_clip and kind != ANIMATION and not can_read_clips():
        raise RequestError(f"video_url: this server reads no clips: {VIDEO}", param="messages")


def picture_data(url: str, most_bytes: int, downloaded: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a picture in a request.

    Args:
        url: `data:image/...;base64,...`.
        most_bytes: larger pictures are refused.
        downloaded: the files at URLs of the web.

    Raises:
        RequestError: the picture is not accessible, damaged, or too large.
    """
    field, kind = ("video_url", "video") if isinstance(url, ClipUrl) else ("image_url", "image")
    if url in downloaded:
        if len(downloaded[url]) > most_bytes:
            raise too_large(f"{field}: larger than {most_bytes:,} bytes")
        return downloaded[url]
    head, comma, coded = url.partition(",")
    head, coded = head.strip().lower(), "".join(coded.split())  # MIME, and the command base64, break lines
    if not head.startswith("data:") or not comma or not head.endswith(";base64"):
        raise RequestError(
            f"{field}: expected data:{kind}/...;base64,...; got {url[:40]!r}. This server opens no files, and "
            "fetches URLs only if it was started with `allow_urls=`",
            param="messages",
        )
    if len(coded) * 3 // 4 > most_bytes + 2:
        raise too_large(f"{field}: larger than {most_bytes:,} bytes")
    try:
        return base64.b64decode(coded + "=" * (-len(coded) % 4), validate=True)
    except ValueError as error:
        raise RequestError(f"{field}: is not base64: {error}", param="messages") from None
