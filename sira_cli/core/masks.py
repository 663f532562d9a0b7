"""The rows of the CF stream, and which rows they see: pure functions.

The full stream keeps the model's own mask. A row of the CF stream sees another one if the model's mask allows it for
their positions. Image positions have no row in the CF stream, so Eq. 2 of the paper needs no further masking.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sira_cli.core.streams import Streams


def text_rows(image: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of the CF stream: every position that is neither image nor padding, right-aligned.

    Args:
        image: `[B, S]` bool, P_img.
        valid: `[B, S]` bool, False at padding.

    Returns:
        rows: `[B, T]` positions, T the largest number of text tokens in a prompt. Shorter prompts are filled
            on the left with their last position: it always has something to attend to, so fillers stay finite.
        live: `[B, T]` bool, False at fillers.
    """
    text = valid & ~image  # [B, S]
    longest = int(text.sum(dim=1).max())  # T
    order = text.to(torch.int8).argsort(dim=1, stable=True)  # dropped positions first, then text in order
    rows = order[:, -longest:]
    live = text.gather(1, rows)
    return torch.where(live, rows, image.shape[1] - 1), live


def valid_rows(mask: object, input_ids: Tensor) -> Tensor:
    """Return the positions of a prompt that are not padding, from its attention mask: `[B, S]` bool.

    Args:
        mask: the model's argument: None, `[B, S]`, or `[B or 1, 1, S, kv]`, in which every position except padding sees
            itself.
        input_ids: `[B, S]`.
    """
    if not isinstance(mask, Tensor):
        return torch.ones_like(input_ids, dtype=torch.bool)
    if mask.ndim == 4:
        own = mask[:, 0].diagonal(dim1=1, dim2=2)  # [B or 1, S]
        mask = own if own.dtype == torch.bool else own == 0
    return mask.bool().expand(len(input_ids), -1)


def has_rows(part: object, batch: int, q: int) -> bool:
    """Return whether an argument of a layer has a row per token, `[B or 1, q, ...]`.

    Not None in layers without positions, nor positions for several axes, `[3, B, q]`.
    """
    return isinstance(part, Tensor) and part.ndim > 1 and part.shape[0] in (1, batch) and part.shape[1] == q


def pack_rows(rows: Tensor, cf_rows: Tensor | None) -> Tensor:
    """Append the CF stream's rows: `[B or 1, q, ...]` -> `[B, q + T, ...]`.

    Args:
        rows: hidden states, cosines or sines of rotary positions, or anything else with one row per position.
        cf_rows: `[B, T]` positions of the CF rows; None: all rows.
    """
    if cf_rows is None:
        return torch.cat([rows, rows], dim=1)
    return torch.cat([rows.expand(len(cf_rows), *rows.shape[1:]), take_rows(rows, cf_rows)], dim=1)


def take_rows(rows: Tensor, cf_rows: Tensor) -> Tensor:
    """Take only the CF stream's rows: `[B or 1, q, ...]`, `[B, T]` -> `[B, T, ...]`."""
    width = rows.shape[2:]
    index = cf_rows.to(rows.device).view(*cf_rows.shape, *(1 for _ in width)).expand(*cf_rows.shape, *width)
    return rows.expand(len(cf_rows), *rows.shape[1:]).gather(1, index)


def cf_columns(model_mask: Tensor | None, streams: Streams) -> Tensor:
    """Return the full stream's columns that hold the rows of the CF stream, `[B, N]`.

    Args:
        model_mask: the layer's own mask, as wide as its keys; None: it has all keys.
        streams: with the newest rows already counted. Rows that have left a sliding window get any column: the CF
            stream's mask hides them.
    """
    positions = streams.positions()  # [B, N]
    if model_mask is None:
        return positions
    kv = model_mask.shape[-1]
    return (positions - streams.first_column(kv)).clamp(0, kv - 1)


def cf_mask(model_mask: Tensor | None, streams: Streams, rows: Tensor, visible: Tensor | None = None) -> Tensor | None:
    """Build the CF stream's mask from the model's mask at the positions of its rows.

    Args:
        model_mask: the layer's own mask: None (causal, nothing padded), bool or additive float
            `[B or 1, H, q, kv]`, whose last row belongs to the newest position.
        streams: with the newest rows already counted.
        rows: `[B, R]` positions of the newest rows, the queries.
        visible: `[B, T]` the prompt's CF rows that they may see; default: all but the fillers.

    Returns:
        `[B, H, R, N]` of the same kind as `model_mask`; N counts all rows of the CF stream so far. For None: None if
        everything is visible, else bool `[B, 1, R, N]`.
    """
    seen = streams.seen(visible)  # [B, N]
    if model_mask is None:
        if seen is None:
            return None
        causal = streams.positions()[:, None, :] <= rows[:, :, None]  # [B, R, N]
        return (seen[:, None, :] & causal)[:, None]

    batch, (heads, q, kv) = len(rows), model_mask.shape[1:]
    positions = streams.positions()  # [B, N]
    row = rows - streams.rows_before(q)  # [B, R] which row of the model's mask
    column = positions - streams.first_column(kv)  # [B, N] which column
    index = column.clamp(0, kv - 1)  # [B, N]
    picked = model_mask.to(rows.device).expand(batch, heads, q, kv)
    picked = picked.gather(2, row[:, None, :, None].expand(batch, heads, rows.shape[1], kv))
    picked = picked.gather(3, index[:, None, None, :].expand(batch, heads, rows.shape[1], positions.shape[1]))
    visible = index == column if seen is None else (index == column) & seen  # [B, N]; nothing outside a sliding window
    if picked.dtype == torch.bool:
        return picked & visible[:, None, None, :]
    return picked.masked_fill(~visible[:, None, None, :], torch.finfo(picked.dtype).min)
