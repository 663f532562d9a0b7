"""Hooks that are always removed, and at most one decoder per model."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from torch import nn

from sira_cli.errors import AttachError


class Removable(Protocol):
    """Something that undoes a change to a model, such as the handle of a hook."""

    def remove(self) -> None:
        """Undo the change."""


_attached: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_attaching = threading.Lock()  # so that one of two threads is refused


@contextmanager
def attached_hooks(norm: nn.Module) -> Iterator[list[Removable]]:
    """Yield a list for the handles of hooks, and remove these hooks at the end, also after an error.

    Args:
        norm: the model's final norm, which identifies the model: its wrappers share it.

    Raises:
        AttachError: a decoder is attached to this model already.
    """
    with _attaching:
        if norm in _attached:
            raise AttachError(
                "a decoder is attached to this model already: leave the first `with attach(...)` block first; threads "
                "that share a model must take turns, with their own lock, or generate together as one batch"
            )
        _attached.add(norm)
    handles: list[Removable] = []
    try:
        yield handles
    finally:
        for handle in handles:
            handle.remove()
        _attached.discard(norm)
