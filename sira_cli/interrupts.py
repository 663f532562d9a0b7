"""Ctrl-C, SIGTERM and SIGHUP end the command at any time with exit code 130 and without a traceback."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from types import FrameType
from typing import NoReturn, TypeVar

EXIT_CODE = 130
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

_GRACE = 2.0  # seconds for threads that end by themselves
_WORKERS = ("sira-reader", "sira-preparer")  # names of threads that decode pictures

_LOOK = 0.1  # seconds between looks whether a result is still wanted

T = TypeVar("T")

_happened = False


def happened() -> bool:
    """Return whether a signal has arrived since `raise_interrupts`."""
    return _happened


def check() -> None:
    """Raise an interrupt again that a library has swallowed. Long loops call this in each iteration."""
    if _happened:
        raise KeyboardInterrupt


def raise_interrupts() -> None:
    """From now on signals raise KeyboardInterrupt, so that finished work is kept."""
    global _happened
    _happened = False
    _handle(_raise)


def quit_on_interrupts() -> None:
    """From now on signals end the process at once: there is nothing to keep."""
    _handle(_quit)


def in_time(work: Callable[[], T], seconds: float, look: Callable[[], None]) -> T:
    """Run a function in a thread, which goes on alone where its result is no longer wanted.

    Args:
        work: the function.
        seconds: maximum time; may be infinite.
        look: called now and then; its error ends the waiting, as that of `check` after a signal.

    Raises:
        TimeoutError: it takes longer.
    """
    end = time.monotonic() + seconds
    result = Future[T]()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="sira-request", daemon=True).start()
    while not wait([result], min(_LOOK, seconds)).done:
        look()
        if time.monotonic() > end:
            raise TimeoutError
    return result.result()


def leave() -> NoReturn:
    """End the process after an interrupt.

    Python waits for its threads, and one that is in a picture's decoder cannot be told to stop: it is not waited for.
    """
    end = time.monotonic() + _GRACE
    workers = [thread for thread in threading.enumerate() if thread.name.startswith(_WORKERS)]
    for thread in workers:
        thread.join(max(0.0, end - time.monotonic()))
    if any(thread.is_alive() for thread in workers):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(EXIT_CODE)
    sys.exit(EXIT_CODE)


def _handle(handler: Callable[[int, FrameType | None], NoReturn]) -> None:
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, handler)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    global _happened
    _happened = True
    raise KeyboardInterrupt


def _quit(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(EXIT_CODE)
