"""The packed mask: pure functions from the model's own mask to the one the forked layers need.

The late layers' cache holds slots of two streams side by side. A slot remembers the position in the
sequence at which it was computed and the stream it belongs to. A query row sees a slot if both are of
one stream and the model's own mask lets the row's position see the slot's position (paper, Eq. 2: the
image positions are in no slot of the CF stream, so nothing more has to be masked).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FULL, CF = 0, 1


@dataclass
class Slots:
    """What the slots of the late layers' key/value cache hold. One object for all K layers.

    Attributes:
        position: `[B, N]` position in the sequence of each slot.
        visible: `[B, 2, N]` bool, which slots a row of stream FULL / CF may see. Slots that only pad
            a row with fewer text tokens than its neighbours are visible to no stream.
        full_rows: rows of the full stream so far = length of the shared layers' cache.
    """

    position: Tensor
    visible: Tensor
    full_rows: int = 0

    @classmethod
    def empty(cls, batch: int, device: torch.device) -> Slots:
        """No slots yet, for `batch` rows."""
        return cls(
            position=torch.empty(batch, 0, dtype=torch.long, device=device),
            visible=torch.empty(batch, 2, 0, dtype=torch.bool, device=device),
        )

    def __len__(self) -> int:
        return self.position.shape[1]

    def append(self, position: Tensor, visible: Tensor, full_rows: int) -> None:
        """Add the slots of one forward pass, `full_rows` of them of the full stream."""
        self.position = torch.cat([self.position, position], dim=1)  # [B, N]
        self.visible = torch.cat([self.visible, visible], dim=2)  # [B, 2, N]
        self.full_rows += full_rows


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


def pack_mask(model_mask: Tensor | None, slots: Slots, stream: Tensor) -> Tensor:
    """The mask of the R newest slots, as query rows, over all N slots.

    Args:
        model_mask: the layer's own mask: None (causal, nothing padded), bool or additive float
            `[B or 1, H, q, kv]`, whose last row and column belong to the newest position.
        slots: with the R query rows already appended.
        stream: `[R]` FULL or CF for each query row.

    Returns:
        `[B, H, R, N]` of the same kind as `model_mask`; bool `[B, 1, R, N]` for None.
    """
    same_stream = slots.visible[:, stream]  # [B, R, N]
    query = slots.position[:, -len(stream) :]  # [B, R]
    if model_mask is None:
        causal = slots.position[:, None, :] <= query[:, :, None]  # [B, R, N]
        return (same_stream & causal)[:, None]

    batch, (heads, q, kv) = len(query), model_mask.shape[1:]
    row = query - (slots.full_rows - q)  # [B, R] row of the model's mask
    column = slots.position - (slots.full_rows - kv)  # [B, N] its column; < 0: outside a sliding window
    picked = model_mask.expand(batch, heads, q, kv)
    picked = picked.gather(2, row[:, None, :, None].expand(batch, heads, len(stream), kv))
    picked = picked.gather(3, column.clamp(min=0)[:, None, None, :].expand(batch, heads, len(stream), len(slots)))
    seen = (same_stream & (column >= 0)[:, None, :])[:, None]  # [B, 1, R, N]
    if picked.dtype == torch.bool:
        return picked & seen
    return picked.masked_fill(~seen, torch.finfo(picked.dtype).min)
