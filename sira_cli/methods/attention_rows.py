"""Attention weights of a pass's last rows, computed again: sdpa does not return them, and eager attention for a whole
prompt would cost memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from sira_cli.core.arguments import Kwargs, cache_of, hidden_of, mask_name, with_cache, with_hidden
from sira_cli.core.upstream import attention_of, set_attention
from sira_cli.errors import UnsupportedModelError


def attention_rows(attention: Any, kwargs: Kwargs, rows: int, method: str) -> Tensor:
    """Return the weights of the last `rows` query rows, `[B, H, rows, kv]` float32, each row's sum 1.

    Call it in a forward hook of the attention module, when its keys are in the cache.
    """
    cache = cache_of((), kwargs)
    hidden = hidden_of(attention, (), kwargs)
    if cache is None:
        raise UnsupportedModelError(f"method {method} reads keys from the cache: leave out use_cache=False")
    if hidden is None:
        raise UnsupportedModelError(
            f"method {method} does not know how {type(attention).__name__} gets its hidden states"
        )
    stored = cache.layers[attention.layer_idx]
    name = mask_name(attention, kwargs)
    mask = kwargs[name]
    if mask is not None:
        mask = mask[:, :, -rows:]  # [B or 1, 1, rows, kv]
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=hidden.dtype).masked_fill(~mask, torch.finfo(hidden.dtype).min)
    turns = kwargs["position_embeddings"]  # None in layers without positions
    _, last_rows = with_hidden(attention, (), kwargs, hidden[:, -rows:])  # [B, rows, d]
    last_rows |= {
        "position_embeddings": None if turns is None else tuple(part[..., -rows:, :] for part in turns),
        name: mask,
    }
    # the keys and values of these rows are in the cache already: nothing is added
    last_rows = with_cache(last_rows, SimpleNamespace(update=lambda *args, **more: (stored.keys, stored.values)))
    if isinstance(kwargs.get("position_ids"), Tensor):
        last_rows["position_ids"] = kwargs["position_ids"][..., -rows:]
    config = attention.config
    implementation = attention_of(config)
    set_attention(config, "eager")
    try:
        weights: Tensor = attention.forward(**last_rows)[1]  # not called as a module, which would run the hooks again
    finally:
        set_attention(config, implementation)
    return weights.float()
