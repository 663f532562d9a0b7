"""The key/value cache of the late layers: the full stream and the CF stream, each of its own length.

The shared layers 0..b-1 keep the model's own cache, which both streams read. Each of the layers b..L-1 gets a
`LateLayer`, which holds the full stream and, apart from it, the CF stream with its text rows only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)

from sira_cli.core.arguments import CACHE
from sira_cli.core.families import Mixer
from sira_cli.core.indexed import LateIndexedLayer
from sira_cli.core.recurrent import LateStateLayer
from sira_cli.core.streams import LateRows, StreamRows
from sira_cli.core.upstream import DummyLayer
from sira_cli.errors import AttachError, UnsupportedModelError

ROOM = 64  # columns that a cache grows by at a time


class RoomyLayer(DynamicLayer):
    """Keys and values with room for more columns: a decoding step writes its own and copies none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # not annotated upstream
        self._rooms: dict[str, tuple[Tensor, Tensor]] = {}  # for keys and values: the columns in use, and all columns

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append `[B, H, q, D]`, and return all so far, `[B, H, N, D]`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = self._appended("keys", self.keys, key_states)
        self.values = self._appended("values", self.values, value_states)
        return self.keys, self.values

    def _appended(self, name: str, stored: Any, new: Tensor) -> Tensor:
        if not stored.numel():
            return new
        columns = stored.shape[2]
        more = columns + new.shape[2]
        used, room = self._rooms.get(name, (None, new))
        if used is not stored or more > room.shape[2]:  # not the columns written last: beams, or rows that left
            room = new.new_empty(*new.shape[:2], more + ROOM, new.shape[3])
            room[:, :, :columns] = stored
        room[:, :, columns:more] = new
        used = room[:, :, :more]
        self._rooms[name] = used, room
        return used


class LateLayer(LateRows, RoomyLayer):
    """Keys and values of both streams for one of the K late layers.

    To transformers it looks like the full stream alone. It never slides: one window cannot serve both streams.
    """

    def __init__(self, own: DynamicLayer, streams: StreamRows) -> None:
        super().__init__()
        self.own = own  # the model's own layer, which this one replaces
        self.streams = streams  # both streams' rows
        self.cf = RoomyLayer()  # keys and values of the CF stream
        self._both: dict[str, tuple[Tensor, Tensor, Tensor, int]] = {}

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append `[B, H, q + T, D]`, the full stream's rows first; return all of the full stream, `[B, H, N, D]`."""
        streams = self.streams
        own: Any = self
        filled = self.is_initialized and bool(own.keys.numel())
        columns = own.keys.shape[2] if filled else 0
        cf_columns = own.cf.keys.shape[2] if filled else 0
        steps = streams.steps  # in a step no properties are called: they would cost each layer two calls
        new = (streams.prompt + steps - columns, streams.rows.shape[1] + steps - cf_columns)
        if key_states.shape[2] != sum(new):
            raise AttachError(
                f"{key_states.shape[2]} rows arrived at a late layer's cache, not {new[0]} and {new[1]} of the two "
                "streams: a cache filled inside `with attach(...)` cannot be used outside of it"
            )
        if new == (1, 1) and filled:  # a decoding step
            self._append({"keys": key_states, "values": value_states})
            return own.keys, own.values
        full_keys, cf_keys = key_states.split_with_sizes(new, 2)
        full_values, cf_values = value_states.split_with_sizes(new, 2)
        self.cf.update(cf_keys, cf_values)
        return super().update(full_keys, full_values, *args, **kwargs)

    def _append(self, new: dict[str, Tensor]) -> None:
        """Append a row to each stream, `[B, H, 2, D]`, with one copy: both are in one tensor, the CF stream last."""
        for name, rows in new.items():
            full = getattr(self, name)
            cf = getattr(self.cf, name)
            column = full.shape[2]
            cf_columns = cf.shape[2]
            # start: first column of the CF stream
            used, cf_used, room, start = self._both.get(name, (None, None, rows, 0))
            if used is not full or cf_used is not cf or column == start or start + cf_columns == room.shape[2]:
                start = column + ROOM
                room = rows.new_empty(*rows.shape[:2], start + cf_columns + ROOM, rows.shape[3])
                room[:, :, :column] = full
                room[:, :, start : start + cf_columns] = cf
            cf_column = start + cf_columns
            room[:, :, column : cf_column + 1 : cf_column - column] = rows
            used = room[:, :, : column + 1]
            cf_used = room[:, :, start : cf_column + 1]
            self._both[name] = used, cf_used, room, start
            setattr(self, name, used)
            setattr(self.cf, name, cf_used)


class LateSharedLayer(DummyLayer):
    """A late layer that reads another layer's keys and values. `own` as for `LateLayer`."""

    def __init__(self, own: DynamicLayer | DummyLayer, streams: StreamRows) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # not annotated upstream
        self.own = own
        self.streams = streams


def own_layer(layer: Any) -> Any:
    """Return the model's own layer: the one that a late layer replaced, or the layer itself."""
    return getattr(layer, "own", layer)


def share_layers(cache: Cache, boundary: int, mixers: Sequence[Mixer]) -> None:
    """Make the first layers of an empty cache ordinary again, if an earlier fork with a larger K used them."""
    if not isinstance(cache, DynamicCache) or cache.offloading:
        name = "an offloaded cache" if isinstance(cache, DynamicCache) else f"a {type(cache).__name__}"
        raise UnsupportedModelError(
            f"{name} is not supported, only one that grows (DynamicCache): leave out cache_implementation"
        )
    if not cache.layers and not all(mixer.plain for mixer in mixers):
        state = "a recurrent state" if any(mixer.recurrent for mixer in mixers) else "an indexer"
        raise UnsupportedModelError(
            f"this {type(cache).__name__} does not know which layers of the model have {state}: leave out "
            f"{CACHE}, or make it from the model's config, DynamicCache(config=model.config)"
        )
    cache.layers[:boundary] = map(own_layer, cache.layers[:boundary])


def open_streams(cache: Cache | None, boundary: int, layers: int, streams: StreamRows) -> None:
    """Prepare layers b..L-1 of an empty `cache` for both streams of a new prompt. Without a cache, do nothing."""
    if cache is None:
        return
    while len(cache.layers) < layers:
        cache.layers.append(DynamicLayer())
    late = [_late_layer(own_layer(layer), streams) for layer in cache.layers[boundary:layers]]
    cache.layers[boundary:layers] = late


# An empty layer for both streams takes the place of an empty one of the model's own, by its type.
_LATE: dict[type, Any] = {
    **dict.fromkeys((DynamicLayer, DynamicSlidingWindowLayer, RoomyLayer), LateLayer),
    LinearAttentionLayer: LateStateLayer,
    DynamicIndexedLayer: LateIndexedLayer,
    DummyLayer: LateSharedLayer,
}


def _late_layer(layer: Any, streams: StreamRows) -> Any:
    if type(layer) not in _LATE:
        raise UnsupportedModelError(f"a cache with a {type(layer).__name__} is not supported: use a DynamicCache")
    return _LATE[type(layer)](layer, streams)


def cut_back(cache: Cache, texts: Tensor, columns: int) -> DynamicCache | None:
    """Return the first columns (full-stream rows) of texts `[T]` as a new cache; None if it no longer has them.

    A recurrent state has no columns, so a cache with one cannot be cut back.
    """
    streams: dict[int, StreamRows] = {}  # all late layers share one

    def cut(layer: Any) -> Any:
        if not isinstance(layer, LateLayer | LateSharedLayer):
            return _plain(layer, texts, 0, columns)
        if id(layer.streams) not in streams:
            streams[id(layer.streams)] = layer.streams.cut_back(texts, columns)
        now = streams[id(layer.streams)]
        kind: Any = type(layer)
        late = kind(layer.own, now)
        if isinstance(layer, LateLayer):
            _fill(late, layer, texts, 0, columns)
            _fill(late.cf, layer.cf, texts, 0, now.cf_rows)
        return late

    return _new_cache(map(cut, cache.layers))


def full_stream(cache: Cache, text: int, first: int, last: int) -> DynamicCache | None:
    """Return columns `first` to `last` of one text's full stream as a plain cache; None if it no longer has them."""
    return _new_cache(_plain(layer, torch.tensor([text]), first, last) for layer in cache.layers)


def _new_cache(layers: Iterable[Any]) -> DynamicCache | None:
    cache = DynamicCache()
    cache.layers = list(layers)
    return None if None in cache.layers else cache


def _plain(layer: Any, texts: Tensor, first: int, last: int) -> Any:
    """Return columns of a layer's full stream as a layer of their own; None if it no longer has them."""
    if isinstance(layer, DummyLayer):
        return DummyLayer()
    if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer, RoomyLayer, LateLayer):  # others hold more
        return None
    new: Any = RoomyLayer()
    if isinstance(layer, DynamicSlidingWindowLayer):
        if layer.keys is None or int(layer.cumulative_length) != layer.keys.shape[-2]:  # the window has moved
            return None
        new = DynamicSlidingWindowLayer(layer.sliding_window)
        new.cumulative_length = last - first
    _fill(new, layer, texts, first, last)
    return new


def _fill(new: Any, old: Any, texts: Tensor, first: int, last: int) -> None:
    new.lazy_initialization(old.keys, old.values)
    index = texts.to(old.keys.device)
    new.keys = old.keys[:, :, first:last].index_select(0, index)
    new.values = old.values[:, :, first:last].index_select(0, index)


def known_streams(cache: Cache | None, boundary: int) -> StreamRows:
    """Return the streams of a cache that already holds a prompt."""
    late: Any = cache.layers[boundary] if cache is not None else None
    if not hasattr(late, "streams"):
        raise AttachError(
            f"{CACHE} was filled outside this `with attach(...)` block, so it holds no CF stream: "
            f"generate from the whole prompt, without {CACHE}"
        )
    streams: StreamRows = late.streams
    return streams
