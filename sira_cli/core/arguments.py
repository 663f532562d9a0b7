"""What a hooked module was called with, found by type and shape: an update of transformers may rename any argument.

    the cache        the only `Cache` among the arguments
    hidden states    `[..., q, d]`: the first positional argument, else the parameter that is declared first
    the mask         the only argument that its name calls a mask: it may be None, and has a shape of its own by layer

Calls that this package makes name the cache by `CACHE`, read once from a signature.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache

from sira_cli.errors import UnsupportedModelError

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@functools.cache
def parameters(forward: Callable[..., Any]) -> tuple[str, ...]:
    """Return the parameter names of a class's `forward`."""
    return tuple(inspect.signature(forward).parameters)


@functools.cache
def cache_name(function: Callable[..., Any]) -> str | None:
    """Return the parameter that takes a `Cache`, by its annotation; None without one."""
    declared = inspect.signature(function).parameters.values()
    return next((parameter.name for parameter in declared if "Cache" in str(parameter.annotation)), None)


_name = cache_name(GenerationMixin.prepare_inputs_for_generation)
assert _name is not None
CACHE = _name  # by which models and `generate` take the cache: `past_key_values` until transformers 5.23


def cache_of(args: Args, kwargs: Mapping[str, Any]) -> Any:
    """Return the cache that a module was called with; None without one."""
    cache = None
    for argument in (*args, *kwargs.values()):
        if not isinstance(argument, Cache) or argument is cache:
            continue
        if cache is not None:
            raise UnsupportedModelError(
                "a layer was called with several caches: the fork does not know which one it fills"
            )
        cache = argument
    return cache


def with_cache(kwargs: Mapping[str, Any], cache: Any) -> Kwargs:
    """Return arguments with another cache in place of their own."""
    return {name: cache if isinstance(value, Cache) else value for name, value in kwargs.items()}


def with_layer(kwargs: Mapping[str, Any], index: int, layer: Any) -> Kwargs:
    """Return arguments with a copy of their cache that has another layer; the cache itself stays as it is."""
    cache = cache_of((), kwargs)
    if cache is None:
        return dict(kwargs)
    changed = copy.copy(cache)
    changed.layers = list(cache.layers)
    changed.layers[index] = layer
    return with_cache(kwargs, changed)


def hidden_of(module: nn.Module, args: Args, kwargs: Mapping[str, Any]) -> Any:
    """Return the hidden states that a module was called with, `[..., q, d]`; None if it was called in another way."""
    hidden = args[0] if args else kwargs.get(parameters(type(module).forward)[1])
    return hidden if isinstance(hidden, Tensor) and hidden.ndim > 2 and hidden.is_floating_point() else None


def with_hidden(module: nn.Module, args: Args, kwargs: Mapping[str, Any], hidden: Tensor) -> tuple[Args, Kwargs]:
    """Return a module's arguments with other hidden states."""
    if args:
        return (hidden, *args[1:]), dict(kwargs)
    return args, {**kwargs, parameters(type(module).forward)[1]: hidden}


def mask_name(module: nn.Module, kwargs: Mapping[str, Any]) -> str:
    """Return the name by which a module was called with its mask, also if the mask is None."""
    names = [name for name in kwargs if "mask" in name]
    if len(names) != 1:
        had = f"several: {', '.join(names)}" if names else "none"
        raise UnsupportedModelError(f"{type(module).__name__} was not called with one attention mask, but with {had}")
    return names[0]
