"""Contexts that can be entered again: `run = attach(model)`, then `with run:` for each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from functools import partial, wraps
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def reusable(function: Callable[P, Iterator[T]]) -> Callable[P, Reusable[T]]:
    """Make a context of a generator function, as `contextlib.contextmanager` does, but for any number of blocks."""
    begin = contextmanager(function)

    @wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> Reusable[T]:
        return Reusable(partial(begin, *args, **kwargs))

    return made


class Reusable(AbstractContextManager[T], ContextDecorator, Generic[T]):
    """A context that begins once more with each block."""

    def __init__(self, begin: Callable[[], AbstractContextManager[T]]) -> None:
        """Keep the function that begins a block."""
        self._begin = begin
        self._begun: list[AbstractContextManager[T]] = []

    def __enter__(self) -> T:
        """Begin a block; what it refuses, as a block inside another, leaves nothing changed."""
        context = self._begin()
        value = context.__enter__()
        self._begun.append(context)
        return value

    def __exit__(self, *error: Any) -> bool | None:
        """End the latest block."""
        return self._begun.pop().__exit__(*error)
