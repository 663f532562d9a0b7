"""Requests to other machines: with a time limit, and repeated after a pause where that may help."""

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
    """Send a request until it succeeds, cannot succeed, or has been tried too often; return its result.

    Args:
        send: the request.
        tries: maximum number of attempts.
        again: returns the seconds that the server asks to wait after an error, 0 if it does not say; None: give up.
        pause: waits for some seconds.

    Raises:
        Exception: the error of the last attempt.
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
    """Run a function in its own thread, and return its result; the caller can stop waiting, the thread goes on.

    Args:
        work: may hang.
        seconds: limit in time.
        look: called repeatedly; raises if the result is not wanted any more.

    Raises:
        TimeoutError: the function took longer.
        BaseException: any error of `work` or `look`.
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
    """Return the seconds that a `Retry-After` header asks to wait; it may be a date; 0 if invalid."""
    with suppress(ValueError):
        return max(0.0, float(text))
    with suppress(ValueError, TypeError):
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    return 0.0
