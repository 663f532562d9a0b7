"""Queries scaled by their column (Llama 4's layers without rotary positions: `attn_temperature_tuning`).

The model counts the rows of a call for this, but under a fork these are rows of two streams. So its own scaling is
switched off meanwhile, and queries are scaled here: those of the CF stream by the columns of their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sira_cli.core.hooks import Removable


class _Off:
    """An attention module without its own scaling, until it is restored."""

    def __init__(self, attention: Any) -> None:
        self._attention = attention
        attention.attn_temperature_tuning = False

    def remove(self) -> None:
        self._attention.attn_temperature_tuning = True


def scaled_by_column(attentions: Sequence[Any], columns: Callable[[], Tensor]) -> Iterator[Removable]:
    """Scale queries by given columns, if their module scales them; yield a handle for each change.

    Args:
        attentions: token mixers of any kind.
        columns: returns the column of each row of the running call, `[B or 1, rows]`.
    """
    for attention in attentions:
        if not getattr(attention, "attn_temperature_tuning", False) or attention.use_rope:
            continue

        def scale(projection: nn.Module, args: tuple[Any, ...], queries: Tensor, of: Any = attention) -> Tensor:
            steps = torch.floor((columns().to(queries.device).float() + 1.0) / of.floor_scale)
            scales: Tensor = torch.log1p(steps) * of.attn_scale + 1.0  # [B or 1, rows]
            return (queries * scales[..., None]).to(queries.dtype)

        yield _Off(attention)
        yield attention.q_proj.register_forward_hook(scale)
