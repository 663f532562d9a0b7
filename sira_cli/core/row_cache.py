"""The key/value cache of texts that come and go: joining or leaving rows move no others.

    columns  0 1 2 3 4 5 6 7 8 .. C-1
    row 0    x x x x x n - - -         n: the newest token, another column in each row
    row 1    . . x x x x x n -         .: padding, from the prompts that it joined with
    row 2    x x n - - - - - -         -: an earlier text's, or empty; masked

Both streams are stored this way, each with its own columns. A layer with a state instead stores its rows as a batch;
a layer that shares the keys of another stores nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DummyLayer, DynamicCache, LinearAttentionLayer

from sira_cli.core.cache import LateLayer, LateSharedLayer
from sira_cli.core.recurrent import LateStateLayer
from sira_cli.core.row_layers import LateRowLayer, RowLayer, RowStates
from sira_cli.core.streams import RowStream, RowStreams

ROOM = 32  # columns come in multiples of this


class RowCache(Cache):
    """The cache of all layers.

    Attributes:
        full: the rows of the full stream.
        cf: the rows of the CF stream; None without a fork.
    """

    def __init__(self, prompt: DynamicCache, fixed: bool) -> None:
        """Begin without rows.

        Args:
            prompt: the cache of a prompt, with the same layers, filled.
            fixed: as for `RowStream`.
        """
        prompt_layers: list[Any] = prompt.layers
        first = _first_late(prompt)
        with_columns = next(layer for layer in prompt_layers if _has_columns(layer))
        device = with_columns.keys.device if first is None else first.streams.rows.device  # layers may be elsewhere
        self.full = RowStream(device, fixed)
        self.cf = None if first is None else RowStream(device, fixed)
        streams: Any = None if self.cf is None else RowStreams(self.full, self.cf)
        self._rows: dict[int, RowLayer] = {}
        self._states: dict[int, RowStates] = {}
        layers: list[Any] = []
        for index, layer in enumerate(prompt_layers):
            if isinstance(layer, LinearAttentionLayer | LateStateLayer):
                self._states[index] = RowStates(layer, streams)
                layers.append(self._states[index].layer)
            elif not _has_columns(layer):
                late = streams is not None and isinstance(layer, LateSharedLayer)
                layers.append(LateSharedLayer(layer.own, streams) if late else layer)
            else:
                late = streams is not None and isinstance(layer, LateLayer)
                self._rows[index] = LateRowLayer(streams, layer) if late else RowLayer(self.full, layer)
                layers.append(self._rows[index])
        super().__init__(layers=layers)

    def make_room(self, rows: int, columns: int, cf_columns: int) -> None:
        """Make room for this number of rows and of columns of each stream; grow in steps."""
        for stream, wanted in ((self.full, columns), (self.cf, cf_columns)):
            if stream is not None and (rows > stream.room[0] or wanted > stream.room[1]):
                stream.make_room(max(rows, stream.room[0]), max(math.ceil(wanted / ROOM) * ROOM, stream.room[1]))
                for layer in self._layers_of(stream):
                    layer.make_room()

    def join(self, prompt: DynamicCache, mask: Tensor, new_tokens: int = 0, in_all: int = 0) -> None:
        """Append the rows of a prompt.

        Args:
            prompt: their cache.
            mask: `[G, S]`, 0 at padding.
            new_tokens: further columns that each row will need, if known.
            in_all: total number of rows that will join, if known.
        """
        late = _first_late(prompt)
        rows, (group, columns) = len(self.full.lengths), mask.shape
        cf_columns = 0 if late is None else late.streams.cf_rows
        self.make_room(max(rows + group, in_all), columns + new_tokens, cf_columns + new_tokens)
        own = torch.arange(columns, device=mask.device).expand(group, -1)
        places = self.full.place(own, mask.bool(), columns)
        if late is not None and self.cf is not None:
            live = late.streams.seen()
            self.cf.place(late.streams.rows, True if live is None else live, columns)
        prompt_layers: list[Any] = prompt.layers
        for index, layer in self._rows.items():
            new = prompt_layers[index]
            layer.place(places, new.keys, new.values)
            if isinstance(layer, LateRowLayer):
                layer.cf.place(places, *new.cf_rows())
        for index, states in self._states.items():
            states.join(prompt_layers[index])

    def keep(self, rows: Sequence[int]) -> None:
        """Remove all rows but these; they get the first places, in this order."""
        moved = [(place, row) for place, row in enumerate(rows) if place != row]
        places, sources = torch.tensor(moved, device=self.full.newest.device, dtype=torch.long).reshape(-1, 2).unbind(1)
        for stream in (self.full, self.cf):
            if stream is not None:
                stream.keep(rows, places, sources)
                for layer in self._layers_of(stream) if moved else ():
                    layer.move(places, sources)
        for states in self._states.values():
            states.keep(rows)

    def count(self) -> None:
        """Count one more token in each row, and make room for it."""
        for stream in (self.full, self.cf):
            if stream is not None:
                stream.count()
        self.make_room(0, *(max(stream.lengths) if stream else 0 for stream in (self.full, self.cf)))

    def _layers_of(self, stream: RowStream) -> list[RowLayer]:
        if stream is self.full:
            return [*self._rows.values()]
        return [layer.cf for layer in self._rows.values() if isinstance(layer, LateRowLayer)]


def _first_late(prompt: DynamicCache) -> Any:
    """Return one of the late layers, which have both streams; None without a fork."""
    late = LateLayer | LateStateLayer | LateSharedLayer
    return next((layer for layer in prompt.layers if isinstance(layer, late)), None)


def _has_columns(layer: Any) -> bool:
    return not isinstance(layer, LinearAttentionLayer | LateStateLayer | DummyLayer)
