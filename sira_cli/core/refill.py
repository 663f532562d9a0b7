"""A batch whose rows come and go: a text that has ended leaves, the next prompts join, and all step together.

    columns    0 ........... N-1
    row 0      . . x x x x x x     padded on the left: every row's newest token is in the last column
    row 1      x x x x x x x x
    joins      . . . x x x x x     the rows of a prompt, which ran in a pass of its own

A row's own columns, positions and mask are those that it has alone, so its logits are, too, up to rounding. The fork's
hooks are on the model or not: the rows of both streams leave and join alike.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.cache_utils import DynamicCache

from sira_cli.core.cache import LateLayer, RoomyLayer
from sira_cli.core.families import find_backbone

PER_TOKEN = ("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids")  # [..., rows, tokens]


class RowBatch:
    """The rows of a model that decodes B texts of any lengths."""

    def __init__(self, model: Any) -> None:
        """Begin without rows.

        Args:
            model: a Hugging Face LVLM; whatever hooks change its logits must be on it when `join` and `step` run.
        """
        self._model = model
        self._layers = len(find_backbone(model).decoder_layers)
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if model._supports_logits_to_keep() else {}
        self._cache: DynamicCache | None = None
        self._mask = torch.empty(0)  # [B, N], 0 at padding
        self._newest: dict[str, Tensor] = {}  # other inputs of each token, those of the last column: [..., B, 1]

    @property
    def columns(self) -> int:
        """Number of columns, N; 0 without rows."""
        return 0 if self._cache is None else self._mask.shape[1]

    @torch.no_grad()
    def join(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Run G prompts, let them join behind the rows that are there, and return their logits `[G, V]` in float32.

        Args:
            inputs: what the processor makes of the prompts, left-padded, on the model's device.
        """
        # Plain layers, also for a sliding window, which holds other columns of each row; the mask keeps the window.
        cache = DynamicCache()
        cache.layers = [RoomyLayer() for _ in range(self._layers)]
        given: dict[str, Any] = {**inputs, "past_key_values": cache, "use_cache": True, **self._last_only}
        ids = given.pop("input_ids")
        if given.get("attention_mask") is None:
            given["attention_mask"] = torch.ones_like(ids)
        if self._takes_positions:
            given["position_ids"] = self._model._prepare_position_ids_for_generation(ids, given)
        first = self._model.prepare_inputs_for_generation(ids, is_first_iteration=True, **given)
        logits = self._model(**first, return_dict=True).logits
        mask = given["attention_mask"]
        newest = {name: given[name][..., -1:] for name in PER_TOKEN[1:] if given.get(name) is not None}
        if self._cache is None:
            self._cache, self._mask, self._newest = cache, mask, newest
        else:
            _join(self._cache, cache)
            columns = max(self._mask.shape[1], mask.shape[1])
            self._mask = torch.cat([_padded(each, columns, -1) for each in (self._mask, mask)])
            self._newest = {name: torch.cat([value, newest[name]], dim=-2) for name, value in self._newest.items()}
        return _last(logits, ids)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """Run the next token of each row, `[B]`, and return the logits of those behind them, `[B, V]` in float32."""
        longer = {"attention_mask": self._mask, **self._newest}
        longer = self._model._update_model_kwargs_for_generation({}, longer)
        inputs = self._model.prepare_inputs_for_generation(
            tokens[:, None],
            next_sequence_length=1,
            past_key_values=self._cache,
            use_cache=True,
            **longer,
            **self._last_only,
        )
        logits = self._model(**inputs, return_dict=True).logits
        self._mask = longer.pop("attention_mask")
        self._newest = {name: value[..., -1:] for name, value in longer.items()}
        return _last(logits, tokens)

    def keep(self, rows: Sequence[int]) -> None:
        """Let all but these rows leave, and with them the columns that no other row uses."""
        if not rows:
            self._cache = None
            return
        assert self._cache is not None
        chosen = torch.tensor(rows, device=self._mask.device)
        mask = self._mask[chosen]
        unused = int(mask.any(dim=0).int().argmax())
        self._mask = mask[:, unused:]
        self._newest = {name: value[..., chosen, :] for name, value in self._newest.items()}
        _keep(self._cache, chosen, unused)


def _keep(cache: DynamicCache, chosen: Tensor, unused: int) -> None:
    unused_cf = None
    for layer in cache.layers:
        _keep_stored(layer, chosen, unused)
        if isinstance(layer, LateLayer):
            if unused_cf is None:
                unused_cf = layer.streams.keep(chosen, unused)  # the late layers share it
            _keep_stored(layer.cf, chosen, unused_cf)


def _keep_stored(layer: Any, chosen: Tensor, unused: int) -> None:
    chosen = chosen.to(layer.keys.device)
    layer.keys, layer.values = layer.keys[chosen, :, unused:], layer.values[chosen, :, unused:]


def _join(cache: DynamicCache, other: DynamicCache) -> None:
    shared = None
    for layer, new in zip(cache.layers, other.layers, strict=True):
        _join_stored(layer, new)
        if isinstance(layer, LateLayer) and isinstance(new, LateLayer):
            _join_stored(layer.cf, new.cf)
            if shared is None:
                shared = layer.streams
                shared.join(new.streams)


def _join_stored(layer: Any, new: Any) -> None:
    columns = max(layer.keys.shape[2], new.keys.shape[2])
    layer.keys = torch.cat([_padded(each, columns, -2) for each in (layer.keys, new.keys)])
    layer.values = torch.cat([_padded(each, columns, -2) for each in (layer.values, new.values)])


def _padded(value: Tensor, columns: int, dim: int) -> Tensor:
    """Pad with zeros on the left."""
    return F.pad(value, (0, 0) * (-1 - dim) + (columns - value.shape[dim], 0))


def _last(logits: Tensor, like: Tensor) -> Tensor:
    return logits[:, -1].to(like.device, torch.float32)
