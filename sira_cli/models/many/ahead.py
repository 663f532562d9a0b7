"""Work that threads do ahead of its use."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from sira_cli import interrupts

T = TypeVar("T")
R = TypeVar("R")

_PATIENCE = 0.05  # seconds
_LOOK = 0.5  # seconds between looks for an interrupt


def ahead(pool: ThreadPoolExecutor, work: Callable[[T], R], items: Iterable[T], depth: int) -> Iterator[R]:
    """Map in order, with at most `depth` items in progress."""
    waiting: deque[Future[R]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) >= depth:
            yield _settled(waiting.popleft())
    while waiting:
        yield _settled(waiting.popleft())


def as_they_come(
    pool: ThreadPoolExecutor,
    work: Callable[[T], R],
    items: Iterable[T],
    depth: Callable[[], int],
    reach: Callable[[], int],
) -> Iterator[R | None]:
    """Map as `ahead`, to `depth()`, but yield the first finished of the next `reach()` items; with 0, in order."""
    waiting: list[Future[R]] = []
    for item in items:
        waiting.append(pool.submit(work, item))
        while len(waiting) >= depth():
            yield _next(waiting, reach())
    while waiting:
        yield _next(waiting, reach())


def _next(waiting: list[Future[R]], reach: int) -> R | None:
    number = 0
    if reach:
        wait(waiting[:reach], _PATIENCE, FIRST_COMPLETED)
        number = next((number for number, each in enumerate(waiting[:reach]) if each.done()), -1)
    return None if number < 0 else _settled(waiting.pop(number))


def _settled(future: Future[R]) -> R:
    """Return a result; an interrupt that a library has swallowed is raised without waiting."""
    while not future.done():
        wait([future], _LOOK)
        interrupts.check()
    return future.result()
