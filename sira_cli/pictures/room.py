"""Memory that pictures may take while they are read and decoded: what does not fit waits, first come first served."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Room:
    """A number of bytes that threads share."""

    def __init__(self, size: int) -> None:
        """Have so many bytes, all of them free."""
        self.size = size
        self._free = size
        self._turn = threading.Lock()
        self._returned = threading.Condition()

    @contextmanager
    def taken(self, needed: int) -> Iterator[None]:
        """Wait until so many bytes are free, and hold them; who needs more than there are takes all.

        Nobody who holds bytes may ask for more: two who did would wait for each other.
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
    """Return freed memory to the system. The C library of Linux keeps it, in each thread apart."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


ROOM = Room(1_800_000_000)  # bytes; the largest PNG that Pillow opens needs as much
