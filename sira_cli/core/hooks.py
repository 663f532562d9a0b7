"""Hooks that are removed whatever happens, and one decoder a model at a time."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from torch import nn

from sira_cli.errors import AttachError


class Removable(Protocol):
    """What undoes a change to a model: the handle of a hook, or one like it."""

    def remove(self) -> None:
        """Undo it."""


_attached: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@contextmanager
def attached_hooks(norm: nn.Module) -> Iterator[list[Removable]]:
    """A list for the handles of hooks, which are removed at the end, also after an error.

    Args:
        norm: the model's final norm, which is one a model, whatever wraps it.

    Raises:
        AttachError: hooks of a decoder are on this model already.
    """
    if norm in _attached:
        raise AttachError("a decoder is attached to this model already: leave the first `with attach(...)` block first")
    handles: list[Removable] = []
    _attached.add(norm)
    try:
        yield handles
    finally:
        for handle in handles:
            handle.remove()
        _attached.discard(norm)
