"""Ctrl-C, SIGTERM and SIGHUP end the command at any time with exit code 130 and without a traceback."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

EXIT_CODE = 130
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

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
