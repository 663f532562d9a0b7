"""Admission of a request: a place first, then its body, then its pictures as files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request

from sira_cli.pictures.web import is_web
from sira_cli.serve.downloads import Downloads
from sira_cli.serve.limits import Limits, check_parts, too_large
from sira_cli.serve.line import QueuePlace, WaitingLine
from sira_cli.serve.pictures import Received, receive
from sira_cli.serve.protocol import RequestError
from sira_cli.web.http import read_body, says_json

BODY_SECONDS = 60.0  # from the first byte of a body to the last
READERS = 2  # threads that parse bodies: each has some copies of one

T = TypeVar("T")


@dataclass(frozen=True)
class Coming:
    """A request that is being read.

    Attributes:
        request: the framework's object.
        place: the request's place in the line.
        until: deadline of its answer, by `time.monotonic`.
    """

    request: Request
    place: QueuePlace
    until: float

    @property
    def host(self) -> str:
        """The client's address."""
        return address_of(self.request)


class Entrance:
    """Reads requests, within the number of places and the limit of bytes."""

    def __init__(self, limits: Limits, line: WaitingLine, downloads: Downloads | None) -> None:
        """Open it.

        Args:
            limits: of one request.
            line: gives places.
            downloads: for pictures at URLs; None: downloads are off.
        """
        self._limits, self._line, self._downloads = limits, line, downloads
        self._readers = ThreadPoolExecutor(READERS, "sira-reader")

    def close(self) -> None:
        """Wait until all reading has ended."""
        self._readers.shutdown()

    def come(self, request: Request) -> Coming:
        """Give a request, of which only headers are known, a place until it has its answer.

        Raises:
            RequestError: it is refused, or too many wait.
        """
        if not says_json(request.headers):
            message = "expected a body of type application/json: send the header Content-Type: application/json"
            raise RequestError(message, 415, code="unsupported_media_type")
        length = request.headers.get("content-length", "")
        size = int(length) if length.isdecimal() else self._limits.data
        if size > self._limits.data:
            raise self._too_many_bytes()
        state = request.scope["state"]
        place = self._line.enter(address_of(request), state.get("connection"), size)
        state["exits"].callback(place.leave)
        return Coming(request, place, time.monotonic() + self._limits.seconds)

    async def read(self, coming: Coming, parse: Callable[[bytes], T]) -> T:
        """Read the body of a request.

        Raises:
            RequestError: it is too large, too slow, or malformed.
        """
        seconds = min(self._limits.seconds, BODY_SECONDS)
        try:
            data = await asyncio.wait_for(read_body(coming.request.stream(), self._limits.data), seconds)
        except TimeoutError:
            raise RequestError("the request's body did not end in time", 408, code="timeout") from None
        if data is None:
            raise self._too_many_bytes()
        check_parts(data, self._limits.parts)
        return await self.apart(parse, data)

    async def receive(self, coming: Coming, urls: Sequence[str]) -> Received:
        """Return the pictures of a request, unopened; those at URLs are downloaded.

        Raises:
            RequestError: they are too many, too large, too slow, damaged, or not accessible.
            PictureError: one cannot be downloaded, or is not a picture.
        """
        if len(urls) > self._limits.pictures:
            raise too_large(f"{len(urls)} pictures; this server takes {self._limits.pictures} in one conversation")
        downloaded: dict[str, bytes] = {}
        if self._downloads is not None and (web := [url for url in dict.fromkeys(urls) if is_web(url)]):
            coming.place.give_way()  # to those who do not wait for others
            downloaded = await self._downloads.fetch(web, coming.until, coming.request.is_disconnected)
            coming.place.enter()
        received = await self.apart(receive, urls, self._limits, downloaded)
        coming.place.hold(received.size)
        return received

    async def apart(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run in one of a few threads a function that is slow or copies a request's bytes."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work, *arguments)

    def _too_many_bytes(self) -> RequestError:
        return too_large(f"the request has more than {self._limits.data:,} bytes", param=None)


def address_of(request: Request) -> str:
    """Return the address of a request's client."""
    return "" if request.client is None else request.client.host
