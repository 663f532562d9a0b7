"""Requests to other machines: each with a limit in time, and again after a pause where that may help."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

PAUSE = 0.5  # seconds before the second try; twice as long before each further one
LONGEST_PAUSE = 60.0  # seconds, whatever the other side asks for
LOOK = 0.1  # seconds between looks whether the result is still wanted

T = TypeVar("T")


def tried(
    send: Callable[[], T], tries: int, again: Callable[[Exception], float | None], pause: Callable[[float], None]
) -> T:
    """Return the result of a request; if it fails and may succeed later, after several tries.

    Args:
        send: the request.
        tries: most of them.
        again: returns the seconds that the other side asks to wait after an error, 0 if it does not say; None: another
            try is of no use.
        pause: waits for some seconds.

    Raises:
        Exception: of the last try.
    """
    seconds = PAUSE
    for left in reversed(range(tries)):
        try:
            return send()
        except Exception as error:
            asked = again(error)
            if not left or asked is None:
                raise
        pause(min(max(seconds, asked), LONGEST_PAUSE))
        seconds *= 2
    raise AssertionError


def in_time(work: Callable[[], T], seconds: float, look: Callable[[], None]) -> T:
    """Return the result of a function, in a thread of its own: the caller can stop waiting, the thread goes on.

    Args:
        work: may hang.
        seconds: limit in time.
        look: called now and then; raises if the result is no longer wanted.

    Raises:
        TimeoutError: the function took longer.
        BaseException: of `work` or `look`.
    """
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


def retry_after(text: str) -> float:
    """Return the seconds to wait by a header `Retry-After`, which may be a date; 0 if it is not one."""
    with suppress(ValueError):
        return max(0.0, float(text))
    with suppress(ValueError, TypeError):
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    return 0.0
