"""What was made last is kept for those that ask for the same: questions about a picture follow each other."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """The things that were asked for last, each made once. Safe in threads; a copy in another process is empty."""

    def __init__(self, most: int) -> None:
        """Begin with nothing; keep so many at most, perhaps none."""
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Future[T]] = OrderedDict()

    def __reduce__(self) -> tuple[type[Kept[T]], tuple[int]]:
        return type(self), (self._most,)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` makes; who asks while another thread makes it waits for it.

        Args:
            key: what tells it apart from others.
            make: called if it is not there; what it raises is kept, too.
        """
        with self._lock:
            waiting = self._kept.get(key)
            if first := waiting is None:
                waiting = self._kept[key] = Future()
                if len(self._kept) > self._most:
                    self._kept.popitem(last=False)
        if first:
            try:
                waiting.set_result(make())
            except BaseException as error:
                waiting.set_exception(error)
        return waiting.result()
