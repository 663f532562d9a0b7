"""Work that threads do ahead of the one that needs it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ahead(
    pool: ThreadPoolExecutor, work: Callable[[T], R], items: Iterable[T], depth: Callable[[], int]
) -> Iterator[R]:
    """Map in order, with at most `depth()` items taken and not yet handed on."""
    waiting: deque[Future[R]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) >= depth():
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
