"""Pictures at URLs in requests, downloaded in separate threads, so slow downloads delay no other request."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from sira_cli.pictures.web import WebPicture
from sira_cli.serve.answers import POLLED
from sira_cli.serve.metrics import Metrics
from sira_cli.serve.protocol import RequestError
from sira_cli.serve.waiting_queue import BusyError

THREADS = 8


class Downloads:
    """Requests whose pictures are being downloaded (at most `THREADS`), and requests that wait for a download."""

    def __init__(self, most_waiting: int, metrics: Metrics) -> None:
        """Begin without requests.

        Args:
            most_waiting: maximum number of requests waiting for downloads; further ones get 429.
            metrics: the server's counters.
        """
        self._most_waiting, self._waiting, self._metrics = most_waiting, 0, metrics
        self._free = asyncio.Semaphore(THREADS)

    async def fetch(
        self, urls: Sequence[str], until: float, has_gone: Callable[[], Awaitable[bool]]
    ) -> dict[str, bytes]:
        """Return the files at the URLs of one request.

        Args:
            urls: http or https.
            until: deadline, by `time.monotonic`.
            has_gone: tells whether the client no longer waits.

        Raises:
            RequestError: too many wait already, it took too long, or the client has gone.
            PictureError: one cannot be downloaded.
        """
        if self._waiting >= self._most_waiting:
            raise BusyError(self._waiting)
        unwanted = threading.Event()
        self._metrics.downloads.inc()
        task = asyncio.ensure_future(self._fetch(urls, unwanted))
        try:
            while not (await asyncio.wait([task], timeout=POLLED))[0]:
                if time.monotonic() > until:
                    raise RequestError("the picture's download took too long", 504, code="timeout")
                if await has_gone():
                    raise RequestError("the client has gone", 499, code="gone")
            return task.result()
        finally:
            unwanted.set()
            task.cancel()
            self._metrics.downloads.dec()

    async def _fetch(self, urls: Sequence[str], unwanted: threading.Event) -> dict[str, bytes]:
        """Download in a free thread, which is occupied until it ends, even if its client is gone."""
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        loop = asyncio.get_running_loop()
        found: asyncio.Future[dict[str, bytes]] = loop.create_future()

        def end(data: dict[str, bytes], error: Exception | None) -> None:
            self._free.release()
            if found.cancelled():
                return
            if error is None:
                found.set_result(data)
            else:
                found.set_exception(error)

        def work() -> None:
            data, failed = {}, None
            try:
                for url in urls:
                    data[url] = WebPicture(url, url).read_here(unwanted.is_set)
            except Exception as error:
                failed = error
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(end, data, failed)

        threading.Thread(target=work, name="sira-download", daemon=True).start()
        return await found
