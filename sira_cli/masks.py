"""Which rows go on as the CF stream, and who sees whom: pure functions.

A query row of the late layers sees a slot of their cache if both are of one stream and the model's own
mask lets the row's position see the slot's position (paper, Eq. 2: the image positions are in no slot of
the CF stream, so nothing more has to be masked).
"""

from __future__ import annotations

import torch
from torch import Tensor

from sira_cli.cache import Slots


def text_rows(image: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the CF stream: every position that is neither image nor padding, right-aligned.

    Args:
        image: `[B, S]` bool, P_img.
        valid: `[B, S]` bool, False at padding.

    Returns:
        rows: `[B, T]` positions, T the largest number of text tokens in a row. Shorter rows are filled
            up on the left with the last position, which always has something to attend to, so
            that fillers stay finite.
        live: `[B, T]` bool, False at fillers.
    """
    text = valid & ~image  # [B, S]
    longest = int(text.sum(dim=1).max())  # T
    order = text.to(torch.int8).argsort(dim=1, stable=True)  # dropped positions first, then text in order
    rows = order[:, -longest:]
    live = text.gather(1, rows)
    return torch.where(live, rows, image.shape[1] - 1), live


def pack_rows(rows: Tensor, cf_rows: Tensor | None) -> Tensor:
    """The rows of both streams: `[B or 1, q, d]` -> `[B, q + T, d]`.

    Args:
        rows: hidden states, or cosines or sines of rotary positions, one row a position.
        cf_rows: `[B, T]` which rows go on as CF rows; None: all of them.
    """
    if cf_rows is None:
        return torch.cat([rows, rows], dim=1)
    rows = rows.expand(len(cf_rows), -1, -1)
    index = cf_rows.to(rows.device)[:, :, None].expand(-1, -1, rows.shape[2])
    return torch.cat([rows, rows.gather(1, index)], dim=1)


def pack_mask(model_mask: Tensor | None, slots: Slots, streams: Tensor) -> Tensor:
    """The mask of the R newest slots, as query rows, over all N slots.

    Args:
        model_mask: the layer's own mask: None (causal, nothing padded), bool or additive float
            `[B or 1, H, q, kv]`, whose last row and column belong to the newest position.
        slots: with the R query rows already appended.
        streams: `[R]` FULL or CF for each query row.

    Returns:
        `[B, H, R, N]` of the same kind as `model_mask`; bool `[B, 1, R, N]` for None.
    """
    same_stream = slots.visible[:, streams]  # [B, R, N]
    query = slots.position[:, -len(streams) :]  # [B, R]
    if model_mask is None:
        causal = slots.position[:, None, :] <= query[:, :, None]  # [B, R, N]
        return (same_stream & causal)[:, None]

    batch, (heads, q, kv) = len(query), model_mask.shape[1:]
    row = query - (slots.full_rows - q)  # [B, R] row of the model's mask
    column = slots.position - (slots.full_rows - kv)  # [B, N] its column; < 0: outside a sliding window
    picked = model_mask.to(query.device).expand(batch, heads, q, kv)
    picked = picked.gather(2, row[:, None, :, None].expand(batch, heads, len(streams), kv))
    picked = picked.gather(3, column.clamp(min=0)[:, None, None, :].expand(batch, heads, len(streams), len(slots)))
    seen = (same_stream & (column >= 0)[:, None, :])[:, None]  # [B, 1, R, N]
    if picked.dtype == torch.bool:
        return picked & seen
    return picked.masked_fill(~seen, torch.finfo(picked.dtype).min)
