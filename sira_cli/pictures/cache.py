"""A cache of the latest results, for questions that follow each other about one picture."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Cache(Generic[T]):
    """The latest results, each made once. Safe in threads; a copy in another process is empty."""

    def __init__(self, size: int) -> None:
        """Begin empty; keep at most `size` results, which may be 0."""
        self._size, self._lock = size, threading.Lock()
        self._results: OrderedDict[Hashable, Future[T]] = OrderedDict()

    def __reduce__(self) -> tuple[type[Cache[T]], tuple[int]]:
        return type(self), (self._size,)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of `make`; if another thread is making it, wait for it."""
        with self._lock:
            result = self._results.get(key)
            if first := result is None:
                result = self._results[key] = Future()
                if len(self._results) > self._size:
                    self._results.popitem(last=False)
        if first:
            try:
                result.set_result(make())
            except BaseException as error:
                result.set_exception(error)
        return result.result()
