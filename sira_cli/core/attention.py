"""Attention of the late layers, once per stream, by the model's own attention function.

Each stream attends to its own keys only, so the block-diagonal attention of both is two ordinary ones. The full
stream's is the same as without a fork: the same kernel, the same mask or none, grouped key/value heads not repeated.
Projections and MLPs run on the rows of both streams at once.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sira_cli.core.arguments import Args
from sira_cli.core.hooks import Removable, Undo
from sira_cli.core.last_rows import LastRows
from sira_cli.core.upstream import attention_of, sdpa_attention_forward, set_attention
from sira_cli.errors import AttachError

_NAME = "sira"
WIDEST = 256  # width of heads up to which transformers' sdpa lets torch group key/value heads


class Split(NamedTuple):
    """How the packed rows of a layer divide into the two streams."""

    q: int  # number of query rows of the full stream, which come first
    cf_mask: Tensor | None  # the CF stream's mask
    # [B, H, N, D] from the cache; None: no cache, they are the packed rows after the first q
    cf_keys: Tensor | None = None
    cf_values: Tensor | None = None
    cf_columns: Tensor | None = None  # [B, N] the CF stream's columns among the keys of a shared layer; else None
    last: LastRows | None = None  # the last row of each stream, if only these are needed; None: all rows are


# The function that attends in the place of an attached module's own; `restore` of `attend_by` removes it.
_attending: dict[nn.Module, Callable[..., tuple[Tensor, Tensor | None]]] = {}


def two_streams(modules: Mapping[int, Any], split: Callable[[int, Tensor | None], Split]) -> Removable:
    """Let attention modules attend once per stream, until the returned handle is removed."""
    places = {module: index for index, module in modules.items()}

    def attending(module: Any, attend: Any) -> Any:
        expand = getattr(module, "expand_kv", None)  # of latent attention
        divide = partial(split, places[module])
        return partial(_in_each_stream, attend, attend is sdpa_attention_forward, expand, divide)

    return attend_by(places, attending)


def attend_by(modules: Iterable[Any], function: Callable[[Any, Any], Any]) -> Removable:
    """Let attention modules attend by `function(module, its own function)`, until the returned handle is removed.

    A module finds its attention function by a name in its config, so each gets a copy of its config with our name.
    """
    configs = [(module, module.config) for module in modules]
    for module, config in configs:
        config = copy.copy(config)
        _attending[module] = function(module, _own_attention(module, attention_of(config)))
        set_attention(config, _NAME)
        module.config = config

    def restore() -> None:
        for module, config in configs:
            module.config = config
            _attending.pop(module, None)

    return Undo(restore)


def _own_attention(module: nn.Module, name: str) -> Any:
    if name == "eager":
        return sys.modules[type(module).__module__].eager_attention_forward
    return ALL_ATTENTION_FUNCTIONS[name]


def _attend(module: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    attending = _attending.get(module)
    if attending is None:
        raise AttachError(
            "this model was copied inside `with attach(...)`, and the copy belongs to no decoder: copy the model "
            "before the block, or after it"
        )
    return attending(module, *args, **kwargs)


def _in_each_stream(
    attend: Any,
    sdpa: bool,
    expand: Any,
    split: Callable[[Tensor | None], Split],
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend within each stream: `query [B, H, q + T, D]` -> `[B, q + T, H, D]`, and the full stream's weights.

    Args:
        attend, sdpa: the module's own attention function, and whether it is transformers' for sdpa.
        expand: makes keys and values of the rows in a cache of latent attention, common to all heads; None: plain ones.
        split: from the model's mask to the division of rows.
        module, query, key, value, attention_mask, kwargs: as for `attend`.
    """
    q, cf_mask, cf_keys, cf_values, cf_columns, last = split(attention_mask)
    streams = (q, query.shape[2] - q)
    full_query, cf_query = query.split_with_sizes(streams, 2)
    if cf_columns is not None:
        cf_keys = _columns(key, cf_columns)
        cf_values = _columns(value, cf_columns)
    elif cf_keys is None or cf_values is None:
        key, cf_keys = key.split_with_sizes(streams, 2)
        value, cf_values = value.split_with_sizes(streams, 2)
    elif expand is not None:
        cf_keys, cf_values = expand(cf_keys, cf_values)
    if attention_mask is not None:  # a sliding window's mask has no columns before the window
        window = attention_mask.shape[-1]
        key = key[:, :, -window:]
        value = value[:, :, -window:]
    # Layers may be on several devices, including those that share keys.
    cf_mask = None if cf_mask is None else cf_mask.to(query.device)
    cf_keys = cf_keys.to(query.device)
    cf_values = cf_values.to(query.device)
    if last is not None:
        full_query = full_query[:, :, -1:]  # [B, H, 1, D]
        cf_query = cf_query[:, :, -1:]
        attention_mask = None if attention_mask is None else attention_mask[:, :, -1:]
        cf_mask = None if cf_mask is None else cf_mask[:, :, -1:]
    full, weights = attend(module, full_query, key, value, attention_mask, **kwargs)
    if sdpa and streams == (1, 1) and (cf_mask is None or cf_mask.shape[1] == 1):
        cf = _one_row(cf_query, cf_keys, cf_values, cf_mask, **kwargs)
    else:
        cf, _ = attend(module, cf_query, cf_keys, cf_values, cf_mask, **kwargs)
    rows = torch.cat([full, cf], dim=1)
    return rows if last is None else last.put_back(rows), weights


def _one_row(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **unused: Any,
) -> Tensor:
    """Attend with one row, `[B, H, 1, D]` -> `[B, 1, H, D]`, as transformers' sdpa does, but without its questions.

    Torch itself groups heads that share keys, or they are the rows of one head.
    """
    batch, heads, _, width = query.shape
    shared = keys.shape[1]
    grouped = shared != heads and mask is None and width == values.shape[3] <= WIDEST
    if shared != heads and not grouped:
        query = query.reshape(batch, shared, heads // shared, width)
    rows = scaled_dot_product_attention(query, keys, values, mask, dropout, scale=scaling, enable_gqa=grouped)
    return rows.reshape(batch, heads, 1, -1).transpose(1, 2)


def _columns(stored: Tensor, columns: Tensor) -> Tensor:
    """Take some columns of keys or values: `[B, H, kv, D]`, `[B, N]` -> `[B, H, N, D]`."""
    heads = stored.shape[1]
    width = stored.shape[3]
    index = columns.to(stored.device)[:, None, :, None]
    return stored.gather(2, index.expand(-1, heads, -1, width))


ALL_ATTENTION_FUNCTIONS.register(_NAME, _attend)


def scaled_by_column(attentions: Sequence[Any], columns: Callable[[], Tensor]) -> Iterator[Removable]:
    """Scale queries by given columns, if their module scales them; yield a handle for each change."""
    for attention in attentions:
        if not getattr(attention, "attn_temperature_tuning", False) or attention.use_rope:
            continue

        def scale(projection: nn.Module, args: Args, queries: Tensor, of: Any = attention) -> Tensor:
            steps = torch.floor((columns().to(queries.device).float() + 1.0) / of.floor_scale)
            scales: Tensor = torch.log1p(steps) * of.attn_scale + 1.0  # [B or 1, rows]
            return (queries * scales[..., None]).to(queries.dtype)

        attention.attn_temperature_tuning = False
        yield Undo(partial(setattr, attention, "attn_temperature_tuning", True))
        yield attention.q_proj.register_forward_hook(scale)
