"""Static caches: the key/value cache of the late layers for compiled decoding steps.

A static layer has all its rows from the start, and one compiled graph serves every step. So nothing that changes from
step to step may be a Python number or a shape: steps read tensors that stay in place. The full stream keeps the
model's own static layers. The CF stream gets a second one for each, with a row per text token and per new token.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, StaticCache
from transformers.cache_utils import CacheLayerMixin, StaticLayer, StaticSlidingWindowLayer

from sira_cli.core.streams import StaticStreams, Streams
from sira_cli.errors import AttachError, UnsupportedModelError

CF_ROWS = 64  # rows of the CF stream's layers come in multiples of this, so that prompts share a graph


class ReusedCache(StaticCache):
    """A static cache that serves one request after another, each of at most `new_tokens` new tokens."""

    def __init__(self, config: PreTrainedConfig, max_cache_len: int, new_tokens: int) -> None:
        super().__init__(config, max_cache_len)
        self.new_tokens = new_tokens


class StaticLateLayer(CacheLayerMixin):
    """Keys and values of both streams for one of the K late layers. To transformers it looks like the full stream.

    Attributes:
        full: the model's own layer.
        cf: the CF stream's layer, `[B, H, N, D]`; the prompt's T rows come first.
        slots: the CF stream's rows.
    """

    is_compileable = True

    def __init__(self, full: StaticLayer, slots: StaticStreams) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # not annotated upstream
        self.full, self.slots = full, slots
        self.is_sliding = full.is_sliding
        self.cf = StaticLayer(slots.shape[1])

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate both streams."""
        self.full.lazy_initialization(key_states, value_states)
        self.cf.lazy_initialization(key_states, value_states)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write `[B, H, q + T, D]` rows, those of the full stream first.

        Returns:
            Keys and values of the full stream, from its own layer; `cf_rows` returns those of the CF stream.

        Raises:
            AttachError: the rows are not those that the fork announced.
        """
        prompt = self.slots.prompt
        q, text = (1, 1) if prompt is None else (prompt.prompt, prompt.rows.shape[1])
        if key_states.shape[2] != q + text:
            raise AttachError(
                f"{key_states.shape[2]} rows arrived at a late layer's cache instead of those of both streams: "
                "a cache filled inside `with attach(...)` cannot be used outside of it"
            )
        self.cf.update(key_states[:, :, q:], value_states[:, :, q:])
        return self.full.update(key_states[:, :, :q], value_states[:, :, :q], *args, **kwargs)

    def cf_rows(self) -> tuple[Tensor, Tensor]:
        """Return keys and values of the CF stream, `[B, H, T, D]` while its prompt runs, then `[B, H, N, D]`."""
        keys, values = self.cf.keys, self.cf.values
        assert keys is not None
        assert values is not None
        if self.slots.prompt is None:
            return keys, values
        text = self.slots.prompt.rows.shape[1]  # T; the slots of future tokens follow
        return keys[:, :, :text], values[:, :, :text]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the full stream's mask length and offset."""
        return self.full.get_mask_sizes(query_length)

    def get_seq_length(self) -> int:
        """Return the full stream's length."""
        return self.full.get_seq_length()

    def get_max_length(self) -> int:
        """Return the full stream's largest length."""
        return self.full.get_max_length()

    def reset(self) -> None:
        """Empty both streams."""
        self.full.reset()
        self.cf.reset()

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Let both streams follow the beams."""
        self.full.reorder_cache(beam_idx)
        self.cf.reorder_cache(beam_idx)


def full_layer(layer: Any) -> Any:
    """Return the model's own layer, which holds the full stream, with or without a CF stream."""
    return layer.full if isinstance(layer, StaticLateLayer) else layer


def open_slots(cache: StaticCache, boundary: int, layers: int, streams: Streams) -> None:
    """Prepare layers b..L-1 of an empty static cache for both streams of a new prompt; reuse large enough layers.

    Raises:
        UnsupportedModelError: a layer is not a plain static one, or the cache does not limit the length of a text.
    """
    own = [full_layer(layer) for layer in cache.layers]
    kinds = {type(layer) for layer in own} - {StaticLayer, StaticSlidingWindowLayer}
    if kinds or cache.offloading:
        name = "offloaded layers" if cache.offloading else " and ".join(sorted(kind.__name__ for kind in kinds))
        raise UnsupportedModelError(f"a static cache with {name} is not supported: use a DynamicCache")
    if isinstance(cache, ReusedCache):
        new_tokens = cache.new_tokens
    elif all(cache.is_sliding):
        raise UnsupportedModelError(
            "a static cache with only sliding windows does not limit the length of the text: use a DynamicCache"
        )
    else:
        new_tokens = cache.get_max_length() - streams.prompt
    batch, text = streams.rows.shape
    late = cache.layers[boundary]
    slots = late.slots if isinstance(late, StaticLateLayer) else None
    if slots is None or slots.shape[0] != batch or slots.shape[1] < text + new_tokens:
        rows = math.ceil((text + new_tokens) / CF_ROWS) * CF_ROWS
        slots = StaticStreams(batch, rows, streams.rows.device)
        cache.layers[:] = [*own[:boundary], *(StaticLateLayer(layer, slots) for layer in own[boundary:layers])]
    slots.begin(streams)
