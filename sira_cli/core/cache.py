"""The key/value cache of the late layers: two streams, each as long as it is.

The shared layers 0..b-1 keep the model's own cache, which both streams read. Layers b..L-1 get a
`LateLayer` each, which holds the full stream and, apart from it, the CF stream, of text only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer, StaticCache

from sira_cli.core.static_cache import Slots, StaticLateLayer, open_slots
from sira_cli.errors import AttachError, UnsupportedModelError


@dataclass
class Streams:
    """What the rows of the CF stream are. One object for all K layers and all steps of a request.

    Attributes:
        rows: `[B, T]` positions of the prompt's rows that go on as CF rows.
        live: `[B, T]` False at rows that only fill up a row with fewer text tokens than its neighbours, and are seen
            by none; None: there are none.
        prompt: S, rows of the full stream in the prompt.
        steps: decoding steps so far; each adds one row to both streams.
        pending: keys and values of the CF stream that a layer's cache has just got, until its attention takes them.
    """

    rows: Tensor
    live: Tensor | None
    prompt: int
    steps: int = 0
    pending: tuple[Tensor | None, Tensor | None] = (None, None)

    @property
    def full_rows(self) -> int:
        """Rows of the full stream so far."""
        return self.prompt + self.steps

    def count(self) -> None:
        """One decoding step more."""
        self.steps += 1

    def newest(self) -> Tensor:
        """`[B, 1]` position of the newest row."""
        return self.rows.new_full((len(self.rows), 1), self.full_rows - 1)

    def rows_before(self, q: int) -> int | Tensor:
        """Rows of the full stream before its newest q."""
        return self.full_rows - q

    def first_column(self, kv: int) -> int | Tensor:
        """Position of the first of the model's kv mask columns: 0 but for a sliding window's."""
        return max(self.full_rows - kv, 0)

    def positions(self) -> Tensor:
        """`[B, T + steps]` position of each row of the CF stream."""
        new = torch.arange(self.prompt, self.full_rows, device=self.rows.device)
        return torch.cat([self.rows, new.expand(len(self.rows), -1)], dim=1)

    def seen(self) -> Tensor | None:
        """`[B, T + steps]` which rows of the CF stream may be seen; None: all."""
        if self.live is None:
            return None
        return torch.cat([self.live, self.live.new_ones(len(self.live), self.steps)], dim=1)


class LateLayer(DynamicLayer):
    """Keys and values of both streams for one of the K late layers.

    To whoever asks it is the full stream alone. It never slides: a window would have to be that of both streams.
    """

    is_croppable = False

    def __init__(self, streams: Streams) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # not annotated upstream
        self.streams = streams
        self.cf = DynamicLayer()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append `[B, H, q + T, D]` rows, those of the full stream first.

        Returns:
            Keys and values of the full stream so far, `[B, H, N, D]`; those of the CF stream wait in `streams.pending`.

        Raises:
            AttachError: the rows are not those that the fork announced.
        """
        q = self.streams.full_rows - self.get_seq_length()
        streams = q, key_states.shape[2] - q
        full_keys, cf_keys = key_states.split_with_sizes(streams, 2)
        full_values, cf_values = value_states.split_with_sizes(streams, 2)
        keys, values = super().update(full_keys, full_values, *args, **kwargs)
        self.streams.pending = pending = self.cf.update(cf_keys, cf_values)
        expected = self.streams.rows.shape[1] + self.streams.steps
        if pending[0].shape[2] != expected:
            raise AttachError(
                f"a late layer's cache holds {pending[0].shape[2]} rows of the CF stream, which has {expected}: "
                "a cache filled inside `with attach(...)` cannot be used outside of it"
            )
        return keys, values

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Both streams follow the beams."""
        super().reorder_cache(beam_idx)
        self.cf.reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Both streams."""
        super().batch_repeat_interleave(repeats)
        self.cf.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Both streams."""
        super().batch_select_indices(indices)
        self.cf.batch_select_indices(indices)

    def crop(self, tokens_to_remove: int) -> None:
        """Refused: a CF stream is as long as its text."""
        raise UnsupportedModelError("the cache of two streams cannot be cropped: assisted generation is not supported")


def open_streams(cache: Cache | None, boundary: int, layers: int, streams: Streams) -> None:
    """Make layers b..L-1 of an empty `cache`, if there is one, ready for both streams of a new prompt.

    Raises:
        UnsupportedModelError: the cache neither grows by the rows it is given nor has them all from the start.
    """
    if cache is None:
        return
    if isinstance(cache, StaticCache):
        open_slots(cache, boundary, layers, streams)
        return
    if not isinstance(cache, DynamicCache) or cache.offloading:
        name = "an offloaded cache" if isinstance(cache, DynamicCache) else type(cache).__name__
        raise UnsupportedModelError(f"{name} is not supported: leave out cache_implementation (a dynamic cache)")
    while len(cache.layers) < layers:
        cache.layers.append(DynamicLayer())
    for layer in cache.layers[boundary:layers]:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer, LateLayer):
            raise UnsupportedModelError(f"a cache with a {type(layer).__name__} is not supported: use a DynamicCache")
    cache.layers[boundary:layers] = [LateLayer(streams) for _ in range(boundary, layers)]


def is_prompt(cache: Cache | None, boundary: int, q: int) -> bool:
    """Whether q rows are the first ones of their cache."""
    if cache is None:
        return True
    if q == 1 and len(cache.layers) > boundary and isinstance(cache.layers[boundary], StaticLateLayer):
        return False  # not asked: static layers count in a tensor, and to read it is to wait for the GPU
    return int(cache.get_seq_length()) == 0


def known_streams(cache: Cache | None, boundary: int) -> Streams | Slots:
    """The streams of a cache that already holds a prompt.

    Raises:
        AttachError: no fork has filled it.
    """
    late = cache.layers[boundary] if cache is not None else None
    if isinstance(late, StaticLateLayer):
        return late.slots
    if not isinstance(late, LateLayer):
        raise AttachError(
            "past_key_values was filled outside this `with attach(...)` block, so it holds no CF stream: "
            "generate from the whole prompt, without past_key_values"
        )
    return late.streams
