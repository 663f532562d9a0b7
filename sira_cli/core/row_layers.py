"""Keys and values, or states, of texts that come and go, in one layer; `row_cache` is the cache of all layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

from sira_cli.core.recurrent import LateStateLayer
from sira_cli.core.streams import RowStream, RowStreams
from sira_cli.errors import AttachError


class RowLayer(CacheLayerMixin):
    """Keys and values of one stream in one layer, `[R, H, C, D]` each."""

    is_sliding = False  # a window's mask hides older columns
    keys: Tensor
    values: Tensor

    def __init__(self, stream: RowStream, like: Any) -> None:
        """Begin empty.

        Args:
            stream: its rows and columns.
            like: a layer with keys and values of the same heads, precision and device.
        """
        super().__init__()  # type: ignore[no-untyped-call] # not annotated upstream
        self.stream = stream
        self.keys, self.values = (
            each.new_zeros(0, each.shape[1], 0, each.shape[3]) for each in (like.keys, like.values)
        )
        self._numbers = torch.arange(0)  # numbers of the R rows
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: room is made before rows join."""

    def make_room(self) -> None:
        """Grow to the rows and columns of the stream."""
        self.keys, self.values = (_grown(each, *self.stream.room) for each in (self.keys, self.values))
        self._numbers = torch.arange(self.stream.room[0], device=self.keys.device)
        if self.stream.fixed:
            for each in (self.keys, self.values, self._numbers):
                torch._dynamo.mark_static_address(each)  # as transformers' `StaticLayer` does

    def place(self, places: slice, keys: Tensor, values: Tensor) -> None:
        """Write the rows of a prompt, `[G, H, S, D]` each."""
        self.keys[places, :, : keys.shape[2]] = keys
        self.values[places, :, : values.shape[2]] = values

    def move(self, places: Tensor, sources: Tensor) -> None:
        """Copy some rows to other places."""
        places, sources = places.to(self.keys.device), sources.to(self.keys.device)
        columns = max(self.stream.lengths, default=0)
        for each in (self.keys, self.values):
            each[places, :, :columns] = each[sources, :, :columns]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the newest token of each row, `[B, H, 1, D]`, and return all columns, `[B, H, N, D]`."""
        rows = self.stream.rows
        place = self._numbers[:rows], self.stream.newest[:rows, 0].to(self.keys.device)
        self.keys[place[0], :, place[1]] = key_states[:, :, 0]
        self.values[place[0], :, place[1]] = value_states[:, :, 0]
        return self.seen()

    def seen(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a step, `[B, H, N, D]` each."""
        rows, columns = self.stream.rows, self.stream.columns
        return self.keys[:rows, :, :columns], self.values[:rows, :, :columns]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the mask's length and offset."""
        return self.stream.columns, 0

    def get_seq_length(self) -> int:
        """Return the number of columns."""
        return self.stream.columns

    def get_max_length(self) -> int:
        """Return -1: the number of columns is not limited."""
        return -1


class LateRowLayer(RowLayer):
    """Keys and values of both streams in one of the K late layers. To transformers it looks like the full stream.

    Attributes:
        streams: the rows and columns of both streams.
        cf: the CF stream's layer.
    """

    def __init__(self, streams: RowStreams, like: Any) -> None:
        super().__init__(streams.full, like)
        self.streams = streams
        self.cf = RowLayer(streams.cf, like)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the newest token of each row in both streams, `[B, H, 2, D]`, and return the full stream's columns.

        Raises:
            AttachError: the rows of only one stream arrived.
        """
        if key_states.shape[2] != 2:
            raise AttachError(
                f"{key_states.shape[2]} rows arrived at a late layer's cache instead of those of both streams: "
                "rows that joined inside `with attach(...)` cannot step outside of it"
            )
        self.cf.update(key_states[:, :, 1:], value_states[:, :, 1:])
        return super().update(key_states[:, :, :1], value_states[:, :, :1])

    def cf_rows(self) -> tuple[Tensor, Tensor]:
        """Return keys and values of the CF stream, `[B, H, N, D]` each."""
        return self.cf.seen()


class RowStates:
    """The states of all texts in one layer with a recurrent mixer. States have no columns, so they need no room.

    Attributes:
        layer: the layer's object in the cache.
    """

    def __init__(self, prompt: LinearAttentionLayer | LateStateLayer, streams: RowStreams | None) -> None:
        """Begin without rows.

        Args:
            prompt: the layer of a prompt that will join.
            streams: the rows of both streams, if `prompt` is one of the late layers.
        """
        self.layer: Any = prompt
        self._streams = 1
        self._empty = True
        if isinstance(prompt, LateStateLayer) and streams is not None:
            self.layer, self._streams = LateStateLayer(prompt.own, streams), 2

    def join(self, prompt: LinearAttentionLayer | LateStateLayer) -> None:
        """Append the states of a prompt's rows, `[B, ...]` and `[G, ...]` of each stream."""
        new: Any = prompt.states if isinstance(prompt, LateStateLayer) else prompt
        if self._empty and self._streams == 2:
            self.layer.states = new
        elif not self._empty:
            for states, index, state in self._stored():
                more = new.conv_states if states is self._own.conv_states else new.recurrent_states
                parts = zip(state.chunk(self._streams), more[index].chunk(self._streams), strict=True)
                states[index] = torch.cat([each for part in parts for each in part])
        self._empty = False

    def keep(self, rows: Sequence[int]) -> None:
        """Let all rows but these leave; those that stay get the first places, in this order."""
        for states, index, state in self._stored():
            states[index] = torch.cat([stream[list(rows)] for stream in state.chunk(self._streams)])

    @property
    def _own(self) -> LinearAttentionLayer:
        own: LinearAttentionLayer = self.layer.states if self._streams == 2 else self.layer
        return own

    def _stored(self) -> list[tuple[dict[int, Any], int, Tensor]]:
        """Return each state with the place where it is stored."""
        kinds: Any = (self._own.conv_states, self._own.recurrent_states)
        return [(states, index, state) for states in kinds for index, state in states.items() if state is not None]


def _grown(stored: Tensor, rows: int, columns: int) -> Tensor:
    """Copy to more room; new columns are finite, because masked columns take part with weight 0."""
    grown = stored.new_zeros(rows, stored.shape[1], columns, stored.shape[3])
    grown[: stored.shape[0], :, : stored.shape[2]] = stored
    return grown
