"""A cache of the latest results, for questions that follow each other about one picture."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """The latest results, each made once. Safe in threads; a copy in another process is empty."""

    def __init__(self, most: int) -> None:
        """Begin empty; keep at most `most`, which may be 0."""
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Future[T]] = OrderedDict()

    def __reduce__(self) -> tuple[type[Kept[T]], tuple[int]]:
        return type(self), (self._most,)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of `make`; if another thread is making it, wait for it."""
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
