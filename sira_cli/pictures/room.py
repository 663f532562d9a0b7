"""Memory for pictures while they are read and decoded: those that do not fit wait, first come first served."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Room:
    """A number of bytes that threads share."""

    def __init__(self, size: int) -> None:
        """Begin with `size` bytes, all of them free."""
        self.size = size
        self._free = size
        self._turn = threading.Lock()
        self._returned = threading.Condition()

    @contextmanager
    def taken(self, needed: int) -> Iterator[None]:
        """Wait until `needed` bytes are free, and hold them; a request above the total takes all.

        A thread that holds bytes may not ask for more: two such threads would wait for each other.
        """
        needed = min(needed, self.size)
        with self._turn, self._returned:
            self._returned.wait_for(lambda: self._free >= needed)
            self._free -= needed
        try:
            yield
        finally:
            with self._returned:
                self._free += needed
                self._returned.notify_all()


def give_back() -> None:
    """Return freed memory to the system. The C library of Linux keeps it, for each thread separately."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


ROOM = Room(1_800_000_000)  # bytes; the largest PNG that Pillow opens needs as much
