"""Work that may hang, such as a request to another machine: the caller can stop waiting for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

LOOK = 0.1  # seconds between looks whether the result is still wanted

T = TypeVar("T")


def in_time(work: Callable[[], T], seconds: float, look: Callable[[], None]) -> T:
    """Run a function in its own thread, and return its result; the caller can stop waiting, the thread goes on."""
    end, found = time.monotonic() + seconds, Future[T]()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name="sira-request", daemon=True).start()
    while not wait([found], min(LOOK, seconds)).done:
        look()
        if time.monotonic() > end:
            raise TimeoutError
    return found.result()
