"""Sparse attention (dots3): an indexer scores all rows that a query may see, and the query attends to the best of them.

The paper masks attention. Here a masked row cannot be chosen either: the CF stream's indexer chooses the usual number
of rows, among text rows only. So the whole module runs once per stream, each with its own cache and indexer's keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicIndexedLayer

from sira_cli.core.arguments import Args, Kwargs, hidden_of, mask_name, with_layer
from sira_cli.core.hooks import AroundModules
from sira_cli.core.masks import Pass, cf_mask, has_rows
from sira_cli.core.streams import LateRows, StreamRows
from sira_cli.errors import AttachError


class LateIndexedLayer(LateRows, DynamicIndexedLayer):
    """Keys, values and indexer's keys of both streams of a late layer. To transformers it looks like the full one."""

    def __init__(self, own: DynamicIndexedLayer, streams: StreamRows) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # not annotated upstream
        self.own = own  # the model's own layer, which this one replaces
        self.streams = streams  # both streams' rows
        self.cf = DynamicIndexedLayer()  # the CF stream's layer

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append the full stream's rows, `[B, H, q, D]`, and return all so far."""
        new = self.streams.full_rows - self.get_seq_length()
        if key_states.shape[2] != new:
            raise AttachError(
                f"{key_states.shape[2]} rows arrived at a late layer's cache, not {new}: "
                "a cache filled inside `with attach(...)` cannot be used outside of it"
            )
        return super().update(key_states, value_states, *args, **kwargs)


class TwoChoices(AroundModules):
    """The hooks by which an attention module with an indexer runs once per stream."""

    _cf: dict[str, Any]  # arguments for the CF stream while the full one runs

    def before(self, attention: Any, args: Args, kwargs: Kwargs) -> Any:
        """Before the module: keep the full stream's rows."""
        now: Pass = self.running()
        batch, rows = hidden_of(attention, args, kwargs).shape[:2]  # B, q + T
        mask = mask_name(attention, kwargs)

        def part(argument: Any, stream: slice) -> Any:
            if isinstance(argument, tuple):
                return tuple(part(element, stream) for element in argument)
            return argument[:, stream] if has_rows(argument, batch, rows) else argument

        full = {mask: kwargs[mask]}
        self._cf = {}
        for name, argument in kwargs.items():
            if name != mask:
                full[name] = part(argument, slice(now.q))
                self._cf[name] = part(argument, slice(now.q, None))
        return args, full

    def after(self, attention: Any, args: Args, kwargs: Kwargs, output: Any) -> Any:
        """After the module: run the CF stream, and join the rows of both as the layer expects them."""
        now: Pass = self.running()
        cf = self._cf
        self._cf = {}
        name = mask_name(attention, kwargs)
        mask = kwargs[name]
        seen = now.once(mask, lambda: cf_mask(mask, now.streams, now.newest()))
        rows, *more = output  # [B, q, d]
        cf[name] = seen.to(rows.device)
        if now.cache is not None:
            cf = with_layer(cf, attention.layer_idx, now.cache.layers[attention.layer_idx].cf)
        cf_rows = attention.forward(*args, **cf)[0]  # not called as a module: that would come back here
        return (torch.cat([rows, cf_rows], dim=1), *more)
