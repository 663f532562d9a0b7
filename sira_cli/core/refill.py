"""A batch whose rows come and go: a text that has ended leaves, the next prompts join, and all step together.

A row has the same columns, positions and mask as alone, and therefore the same logits up to rounding. This holds with
and without the fork's hooks: the rows of both streams join and leave together. See `row_cache` for their storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import CompileConfig
from transformers.cache_utils import DummyLayer, DynamicCache, LinearAttentionLayer

from sira_cli.core.cache import RoomyLayer
from sira_cli.core.families import check_columns, find_backbone, takes_masks_by_kind, text_stack, windows
from sira_cli.core.row_cache import RowCache
from sira_cli.core.upstream import attention_of, last_logits_only, next_inputs, position_ids

TOKEN_INPUTS = ("position_ids", "token_type_ids", "mm_token_type_ids")  # [..., rows, tokens]


class RowBatch:
    """The rows of a model that decodes B texts of any lengths."""

    def __init__(self, model: Any, *, rows: int = 0, compile_config: CompileConfig | None = None) -> None:
        """Begin without rows.

        Args:
            model: a Hugging Face LVLM; hooks that change its logits must be attached while `join` and `step` run.
            rows: maximum number of rows, for compiled steps; other steps make room as rows join.
            compile_config: how steps are compiled; None: not compiled. One graph serves all steps as long as no more
                than `rows` rows join, and texts get no longer than the first ones may become.

        Raises:
            UnsupportedModelError: some layers attend within chunks or have an indexer; or, with compiled steps, have a
                recurrent state, or share keys and values.
        """
        if compile_config is None:
            check_columns(model, "rows that come and go", states=True)
        else:
            check_columns(model, "compiled steps of rows that come and go")
        self._model = model
        self._rows = 0 if compile_config is None else rows
        self._compile_config = compile_config
        backbone = find_backbone(model)
        self._layers, self._windows = len(backbone.decoder_layers), windows(model)
        self._takes_kinds = takes_masks_by_kind(model)
        self._additive = attention_of(text_stack(model).config) == "eager"
        self._last_only = last_logits_only(model)
        self._cache: RowCache | None = None
        self._next: dict[str, Tensor] = {}  # other inputs of each row's next token: [..., R, 1]

    @torch.no_grad()
    def join(self, inputs: Mapping[str, Tensor], new_tokens: int = 0) -> Tensor:
        """Run G prompts, append them as new rows, and return their logits `[G, V]` in float32.

        Args:
            inputs: the processor's output for the prompts, left-padded, on the model's device.
            new_tokens: maximum tokens per text, for which room is made now; 0: the caches grow as texts do.
        """
        # Plain layers, also for sliding windows, whose columns would differ per row; the mask keeps the window.
        cache = DynamicCache(config=self._model.config.get_text_config(decoder=True))
        own = [*cache.layers, *[None] * self._layers][: self._layers]
        cache.layers = [
            layer if isinstance(layer, DummyLayer | LinearAttentionLayer) else RoomyLayer() for layer in own
        ]
        given: dict[str, Any] = {**inputs, "past_key_values": cache, "use_cache": True, **self._last_only}
        ids = given.pop("input_ids")
        if given.get("attention_mask") is None:
            given["attention_mask"] = torch.ones_like(ids)
        given["position_ids"] = position_ids(self._model, ids, given)
        first = self._model.prepare_inputs_for_generation(ids, is_first_iteration=True, **given)
        logits = self._model(**first, return_dict=True).logits
        if self._cache is None:
            self._cache, self._next = RowCache(cache, fixed=self._compile_config is not None), {}
        self._cache.join(cache, given["attention_mask"], new_tokens, self._rows)
        self._note_next({name: given[name][..., -1:] for name in TOKEN_INPUTS if given.get(name) is not None})
        return _last(logits, ids)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """Run the next token of each row, `[B]`, and return the logits of the following tokens, `[B, V]` in float32."""
        cache = self._cache
        assert cache is not None
        cache.count()
        masks = self._masks(cache)
        inputs = self._model.prepare_inputs_for_generation(
            F.pad(tokens, (0, cache.full.rows - len(tokens)))[:, None],
            next_sequence_length=1,
            past_key_values=cache,
            use_cache=True,
            attention_mask=masks if isinstance(masks, Tensor) or self._takes_kinds else masks["full_attention"],
            **{name: value[..., : cache.full.rows, :] for name, value in self._next.items()},
            **self._last_only,
        )
        call = self._model
        if self._compile_config is not None:
            call = call.get_compiled_call(self._compile_config)
        with nullcontext() if self._takes_kinds else self._given(masks):
            logits = call(**inputs, return_dict=True).logits
        self._next["position_ids"] += 1
        if self._compile_config is not None:
            logits = logits.clone()  # the next compiled step overwrites them
        return _last(logits, tokens)[: len(tokens)]

    def keep(self, rows: Sequence[int]) -> None:
        """Remove all rows but these. They become the first rows, in this order; few should move."""
        assert self._cache is not None
        if not rows and self._compile_config is None:
            self._cache = None
            return
        self._cache.keep(rows)
        chosen = list(rows)
        for value in self._next.values():
            value[..., : len(rows), :] = value[..., chosen, :]

    def _masks(self, cache: RowCache) -> Any:
        """Return the mask of the newest tokens, `[B, 1, 1, N]`, by kind of layer if there are several."""
        newest = cache.full.newest[: cache.full.rows]  # [B, 1]
        live = cache.full.live[: cache.full.rows, : cache.full.columns]  # [B, N]
        columns = torch.arange(live.shape[1], device=live.device)
        masks = {}
        for kind, window in self._windows.items():
            seen = live & (columns <= newest)
            if window is not None:
                seen &= columns > newest - window
            masks[kind] = self._of_attention(seen[:, None, None])
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _of_attention(self, seen: Tensor) -> Tensor:
        """Return a mask in the form of the model's attention."""
        if not self._additive:
            return seen
        dtype = self._model.dtype
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)

    @contextmanager
    def _given(self, masks: Any) -> Iterator[None]:
        """Give masks to the text stack of a model that does not pass them on."""
        handle = text_stack(self._model).register_forward_pre_hook(
            lambda decoder, args, kwargs: (args, {**kwargs, "attention_mask": masks}), with_kwargs=True
        )
        try:
            yield
        finally:
            handle.remove()

    def _note_next(self, newest: dict[str, Tensor]) -> None:
        """Store the next token's inputs of the rows that joined last, from their newest token's, `[..., G, 1]`."""
        assert self._cache is not None
        rows, used = self._cache.full.room[0], len(self._cache.full.lengths)
        for name, value in next_inputs(self._model, {}, newest).items():
            known = self._next.get(name, value.new_zeros(*value.shape[:-2], 0, 1))
            known = F.pad(known, (0, 0, 0, rows - known.shape[-2]))
            known[..., used - value.shape[-2] : used, :] = value[..., -1:]
            self._next[name] = known


def _last(logits: Tensor, like: Tensor) -> Tensor:
    return logits[:, -1].to(like.device, torch.float32)
