"""One forward pass of a model under a fork: the state that its hooks share, and its logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from sira_cli.core.masks import has_rows, pack_rows
from sira_cli.core.streams import Streams

VIEWS = ("full", "cf", "contrast")  # the logits of a Step


@dataclass(frozen=True)
class Step:
    """The logits of one decoding step, float32 `[B, V]` each (B counts beams and returned sequences).

    `contrast` = (1 + alpha) full - alpha cf (paper, Eq. 4), before the plausibility cut-off if one is set.
    """

    full: Tensor
    cf: Tensor
    contrast: Tensor


OnStep = Callable[[Step], None]


@dataclass
class Pass:
    """One forward pass of the model under way.

    Attributes:
        q: number of rows of the full stream.
        cf_rows: `[B, T]` positions of the rows that form the CF stream; None in a decoding step, with its one row.
        live: `[B, T]` False at fillers; None in a decoding step.
        cache: the key/value cache of the request, from layer b on; None without a cache.
        streams: all rows of the request so far, from layer b on.
        recorded: whether the caller asked for hidden states or attention weights, which need all rows.
        whole: rows of the full stream before `keep_last` reduced them to one; None: not reduced.
        packed: the model's tensors (cosines and sines of positions, masks) with their packed versions.
        calls: the arguments that late layers were called with, and the same for both streams: most layers share them.
    """

    q: int
    cf_rows: Tensor | None
    live: Tensor | None
    cache: Cache | None = None
    streams: Streams = field(init=False)
    recorded: bool = False
    whole: int | None = None
    packed: list[tuple[Tensor | None, Any]] = field(default_factory=list)
    calls: list[tuple[tuple[Any, ...], Any]] = field(default_factory=list)

    def newest(self) -> Tensor:
        """Return the positions of this pass's rows of the CF stream, `[B, T]`."""
        return self.streams.newest() if self.cf_rows is None else self.cf_rows

    def slices(self) -> tuple[slice, slice]:
        """Return the packed rows of the full stream, and those of the CF stream."""
        return slice(0, self.q), slice(self.q, None)

    def columns(self) -> Tensor:
        """Return the full stream's column of each packed row, `[B, q + T]`: the position of a row in its text."""
        newest = self.newest()  # [B, T]
        full = self.streams.rows_before(self.q) + torch.arange(self.q, device=newest.device)
        return torch.cat([full.expand(len(newest), -1), newest], dim=1)

    def prompt_streams(self) -> Streams:
        """Return the streams of a new prompt."""
        assert self.cf_rows is not None
        fillers = self.live is not None and not bool(self.live.all())
        return Streams(self.cf_rows, self.live if fillers else None, self.q)

    def keep_last(self) -> None:
        """Continue as in a decoding step, with the newest row of each stream."""
        self.whole, self.q, self.cf_rows, self.live = self.q, 1, None, None
        self.packed.clear()
        self.calls.clear()

    def last(self, rows: Any) -> Any:
        """Keep the last row of arguments with a row per prompt row; tensors and tuples as in `pack`."""
        if isinstance(rows, tuple):
            return tuple(map(self.last, rows))
        if not isinstance(rows, Tensor) or rows.shape[1] != self.whole:
            return rows
        return self.once(rows, lambda: rows[:, -1:])

    def has_rows(self, rows: object) -> bool:
        """Return whether an argument of a layer has a row per token of the full stream, `[B or 1, q, ...]`."""
        texts = len(self.streams.rows if self.cf_rows is None else self.cf_rows)  # B, without a tensor for it
        return has_rows(rows, texts, self.q)

    def pack(self, rows: Any) -> Any:
        """Append the CF stream's rows to a tensor with one row per token of the full stream, `[B or 1, q, ...]`.

        A tuple of such tensors is packed one by one; anything else is unchanged (`has_rows`).
        """
        if isinstance(rows, tuple):
            return tuple(map(self.pack, rows))
        if not self.has_rows(rows):
            return rows
        return self.once(rows, lambda: pack_rows(rows, self.cf_rows))

    def once(self, source: Tensor | None, pack: Callable[[], Any]) -> Any:
        """Return `source`, packed once by `pack`: layers share masks and embeddings."""
        for known, packed in self.packed:
            if known is source:
                return packed
        self.packed.append((source, pack()))
        return self.packed[-1][1]
