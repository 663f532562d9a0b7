"""Admission of a request: its body first, then a place, then its pictures as files.

A body that has not arrived takes no place: only bytes that are here count. It has to keep coming, and one address may
have a bounded number of unfinished ones.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request

from sira_cli.pictures.web import is_web
from sira_cli.serve.connections import Connection
from sira_cli.serve.downloads import Downloads
from sira_cli.serve.http import says_json
from sira_cli.serve.limits import Limits, check_parts, too_large
from sira_cli.serve.pictures import Received, receive
from sira_cli.serve.protocol import OLLAMA, RequestError
from sira_cli.serve.waiting_queue import BusyError, QueuePlace, WaitingQueue

BODY_SECONDS = 60.0  # from the first byte of a body to the last
GRACE = 5.0  # seconds in which a body may arrive at any rate
LEAST_RATE = 16 * 1024  # bytes per second, on average, after these
MOST_UNFINISHED = 256  # bodies of one address that are being read
READERS = 2  # threads that parse bodies: each has some copies of one

T = TypeVar("T")


@dataclass
class PendingRequest:
    """A request that is being read.

    Attributes:
        request: the framework's object.
        until: deadline of its answer, by `time.monotonic`.
        place: the request's place in the queue; it has one when its body has arrived.
    """

    request: Request
    until: float
    place: QueuePlace = field(init=False)

    @property
    def host(self) -> str:
        """The client's address."""
        return "" if self.request.client is None else self.request.client.host

    @property
    def connection(self) -> Connection | None:
        """The connection that the request came by."""
        connection: Connection | None = self.request.scope["state"].get("connection")
        return connection


class Admission:
    """Reads requests, within the number of places and the limit of bytes."""

    def __init__(self, limits: Limits, queue: WaitingQueue, downloads: Downloads | None) -> None:
        """Open the admission.

        Args:
            limits: of one request.
            queue: gives places.
            downloads: for pictures at URLs; None: downloads are off.
        """
        self._limits, self._queue, self._downloads = limits, queue, downloads
        self._readers = ThreadPoolExecutor(READERS, "sira-reader")
        self._unfinished: Counter[str] = Counter()  # bodies, by address

    def close(self) -> None:
        """Wait until all requests are read."""
        self._readers.shutdown()

    def admit(self, request: Request) -> PendingRequest:
        """Admit a request of which only the headers are known.

        Raises:
            RequestError: the request is refused, or too many wait.
        """
        if not (says_json(request.headers) or _is_ollama_client(request)):
            message = "expected a body of type application/json: send the header Content-Type: application/json"
            raise RequestError(message, 415, code="unsupported_media_type")
        length = request.headers.get("content-length", "")
        size = int(length) if length.isdecimal() else 0
        if size > self._limits.data:
            raise self._too_many_bytes()
        pending = PendingRequest(request, time.monotonic() + self._limits.seconds)
        self._queue.check(pending.host, pending.connection, size)
        return pending

    async def read(self, pending: PendingRequest, parse: Callable[[bytes], T]) -> T:
        """Read the body of a request, and give the request a place until it has its answer.

        Raises:
            RequestError: the body is malformed, or larger or slower than the limits, or the queue is full.
        """
        host = pending.host
        if self._unfinished[host] >= MOST_UNFINISHED:
            raise BusyError(self._unfinished[host])
        self._unfinished[host] += 1
        try:
            data = await self._body(pending)
        finally:
            self._unfinished[host] -= 1
            self._unfinished += Counter()  # without zeros
        pending.place = self._queue.enter(host, pending.connection, len(data))
        pending.request.scope["state"]["exits"].callback(pending.place.leave)
        check_parts(data, self._limits.parts)
        return await self.apart(parse, data)

    async def _body(self, pending: PendingRequest) -> bytes:
        began, parts, size = time.monotonic(), pending.request.stream(), 0
        longest = min(self._limits.seconds, BODY_SECONDS)
        read: list[bytes] = []
        try:
            while True:
                seconds = min(GRACE + size / LEAST_RATE, longest)
                part = await asyncio.wait_for(anext(parts, None), began + seconds - time.monotonic())
                if part is None:
                    return b"".join(read)
                size += len(part)
                if size > self._limits.data:
                    raise self._too_many_bytes()
                self._queue.held += len(part)
                read.append(part)
                if not self._queue.has_bytes:
                    raise BusyError(len(self._unfinished))
        except TimeoutError:
            raise RequestError(
                f"the request's body came too slowly: expected {LEAST_RATE // 1024} KiB per second, and its end within "
                f"{longest:g} seconds",
                408,
                code="timeout",
            ) from None
        finally:
            self._queue.held -= sum(map(len, read))

    async def receive(self, pending: PendingRequest, urls: Sequence[str]) -> Received:
        """Return the pictures of a request, unopened; those at URLs are downloaded.

        Raises:
            RequestError: they are too many, too large, too slow, damaged, or not accessible.
            PictureError: one cannot be downloaded, or is not a picture.
        """
        if len(urls) > self._limits.pictures:
            raise too_large(f"{len(urls)} pictures; this server takes {self._limits.pictures} in one conversation")
        downloaded: dict[str, bytes] = {}
        if self._downloads is not None and (web := [url for url in dict.fromkeys(urls) if is_web(url)]):
            pending.place.give_way()  # to those who do not wait for others
            downloaded = await self._downloads.fetch(web, pending.until, pending.request.is_disconnected)
            pending.place.enter()
        received = await self.apart(receive, urls, self._limits, downloaded)
        pending.place.hold(received.size)
        return received

    async def apart(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run a slow function, or one that copies a request's bytes, in one of a few threads."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work, *arguments)

    def _too_many_bytes(self) -> RequestError:
        return too_large(f"the request has more than {self._limits.data:,} bytes", param=None)


def _is_ollama_client(request: Request) -> bool:
    """Return whether a request may lack its content type: some Ollama clients omit it, other sites' pages cannot."""
    foreign = any(name in request.headers for name in ("content-type", "origin", "sec-fetch-site"))
    return request.url.path.startswith(OLLAMA) and not foreign
