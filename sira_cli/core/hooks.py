"""Hooks that are always removed, and at most one decoder per model."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import transformers
from torch import nn

from sira_cli.core.arguments import Args, Kwargs
from sira_cli.core.census import MIXED_BEAMS
from sira_cli.core.compiled import check_uncompiled
from sira_cli.errors import AttachError, UnsupportedModelError


class Removable(Protocol):
    """Something that undoes a change to a model, such as the handle of a hook."""

    def remove(self) -> None:
        """Undo the change."""


@dataclass(frozen=True)
class Undo:
    """A function that undoes a change, as a `Removable`."""

    remove: Callable[[], None]


class AroundModules:
    """Two hooks around each of some modules of the late layers; subclasses define them, with a state per module."""

    def __init__(self, running: Callable[[], Any]) -> None:
        """Keep the function that returns the `Pass` under way."""
        self.running = running

    @classmethod
    def put_on(cls, modules: Iterable[nn.Module], running: Callable[[], Any]) -> Iterator[Removable]:
        """Put the hooks on one by one, and yield the handle of each."""
        for module in modules:
            hooks = cls(running)
            yield module.register_forward_pre_hook(hooks.before, with_kwargs=True)
            yield module.register_forward_hook(hooks.after, with_kwargs=True)

    def before(self, module: Any, args: Args, kwargs: Kwargs) -> Any:
        """Before the module: return its arguments."""
        raise NotImplementedError

    def after(self, module: Any, args: Args, kwargs: Kwargs, output: Any) -> Any:
        """After the module: return its output."""
        raise NotImplementedError


_attached: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_attaching = threading.Lock()  # so that one of two threads is refused


@contextmanager
def attached_hooks(model: nn.Module, norm: nn.Module) -> Iterator[list[Removable]]:
    """Yield a list for handles of hooks, which are removed at the end; wrappers of a model share its final `norm`."""
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
        handles.append(_one_token_per_pass(model))
        handles.append(model.register_forward_pre_hook(_check_call, with_kwargs=True))
        yield handles
    finally:
        for handle in handles:
            handle.remove()
        _attached.discard(norm)


def _one_token_per_pass(model: nn.Module) -> Undo:
    """Refuse ways of generating that decide several tokens in a pass, or in another thread: at once, and by name.

    `generate` would end in an IndexError with an assistant; continuous batching hides errors of its own thread.
    """
    changed: list[tuple[Any, str]] = []

    def replace(part: Any, name: str, function: Callable[..., Any]) -> None:
        if name not in vars(part):
            setattr(part, name, function)
            changed.append((part, name))

    parts: list[Any] = [*model.modules()]
    for part in parts:
        kind = type(part)  # a module without the name would raise and catch an error, and a model has thousands
        if hasattr(kind, "init_continuous_batching"):
            replace(part, "init_continuous_batching", _refuse_batching)
        if hasattr(kind, "generate") and hasattr(part, "generation_config"):
            replace(part, "generate", partial(_generate, part, part.generate))

    def restore() -> None:
        for part, name in changed:
            delattr(part, name)

    return Undo(restore)


def _generate(model: Any, generate: Callable[..., Any], *args: Any, **options: Any) -> Any:
    if options.get("assistant_model") is not None:
        raise UnsupportedModelError(
            "assisted generation has another model propose several tokens, but both streams are followed token by "
            "token: leave out assistant_model"
        )
    config = options.get("generation_config") or model.generation_config
    if options.get("prompt_lookup_num_tokens") or getattr(config, "prompt_lookup_num_tokens", None):
        raise UnsupportedModelError(
            "prompt lookup proposes several tokens from the prompt, but both streams are followed token by token: "
            "leave out prompt_lookup_num_tokens"
        )
    names = ("num_beams", "num_return_sequences")
    beams = (options.get(name) or getattr(config, name, None) or 1 for name in names)
    version = ".".join(transformers.__version__.split(".")[:2])
    if max(beams) > 1 and (model.config.model_type, version) in MIXED_BEAMS:
        raise UnsupportedModelError(
            f"transformers {version} mixes up the pictures of beams of a {type(model).__name__}, with or without a "
            "fork: install transformers 5.21 or newer, or leave out num_beams and num_return_sequences"
        )
    return generate(*args, **options)


def _check_call(model: nn.Module, args: Args, kwargs: Kwargs) -> None:
    ids = kwargs.get("input_ids")
    if ids is None or ids.shape[1] != 1:  # a prompt
        check_uncompiled(model)  # again: parts may have been compiled since the block began
    if kwargs.get("labels") is not None:
        raise UnsupportedModelError(
            "the model was called with labels, but inside `with attach(...)` it has logits of the next token only, and "
            "no loss: leave out labels, or leave the block"
        )


def _refuse_batching(*args: Any, **options: Any) -> None:
    raise UnsupportedModelError(
        "paged caches and continuous batching (cache_implementation='paged', generate_batch) are not supported "
        "inside `with attach(...)`: call `generate` with a batch of left-padded prompts, or leave the block"
    )
