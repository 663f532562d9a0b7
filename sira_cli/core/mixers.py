"""Token mixers: the part of a decoder layer in which rows see each other. All other parts treat each row by itself.

How a late layer runs two streams depends only on the kind of its mixer:

attention    each stream attends to its own keys                              `sira_cli.core.attention`
indexed      each stream chooses its own keys, and attends to them           `sira_cli.core.indexed`
recurrent    each stream has a state of its own (gated delta, convolution)    `sira_cli.core.recurrent`
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from sira_cli.core.arguments import cache_name, parameters

# The names under which transformers' decoder layers hold a mixer with a recurrent or convolution state.
RECURRENT = ("linear_attn", "conv")


@dataclass(frozen=True)
class Mixer:
    """The token mixer of one decoder layer.

    Attributes:
        module: the attention module, or the one with the state.
        recurrent: whether `module` has a state instead of attention.
        keys_from: index of the layer whose keys and values it attends to: its own, unless layers share them.
        chunked: whether it attends within chunks of the text (Llama 4).
        indexed: whether it has an indexer that chooses keys.
    """

    module: nn.Module
    recurrent: bool
    keys_from: int
    chunked: bool = False
    indexed: bool = False

    @property
    def plain(self) -> bool:
        """Whether it is attention to all keys of its mask."""
        return not self.recurrent and not self.indexed


def all_columns(mixers: Iterable[Mixer]) -> bool:
    """Return whether a text is stored only as columns of keys and values in each layer, as in most models.

    The columns must not depend on where the text begins, as chunks do.
    """
    return all(mixer.plain and not mixer.chunked and mixer.keys_from == layer for layer, mixer in enumerate(mixers))


def find_mixers(layers: Iterable[Any], text_config: Any) -> list[Mixer] | str:
    """Find the mixer of each decoder layer, or return why the fork cannot follow one.

    Args:
        layers: the L decoder layers.
        text_config: config of the text stack, which lists layers with shared keys and values.
    """
    mixers, kinds = [], getattr(text_config, "layer_types", None)
    for index, layer in enumerate(layers):
        found = [name for name in ("self_attn", *RECURRENT) if getattr(layer, name, None) is not None]
        if not found:
            return f"its {type(layer).__name__} has neither `self_attn` nor a known state"
        mixer = getattr(layer, found[0])
        indexer = getattr(mixer, "indexer", None)
        own = (layer, mixer, indexer)
        others = [name for name, part in layer.named_modules() if part not in own and _mixes(part)]
        if len(found) > 1 or others:
            return f"its {type(layer).__name__} mixes rows in {' and '.join([*found, *others])}, not in one place"
        if found[0] not in RECURRENT and not hasattr(mixer, "config"):
            return f"the `self_attn` of its {type(layer).__name__} has no config"
        if "prev_topk_indices" in parameters(type(mixer).forward):
            return "some of its layers attend to rows that earlier ones have chosen (sparse indexers)"
        recurrent = found[0] in RECURRENT
        source = index if recurrent else _key_source(index, text_config)
        chunked = kinds is not None and kinds[index] == "chunked_attention"
        mixers.append(Mixer(mixer, recurrent, source, chunked, indexer is not None))
    return mixers


def _mixes(module: nn.Module) -> bool:
    """Return whether a module looks at more than one row: it takes a mask or a cache."""
    forward = type(module).forward
    return cache_name(forward) is not None or any("mask" in name for name in parameters(forward))


def _key_source(index: int, text_config: Any) -> int:
    """Return the layer whose keys and values layer `index` reads: the last of its type before the sharing begins."""
    first = text_config.num_hidden_layers - (getattr(text_config, "num_kv_shared_layers", 0) or 0)
    if index < first:
        return index
    types = text_config.layer_types
    return max(source for source in range(first) if types[source] == types[index])
