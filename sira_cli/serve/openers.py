"""Threads that open the pictures of requests, each in a process that is ended when nobody waits for it any more."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from sira_cli.pictures.apart import Decoder
from sira_cli.serve import Limits
from sira_cli.serve.jobs import Job
from sira_cli.serve.protocol import RequestError

OPENERS = 8  # requests whose pictures are decoded at the same time
LOOK = 0.2  # seconds between looks whether a client still waits
LEFT = 499  # nginx's status of requests whose client has gone, for the counters


def gone() -> RequestError:
    """Return the error for a client that no longer waits."""
    return RequestError("the client has gone", LEFT, code="gone")


def stopping() -> RequestError:
    """Return the error for a request that a stopping server does not begin."""
    return RequestError("the server is stopping", 503, code="stopping")


class Openers:
    """Requests on their way to `ready`, which is called in a thread with each whose pictures are decoded."""

    def __init__(self, limits: Limits, ready: Callable[[Job], None]) -> None:
        self._limits = limits
        self._ready = ready
        self._arrived: deque[Job] = deque()
        self._opening: list[Job] = []
        self._idle: list[Decoder] = []  # the last one is used first, so that few processes are started
        self._changed = threading.Condition()
        self._closing = False
        for _ in range(OPENERS):
            threading.Thread(target=self._run, name="sira-opener", daemon=True).start()

    def waiting(self) -> int:
        """Return the number of requests whose pictures are not open yet."""
        with self._changed:
            return sum(not job.gone for job in (*self._arrived, *self._opening))

    def submit(self, job: Job) -> None:
        """Open the pictures of a request when its turn comes."""
        with self._changed:
            if self._closing:
                raise stopping()
            self._arrived.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Refuse all requests whose pictures are not open yet, and end the processes."""
        with self._changed:
            self._closing = True
            for job in self._arrived:
                job.report(stopping())
            self._arrived.clear()
            for decoder in self._idle:
                decoder.end()
            self._changed.notify_all()

    def _run(self) -> None:
        while self._open_next():
            pass

    def _open_next(self) -> bool:
        """Wait for a job and open its pictures; return False at the end. Between two jobs no samples are kept."""
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._closing)
            if self._closing:
                return False
            job = self._arrived.popleft()
            self._opening.append(job)
            decoder = self._idle.pop() if self._idle else Decoder()
        opened = self._opened(job, decoder)
        with self._changed:
            self._opening.remove(job)
            self._idle.append(decoder)
        if opened:
            self._ready(job)
        return True

    def _opened(self, job: Job, decoder: Decoder) -> bool:
        """Decode the pictures of a job, and return whether that was possible; else report the error."""

        def look() -> None:
            if job.gone:
                raise gone()
            if self._closing:
                raise stopping()

        try:
            look()
            job.images = job.pictures.open(decoder, self._limits, look)
        except Exception as error:
            job.report(error)
            return False
        finally:
            if self._closing:
                decoder.end()
        return True
