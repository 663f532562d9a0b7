"""One thread that opens the pictures of waiting requests in order, within a memory limit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from sira_cli.serve.jobs import Job
from sira_cli.serve.pictures import Received

LOOK = 0.1  # seconds between checks for free memory


class Opener:
    """Opens the pictures of the next requests while texts are decoded.

    Small files may hold many pixels. So the pixels of open pictures are limited, including those that running texts
    still need, and the next file waits until there is room.
    """

    def __init__(
        self,
        changed: threading.Condition,
        waiting: Callable[[], Iterable[Job]],
        fail: Callable[[Job, Exception], None],
        most_pixels: int,
    ) -> None:
        """Begin.

        Args:
            changed: notified when the waiting jobs change, and by this thread when a picture is open.
            waiting: returns the jobs in their order; called with `changed` held.
            fail: called with a job whose pictures cannot be opened.
            most_pixels: maximum open at once, unless a single request has more.
        """
        self._changed, self._waiting, self._fail, self._most_pixels = changed, waiting, fail, most_pixels
        self._opened: list[Received] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="sira-opener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                job.pictures.open()
            except Exception as error:
                self._fail(job, error)
                continue
            with self._changed:
                if job.gone:  # meanwhile
                    job.pictures.close()
                self._opened.append(job.pictures)
                self._changed.notify_all()

    def _next(self) -> Job | None:
        """Wait for a job whose pictures can be opened; None: the thread ends."""
        with self._changed:
            while not self._closing:
                job = next((job for job in self._waiting() if not job.is_ready), None)
                if job is None:
                    self._changed.wait()
                    continue
                self._opened = [pictures for pictures in self._opened if pictures.is_open]
                pixels = sum(pictures.pixels for pictures in self._opened)
                if not pixels or pixels + job.pictures.pixels <= self._most_pixels:
                    return job
                self._changed.wait(LOOK)
        return None
