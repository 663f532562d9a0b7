"""The rows of the CF stream, which rows they see, and how a forward pass packs them after the full stream's.

The full stream keeps the model's own mask. A row of the CF stream sees another one if the model's mask allows it for
their positions. Image positions have no row in the CF stream, so Eq. 2 of the paper needs no further masking.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from sira_cli.core.streams import StreamRows


def text_rows(image: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of the CF stream: every position that is neither image nor padding, right-aligned.

    `[B, S]` bool each, P_img and not padding -> positions `[B, T]`, and which are live `[B, T]`. T is the largest
    number of text tokens; shorter prompts are filled on the left with their last position, which always has something
    to attend to, so that fillers stay finite.
    """
    text = valid & ~image  # [B, S]
    longest = int(text.sum(dim=1).max())  # T
    order = text.to(torch.int8).argsort(dim=1, stable=True)  # dropped positions first, then text in order
    rows = order[:, -longest:]
    live = text.gather(1, rows)
    return torch.where(live, rows, image.shape[1] - 1), live


def valid_rows(mask: object, input_ids: Tensor) -> Tensor:
    """Return the positions of a prompt that are not padding, `[B, S]` bool; in a 4-D mask they see themselves."""
    if not isinstance(mask, Tensor):
        return torch.ones_like(input_ids, dtype=torch.bool)
    if mask.ndim == 4:
        diagonal = mask[:, 0].diagonal(dim1=1, dim2=2)  # [B or 1, S]
        mask = diagonal if diagonal.dtype == torch.bool else diagonal == 0
    return mask.bool().expand(len(input_ids), -1)


def has_rows(part: object, batch: int, q: int) -> bool:
    """Return whether an argument of a layer has a row per token, `[B or 1, q, ...]`.

    Not None in layers without positions, nor positions for several axes, `[3, B, q]`.
    """
    if not isinstance(part, Tensor) or part.ndim < 2:
        return False
    return part.shape[0] in (1, batch) and part.shape[1] == q


def pack_rows(rows: Tensor, cf_rows: Tensor | None) -> Tensor:
    """Append the CF stream's rows: `[B or 1, q, ...]` -> `[B, q + T, ...]`.

    Args:
        rows: of the full stream.
        cf_rows: `[B, T]` positions of the CF stream's rows; None: all rows.
    """
    if cf_rows is None:
        return torch.cat([rows, rows], dim=1)
    full = rows.expand(len(cf_rows), *rows.shape[1:])
    return torch.cat([full, take_rows(rows, cf_rows)], dim=1)


def take_rows(rows: Tensor, cf_rows: Tensor) -> Tensor:
    """Take only the CF stream's rows: `[B or 1, q, ...]`, `[B, T]` -> `[B, T, ...]`."""
    width = rows.shape[2:]
    index = cf_rows.to(rows.device)
    for _ in width:
        index = index.unsqueeze(-1)
    index = index.expand(*cf_rows.shape, *width)
    rows = rows.expand(len(cf_rows), *rows.shape[1:])
    return rows.gather(1, index)


def cf_columns(model_mask: Tensor | None, streams: StreamRows) -> Tensor:
    """Return the full stream's columns of the CF stream's rows, `[B, N]` (any, for rows before a sliding window)."""
    positions = streams.positions()  # [B, N]
    if model_mask is None:
        return positions
    kv = model_mask.shape[-1]
    return (positions - streams.first_column(kv)).clamp(0, kv - 1)


def cf_mask(
    model_mask: Tensor | None, streams: StreamRows, rows: Tensor, visible: Tensor | None = None
) -> Tensor | None:
    """Build the CF stream's mask from the model's mask at the positions of its rows.

    Args:
        model_mask: None (causal, nothing padded), bool or additive float `[B or 1, H, q, kv]`; its last row belongs to
            the newest position.
        streams: all N rows so far.
        rows: `[B, R]` positions of the newest rows, the queries.
        visible: `[B, T]`, of the prompt's CF rows; None: all but fillers.

    Returns:
        the same kind as `model_mask`, `[B, H, R, N]`; for None: None if all is visible, else bool.
    """
    seen = streams.seen(visible)  # [B, N]
    if model_mask is None:
        if seen is None:
            return None
        causal = streams.positions()[:, None, :] <= rows[:, :, None]  # [B, R, N]
        return (seen[:, None, :] & causal)[:, None]

    batch, queries = rows.shape
    heads, q, kv = model_mask.shape[1:]
    positions = streams.positions()  # [B, N]
    row = rows - (streams.full_rows - q)  # [B, R] which row of the model's mask
    column = positions - streams.first_column(kv)  # [B, N] which column
    index = column.clamp(0, kv - 1)  # [B, N]
    picked = model_mask.to(rows.device).expand(batch, heads, q, kv)
    of_rows = row[:, None, :, None].expand(batch, heads, queries, kv)
    picked = picked.gather(2, of_rows)
    of_columns = index[:, None, None, :].expand(batch, heads, queries, -1)
    picked = picked.gather(3, of_columns)
    visible = index == column  # [B, N]; nothing outside a sliding window
    if seen is not None:
        visible = visible & seen
    visible = visible[:, None, None, :]
    if picked.dtype == torch.bool:
        return picked & visible
    return picked.masked_fill(~visible, torch.finfo(picked.dtype).min)


@dataclass
class Pass:
    """One forward pass of the model under way."""

    q: int  # number of rows of the full stream
    # [B, T] positions of the rows that form the CF stream; None in a decoding step, with its one row
    cf_rows: Tensor | None
    live: Tensor | None  # [B, T] False at fillers; None in a decoding step
    cache: Cache | None = None  # the key/value cache of the request, from layer b on; None without a cache
    streams: StreamRows = field(init=False)  # all rows of the request so far, from layer b on
    recorded: bool = False  # whether the caller asked for hidden states or attention weights, which need all rows
    normed: Tensor | None = None  # [B, q, d] the full stream's rows after the final norm, of a recorded prompt
    whole: int | None = None  # rows of the full stream before `keep_last` reduced them to one; None: not reduced
    texts: int = 0  # B, from layer b on
    # the model's tensors (cosines and sines of positions, masks) with their packed versions; an entry keeps its
    # tensor, so that no other one gets its id
    packed: dict[int, tuple[Tensor | None, Any]] = field(default_factory=dict)
    # the arguments that late layers were called with, and the same for both streams: most layers share them
    calls: list[tuple[tuple[Any, ...], Any]] = field(default_factory=list)

    @property
    def both_rows(self) -> int:
        """q + T, the number of rows of both streams in a late layer."""
        count = 1 if self.cf_rows is None else self.cf_rows.shape[1]
        return self.q + count

    def newest(self) -> Tensor:
        """Return the positions of this pass's rows of the CF stream, `[B, T]`."""
        return self.streams.newest() if self.cf_rows is None else self.cf_rows

    def columns(self) -> Tensor:
        """Return the full stream's column of each packed row, `[B, q + T]`: the position of a row in its text."""
        newest = self.newest()  # [B, T]
        first = self.streams.full_rows - self.q
        full = first + torch.arange(self.q, device=newest.device)
        full = full.expand(len(newest), -1)
        return torch.cat([full, newest], dim=1)

    def prompt_streams(self) -> StreamRows:
        """Return the streams of a new prompt."""
        assert self.cf_rows is not None
        fillers = self.live is not None and not bool(self.live.all())
        return StreamRows(self.cf_rows, self.live if fillers else None, self.q)

    def keep_last(self) -> None:
        """Continue as in a decoding step, with the newest row of each stream."""
        self.whole = self.q
        self.q = 1
        self.cf_rows = None
        self.live = None
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
        return has_rows(rows, self.texts, self.q)

    def pack(self, rows: Any) -> Any:
        """Append the CF stream's rows to a tensor with one row per token of the full stream, `[B or 1, q, ...]`.

        A tuple of such tensors is packed one by one; anything else is unchanged (`has_rows`).
        """
        if isinstance(rows, tuple):
            return tuple(map(self.pack, rows))
        if not has_rows(rows, self.texts, self.q):
            return rows
        if id(rows) not in self.packed:
            # A step's one row takes part in both streams: for it no more calls than needed.
            packed = torch.cat([rows, rows], 1) if self.cf_rows is None else pack_rows(rows, self.cf_rows)
            self.packed[id(rows)] = (rows, packed)
        return self.packed[id(rows)][1]

    def once(self, source: Tensor | None, pack: Callable[[], Any]) -> Any:
        """Return `source`, packed once by `pack`: layers share masks and embeddings."""
        if id(source) not in self.packed:
            self.packed[id(source)] = (source, pack())
        return self.packed[id(source)][1]
