"""The key/value cache of the late layers: two streams side by side.

The shared layers 0..b-1 keep the model's own cache, which both streams read. Layers b..L-1 get a
`LateLayer` each: it grows by the rows of the full stream and of the CF stream, which holds text only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from sira_cli.errors import AttachError, UnsupportedModelError

FULL, CF = 0, 1


class Slots:
    """What the N slots of the late layers' cache hold. One object for all K layers.

    Attributes:
        position: `[B, N]` position in the sequence at which a slot was computed.
        visible: `[B, 2, N]` bool, which slots a row of stream FULL / CF may see. Slots that only fill
            up a row with fewer text tokens than its neighbours are visible to no stream.
        full_rows: rows of the full stream so far = length of the shared layers' cache.
    """

    def __init__(self, batch: int, device: torch.device) -> None:
        self.position = torch.empty(batch, 0, dtype=torch.long, device=device)
        self.visible = torch.empty(batch, 2, 0, dtype=torch.bool, device=device)
        self.full_rows = 0

    def __len__(self) -> int:
        return self.position.shape[1]

    def append(self, cf_rows: Tensor | None, live: Tensor | None, q: int) -> Tensor:
        """Add the slots of one forward pass: q rows of the full stream, then the CF stream's.

        Args:
            cf_rows: `[B, T]` which of the q rows go on as CF rows; None: all of them.
            live: `[B, T]` False at fillers; None: there are none.
            q: rows of the full stream.

        Returns:
            `[q + T]` the stream of each new slot.
        """
        batch, device = len(self.position), self.position.device
        full = torch.arange(self.full_rows, self.full_rows + q, device=device).expand(batch, q)
        cf = full if cf_rows is None else cf_rows.to(device) + self.full_rows  # [B, T]
        visible = torch.zeros(batch, 2, q + cf.shape[1], dtype=torch.bool, device=device)
        visible[:, FULL, :q] = True
        visible[:, CF, q:] = True if live is None else live.to(device)
        self.position = torch.cat([self.position, full, cf], dim=1)  # [B, N]
        self.visible = torch.cat([self.visible, visible], dim=2)  # [B, 2, N]
        self.full_rows += q
        return (torch.arange(q + cf.shape[1], device=device) >= q).long()


class LateLayer(DynamicLayer):
    """Keys and values of both streams for one of the K late layers.

    To whoever builds masks it looks like the full stream alone, so that the model's own mask keeps
    the geometry it has without a fork. It never slides: a window would evict packed rows.
    """

    def __init__(self, slots: Slots) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # not annotated upstream
        self.slots = slots

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append `[B, H, R, D]` rows of both streams; both arguments grow to `[B, H, N, D]`.

        Raises:
            AttachError: the rows are not those that the fork announced.
        """
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        if keys.shape[-2] != len(self.slots):
            raise AttachError(
                f"a late layer's cache holds {keys.shape[-2]} rows where the two streams have {len(self.slots)}: "
                "a cache filled inside `with attach(...)` cannot be used outside of it"
            )
        return keys, values

    def get_seq_length(self) -> int:
        """Rows of the full stream."""
        return self.slots.full_rows

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Key columns of the model's own mask, and the position of the first."""
        return self.slots.full_rows + query_length, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Refused: packed rows are not in the order of positions."""
        raise UnsupportedModelError("the cache of two streams cannot be cropped: assisted generation is not supported")


def open_slots(cache: Cache | None, boundary: int, layers: int, batch: int, device: torch.device) -> Slots:
    """Empty slots for a new prompt; layers b..L-1 of an empty `cache`, if there is one, will fill them.

    Raises:
        UnsupportedModelError: the cache is not one that grows by the rows it is given.
    """
    slots = Slots(batch, device)
    if cache is None:
        return slots
    if not isinstance(cache, DynamicCache) or cache.offloading:
        name = "an offloaded cache" if isinstance(cache, DynamicCache) else type(cache).__name__
        raise UnsupportedModelError(f"{name} is not supported: leave out cache_implementation (a dynamic cache)")
    while len(cache.layers) < layers:
        cache.layers.append(DynamicLayer())
    for layer in cache.layers[boundary:layers]:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer, LateLayer):
            raise UnsupportedModelError(f"a cache with a {type(layer).__name__} is not supported: use a DynamicCache")
    cache.layers[boundary:layers] = [LateLayer(slots) for _ in range(boundary, layers)]
    return slots


def known_slots(cache: Cache | None, boundary: int) -> Slots:
    """The slots of a cache that already holds a prompt.

    Raises:
        AttachError: no fork has filled it.
    """
    late = cache.layers[boundary] if cache is not None else None
    if not isinstance(late, LateLayer):
        raise AttachError(
            "past_key_values was filled outside this `with attach(...)` block, so it holds no CF stream: "
            "generate from the whole prompt, without past_key_values"
        )
    return late.slots
