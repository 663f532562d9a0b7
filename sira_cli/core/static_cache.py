"""Static caches: the key/value cache of the late layers for decoding steps that are compiled.

A static layer has all its rows from the start and one graph serves every step, so nothing that changes from step to
step may be a number or a shape: what the steps read are tensors that stay where they are. The full stream keeps the
model's own static layers. The CF stream gets one of its own beside each, with a row a text token and a row a new one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, StaticCache
from transformers.cache_utils import CacheLayerMixin, StaticLayer, StaticSlidingWindowLayer

from sira_cli.errors import AttachError, UnsupportedModelError

if TYPE_CHECKING:
    from sira_cli.core.cache import Streams

CF_ROWS = 64  # the CF stream's layers have a multiple of as many rows, so that prompts share a graph


class ReusedCache(StaticCache):
    """A static cache for one request after the other, each of at most `new_tokens` new tokens."""

    def __init__(self, config: PreTrainedConfig, max_cache_len: int, new_tokens: int) -> None:
        super().__init__(config, max_cache_len)
        self.new_tokens = new_tokens


class Slots:
    """The rows of static CF layers, N of them: what `Streams` says about a growing cache, for decoding steps.

    Attributes:
        prompt: the streams while their prompt runs; then the slots speak for themselves.
        pending: as in `Streams`.
    """

    prompt: Streams | None = None
    pending: tuple[Tensor | None, Tensor | None] = (None, None)

    def __init__(self, batch: int, rows: int, device: torch.device) -> None:
        self.shape = batch, rows
        self._positions = torch.zeros(batch, rows, dtype=torch.long, device=device)  # [B, N]
        self._live = torch.zeros(batch, rows, dtype=torch.bool, device=device)  # [B, N]
        self._newest = torch.zeros(batch, 1, dtype=torch.long, device=device)  # [B, 1]
        for each in (self._positions, self._live, self._newest):
            torch._dynamo.mark_static_address(each)  # as `StaticLayer` does: a CUDA graph writes to the same place

    def begin(self, streams: Streams) -> None:
        """Take in the rows of a prompt; a slot for each new token lies behind them."""
        text = streams.rows.shape[1]  # T
        self.prompt = streams
        self._positions[:, :text] = streams.rows
        self._positions[:, text:] = torch.arange(self.shape[1] - text, device=streams.rows.device) + streams.prompt
        self._live.fill_(True)
        if streams.live is not None:
            self._live[:, :text] = streams.live
        self._newest.fill_(streams.prompt - 1)

    def count(self) -> None:
        """One decoding step more."""
        self.prompt = None
        self._newest.add_(1)

    def newest(self) -> Tensor:
        """`[B, 1]` position of the newest row."""
        return self._newest

    def positions(self) -> Tensor:
        """`[B, N]` position of each slot; the model's mask hides those of tokens to come."""
        return self._positions

    def seen(self) -> Tensor:
        """`[B, N]` which slots may be seen once their position is."""
        return self._live

    def rows_before(self, q: int) -> Tensor:
        """`[B, 1]` rows of the full stream before its newest q."""
        return self._newest + 1 - q

    def first_column(self, kv: int) -> Tensor:
        """`[B, 1]` position of the first of the model's kv mask columns: 0 until a sliding window is full."""
        return (self._newest + 1 - kv).clamp(min=0)


class StaticLateLayer(CacheLayerMixin):
    """Keys and values of both streams for one of the K late layers; to whoever asks, the full stream's.

    Attributes:
        full: the model's own layer.
        cf: `[B, H, N, D]`, T rows of the prompt in front.
    """

    is_compileable = True

    def __init__(self, full: StaticLayer, slots: Slots) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # not annotated upstream
        self.full, self.slots = full, slots
        self.is_sliding = full.is_sliding
        self.cf = StaticLayer(slots.shape[1])

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Both streams."""
        self.full.lazy_initialization(key_states, value_states)
        self.cf.lazy_initialization(key_states, value_states)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write `[B, H, q + T, D]` rows, those of the full stream first.

        Returns:
            Keys and values of the full stream, as its own layer has them; those of the CF stream wait in `pending`.

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
        cf_rows = key_states[:, :, q:], value_states[:, :, q:]
        stored = self.cf.update(*cf_rows)
        if prompt is None:
            self.slots.pending = stored
        else:
            prompt.pending = cf_rows  # without the slots of tokens to come
        return self.full.update(key_states[:, :, :q], value_states[:, :, :q], *args, **kwargs)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Of the full stream."""
        return self.full.get_mask_sizes(query_length)

    def get_seq_length(self) -> int:
        """Of the full stream."""
        return self.full.get_seq_length()

    def get_max_length(self) -> int:
        """Of the full stream."""
        return self.full.get_max_length()

    def reset(self) -> None:
        """Both streams."""
        self.full.reset()
        self.cf.reset()

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Both streams follow the beams."""
        self.full.reorder_cache(beam_idx)
        self.cf.reorder_cache(beam_idx)


def full_layer(layer: Any) -> Any:
    """The layer that holds the full stream: the model's own, with or without a CF stream beside it."""
    return layer.full if isinstance(layer, StaticLateLayer) else layer


def share_layers(cache: StaticCache, boundary: int) -> None:
    """Give an empty cache's first layers back what an earlier fork with a larger K took: to hold one stream."""
    cache.layers[:boundary] = map(full_layer, cache.layers[:boundary])


def open_slots(cache: StaticCache, boundary: int, layers: int, streams: Streams) -> None:
    """Make layers b..L-1 of an empty static cache ready for both streams of a new prompt, in place if they can be.

    Raises:
        UnsupportedModelError: the layers are not plain static ones, or leave open how long the text may become.
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
            "a static cache of sliding windows alone does not say how long the text may become: use a DynamicCache"
        )
    else:
        new_tokens = cache.get_max_length() - streams.prompt
    batch, text = streams.rows.shape
    late = cache.layers[boundary]
    slots = late.slots if isinstance(late, StaticLateLayer) else None
    if slots is None or slots.shape[0] != batch or slots.shape[1] < text + new_tokens:
        rows = math.ceil((text + new_tokens) / CF_ROWS) * CF_ROWS
        slots = Slots(batch, rows, streams.rows.device)
        cache.layers[:] = [*own[:boundary], *(StaticLateLayer(layer, slots) for layer in own[boundary:layers])]
    slots.begin(streams)
