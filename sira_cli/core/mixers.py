"""Token mixers: the part of a decoder layer in which rows see each other. All else treats each row by itself.

How a late layer runs two streams depends on the kind of its mixer, and on nothing else of the layer:

attention    each stream attends to its own keys                              `sira_cli.core.attention`
recurrent    each stream has a state of its own (gated delta, convolution)    `sira_cli.core.recurrent`
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

# The names under which transformers' decoder layers hold a mixer with a recurrent or convolution state.
RECURRENT = ("linear_attn", "conv")


@dataclass(frozen=True)
class Mixer:
    """The token mixer of one decoder layer.

    Attributes:
        module: the attention module, or the one with the state.
        recurrent: which of the two it is.
        keys_from: index of the layer whose keys and values it attends to: its own, unless layers share them.
    """

    module: nn.Module
    recurrent: bool
    keys_from: int


def all_columns(mixers: Iterable[Mixer]) -> bool:
    """Return whether all that a text leaves behind is columns of keys and values of each layer, as in most models."""
    return all(not mixer.recurrent and mixer.keys_from == layer for layer, mixer in enumerate(mixers))


def find_mixers(layers: Iterable[Any], text_config: Any) -> list[Mixer] | None:
    """Find the mixer of each decoder layer; None if one has neither attention with a config nor a known state.

    Args:
        layers: the L decoder layers.
        text_config: says which of them share keys and values.
    """
    mixers = []
    for index, layer in enumerate(layers):
        attention = getattr(layer, "self_attn", None)
        state = next((getattr(layer, name) for name in RECURRENT if hasattr(layer, name)), None)
        if attention is not None and hasattr(attention, "config") and state is None:
            mixers.append(Mixer(attention, False, _key_source(index, text_config)))
        elif state is not None and attention is None:
            mixers.append(Mixer(state, True, index))
        else:
            return None
    return mixers


def _key_source(index: int, text_config: Any) -> int:
    """Return the layer whose keys and values layer `index` reads: the last of its type before the sharing begins."""
    first = text_config.num_hidden_layers - (getattr(text_config, "num_kv_shared_layers", 0) or 0)
    if index < first:
        return index
    types = text_config.layer_types
    return max(source for source in range(first) if types[source] == types[index])
