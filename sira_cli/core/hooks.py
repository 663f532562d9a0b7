"""Hooks that are always removed, and at most one decoder per model."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch import nn

from sira_cli.errors import AttachError, UnsupportedModelError


class Removable(Protocol):
    """Something that undoes a change to a model, such as the handle of a hook."""

    def remove(self) -> None:
        """Undo the change."""


_attached: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_attaching = threading.Lock()  # so that one of two threads is refused


@contextmanager
def attached_hooks(model: nn.Module, norm: nn.Module) -> Iterator[list[Removable]]:
    """Yield a list for the handles of hooks, and remove these hooks at the end, also after an error.

    Args:
        model: a Hugging Face LVLM, or a wrapper of it.
        norm: the model's final norm, which identifies the model: its wrappers share it.

    Raises:
        AttachError: a decoder is attached to this model already.
        UnsupportedModelError: a part of the model is compiled.
    """
    check_uncompiled(model)
    with _attaching:
        if norm in _attached:
            raise AttachError(
                "a decoder is attached to this model already: leave the first `with attach(...)` block first; threads "
                "that share a model must take turns, with their own lock, or generate together as one batch"
            )
        _attached.add(norm)
    handles: list[Removable] = []
    try:
        handles.append(_NoContinuousBatching(model))
        yield handles
    finally:
        for handle in handles:
            handle.remove()
        _attached.discard(norm)


def check_uncompiled(model: nn.Module) -> None:
    """Check that no part of the model is compiled: compiled code may leave out hooks, or keep removed ones.

    Raises:
        UnsupportedModelError: a part is.
    """
    for part in model.modules():
        own: Any = part  # torch.compile(model), model.compile(), and model.forward = torch.compile(model.forward)
        forward = vars(part).get("forward")
        if "_orig_mod" in part._modules or own._compiled_call_impl or hasattr(forward, "_torchdynamo_orig_callable"):
            raise UnsupportedModelError(
                f"{type(part).__name__} is compiled, so hooks in it cannot be relied on: attach to the model as it was "
                "loaded, without torch.compile"
            )


class _NoContinuousBatching:
    """Refuses transformers' continuous batching, which calls the model from a thread of its own and hides its errors.

    All its ways go through `init_continuous_batching`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._models: list[Any] = [part for part in model.modules() if hasattr(part, "init_continuous_batching")]
        for each in self._models:
            each.init_continuous_batching = self._refuse

    def remove(self) -> None:
        """Allow it again."""
        for each in self._models:
            del each.init_continuous_batching

    def _refuse(self, *args: Any, **options: Any) -> None:
        raise UnsupportedModelError(
            "paged caches and continuous batching (cache_implementation='paged', generate_batch) are not supported "
            "inside `with attach(...)`: call `generate` with a batch of left-padded prompts, or leave the block"
        )
