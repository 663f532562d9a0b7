"""The passes of OPERA's search: several next tokens of every beam at once, beams that follow others, and rollbacks.

    the prompt    one row per picture, then K equal ones
    look ahead    C tokens of a beam in one pass. They share a position, and each sees its beam's tokens and itself
    keep          a beam grows by one token: this token's keys and values stay, its siblings' go
    go back       the beams' prompt is still in the cache; the tokens after it run again

Pictures may have texts of different lengths. All of them end at the cache's last column: a shorter one has a wider
left padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.cache_utils import DynamicCache, DynamicLayer

from sira_cli.core.arguments import CACHE, Args, Kwargs, cache_of, mask_name
from sira_cli.core.families import check_columns, find_backbone
from sira_cli.core.hooks import Removable
from sira_cli.core.upstream import last_logits_only, next_inputs
from sira_cli.errors import UnsupportedModelError
from sira_cli.methods.attention_rows import attention_rows

PER_TOKEN = ("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids")  # [..., rows, tokens]


@dataclass(frozen=True)
class Ahead:
    """The result of a pass over C possible next tokens of each of R beams."""

    logits: Tensor  # [R, C, V] for the token after them
    # [R, C, N + 1] of the last layer, maximum over heads, as shares of 1: the N columns of the beam, then the
    # token's own
    attention: Tensor
    stored: list[tuple[Tensor, Tensor]]  # keys and values of each layer, [R, H, C, D] each


class Passes:
    """The model, and the cache of R = B K beams."""

    def __init__(self, model: Any, beams: int) -> None:
        """Check the model; no hook is put on yet."""
        check_columns(model, "method opera")
        backbone = find_backbone(model)
        self.norm = backbone.norm  # the model's final norm
        self.cache: Any = DynamicCache()  # keys and values of all beams, N columns
        self._model = model
        self._layers = backbone.decoder_layers
        self._beams = beams
        self._prompt = 0  # S, tokens of the prompts
        self._per_token: dict[str, Tensor] = {}  # inputs of all beams, [..., R, S + t], by the names of PER_TOKEN
        self._siblings = 0  # tokens of a beam in a pass that looks ahead
        self._weights = torch.empty(0)  # [R, H, C, N + C] of that pass

    def hooks(self) -> Iterator[Removable]:
        """Put the hooks on one by one, and yield the handle of each."""
        for layer in self._layers:
            yield layer.register_forward_pre_hook(self._part_siblings, with_kwargs=True)
        attention: Any = self._layers[-1].self_attn
        yield attention.register_forward_hook(self._keep_weights, with_kwargs=True)

    def prompt(self, input_ids: Tensor, kwargs: Kwargs) -> Tensor:
        """Run B prompts `[B, S]`, and return the logits of the first token for K beams each, `[B K, V]` float32."""
        cache = cache_of((), kwargs)
        if type(cache) is not DynamicCache or cache.offloading or cache.get_seq_length():
            raise UnsupportedModelError(
                f"method opera needs an empty cache that grows: leave out {CACHE}, cache_implementation and "
                "use_cache=False"
            )
        # Plain layers, also for a sliding window: columns that have left it may come back. Masks keep the window.
        cache.layers = [DynamicLayer() for _ in self._layers]
        self.cache = cache
        first = self._model.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **kwargs)
        output = self._model(**first, return_dict=True)
        cache.batch_repeat_interleave(self._beams)
        if kwargs.get("attention_mask") is None:
            kwargs = {**kwargs, "attention_mask": torch.ones_like(input_ids)}
        self._prompt = input_ids.shape[1]  # S
        self._per_token = {}
        for name in PER_TOKEN:
            per_prompt = kwargs.get(name)
            if per_prompt is not None:
                per_prompt = per_prompt.expand(*per_prompt.shape[:-2], *input_ids.shape)
                self._per_token[name] = per_prompt.repeat_interleave(self._beams, dim=-2)
        last: Tensor = output.logits[:, -1].to(input_ids.device, torch.float32)
        return last.repeat_interleave(self._beams, dim=0)

    def look_ahead(self, tokens: Tensor) -> Ahead:
        """Run C possible next tokens of each beam, `[R, C]`. The cache holds none of them afterwards."""
        count = tokens.shape[1]
        columns = self.cache.get_seq_length()
        per_token = {}
        for name, longer in next_inputs(self._model, {}, self._per_token).items():
            siblings = [longer[..., -1:]] * (count - 1)  # the same as the first next token
            per_token[name] = torch.cat([longer, *siblings], dim=-1)
        self._siblings = count
        try:
            output = self._run(tokens, per_token, self.cache, keep=count)
        finally:
            self._siblings = 0
        stored = []
        for layer in self.cache.layers:
            keys = layer.keys[:, :, columns:]
            values = layer.values[:, :, columns:]
            stored.append((keys, values))
            layer.keys = layer.keys[:, :, :columns]
            layer.values = layer.values[:, :, :columns]
        weights = self._weights.amax(dim=1)  # [R, C, N + C]
        weights = weights / weights.sum(dim=-1, keepdim=True)
        to_itself = weights[:, :, columns:].diagonal(dim1=1, dim2=2)  # [R, C]
        to_beam = weights[:, :, :columns]  # [R, C, N]
        attention = torch.cat([to_beam, to_itself[:, :, None]], dim=2)
        logits = output.logits[:, -count:]
        return Ahead(logits.to(tokens.device), attention.to(tokens.device), stored)

    def keep(self, ahead: Ahead, parents: Tensor, place: Tensor, length: int) -> None:
        """Let beams follow others as in `follow`, each with its looked-ahead token at `place [R']`."""
        for layer, (keys, values) in zip(self.cache.layers, ahead.stored, strict=True):
            key = _token(keys, parents, place)
            value = _token(values, parents, place)
            layer.keys = self._followed(layer.keys, parents, length, key)
            layer.values = self._followed(layer.values, parents, length, value)
        per_token = self._followed_inputs(parents, length)
        self._per_token = next_inputs(self._model, {}, per_token)

    def follow(self, parents: Tensor, length: int) -> None:
        """Let beams follow others: row i becomes row `parents[i]`; columns that no text needs leave.

        Args:
            parents: `[R']`.
            length: tokens of the longest text.
        """
        for layer in self.cache.layers:
            layer.keys = self._followed(layer.keys, parents, length)
            layer.values = self._followed(layer.values, parents, length)
        self._per_token = self._followed_inputs(parents, length)

    def _followed(self, stored: Tensor, parents: Tensor, length: int, *new: Tensor) -> Tensor:
        """Return the columns of the prompts, of the texts, and new ones, of the rows that beams follow."""
        parents = parents.to(stored.device)
        end = stored.shape[2] - length
        prompt = stored[:, :, end - self._prompt : end]  # [R, H, S, D]; a picture's beams share it
        if len(parents) != len(stored):
            prompt = prompt[parents]
        text = stored[parents, :, end:]
        return torch.cat([prompt, text, *new], dim=2)

    def _followed_inputs(self, parents: Tensor, length: int) -> dict[str, Tensor]:
        columns = slice(-(self._prompt + length), None)
        followed = {}
        for name, stored in self._per_token.items():
            followed[name] = stored[..., parents, columns]
        return followed

    def go_back(self, rows: slice, length: int, tokens: Tensor, longest: int) -> Tensor:
        """Replace a picture's beams by shorter ones, and return the logits of their next tokens, `[K, V]` float32.

        Args:
            rows: of the beams.
            length: tokens of the current beams.
            tokens: of the shorter ones, `[K, p]`.
            longest: tokens of any picture's longest text afterwards.
        """
        columns = self.cache.get_seq_length()
        end = columns - length
        prompt = slice(end - self._prompt, end)
        cache: Any = DynamicCache()
        for number, layer in enumerate(self.cache.layers):
            keys = layer.keys[rows, :, prompt]
            values = layer.values[rows, :, prompt]
            cache.update(keys, values, number)
        per_token = {}
        for name, stored in self._per_token.items():
            per_token[name] = stored[..., rows, prompt]
        for _ in range(tokens.shape[1]):
            # one by one: some inputs differ between new tokens and the prompt
            per_token = next_inputs(self._model, {}, per_token)
        output = self._run(tokens, per_token, cache, keep=1)
        width = self._prompt + longest
        for layer, shorter in zip(self.cache.layers, cache.layers, strict=True):
            layer.keys = _replaced(layer.keys, shorter.keys, rows, (-4, -2), width)
            layer.values = _replaced(layer.values, shorter.values, rows, (-4, -2), width)
        for name, stored in self._per_token.items():
            self._per_token[name] = _replaced(stored, per_token[name], rows, (-2, -1), width)
        last: Tensor = output.logits[:, -1].to(tokens.device, torch.float32)
        return last

    def _run(
        self,
        tokens: Tensor,
        per_token: Mapping[str, Tensor],
        cache: DynamicCache,
        keep: int,
    ) -> Any:
        """Run new tokens `[R, q]` after those of a cache; `per_token` covers both."""
        inputs = self._model.prepare_inputs_for_generation(
            tokens,
            next_sequence_length=tokens.shape[1],
            **{CACHE: cache},
            use_cache=True,
            **per_token,
            **last_logits_only(self._model, keep),
        )
        return self._model(**inputs, return_dict=True)

    def _part_siblings(self, layer: nn.Module, args: Args, kwargs: Kwargs) -> Any:
        """Before each layer: no token sees its siblings; otherwise each sees the same as the first one."""
        count = self._siblings
        if count < 2:
            return None
        name = mask_name(layer, kwargs)
        mask = kwargs[name]  # [R or 1, 1, C, N + C]
        if mask is None:
            raise UnsupportedModelError(f"method opera cannot split tokens in {type(layer).__name__}: it has no mask")
        first = mask[:, :, :1]
        itself = torch.eye(count, dtype=torch.bool, device=mask.device)
        own = first[..., -count : 1 - count]  # its column
        another = first[..., -1:]  # the last one
        siblings = torch.where(itself, own, another)
        rest = first[..., :-count].expand(-1, -1, count, -1)
        mask = torch.cat([rest, siblings], dim=-1)
        return args, {**kwargs, name: mask}

    def _keep_weights(self, attention: Any, args: Args, kwargs: Kwargs, output: Any) -> None:
        """After the last layer's attention: compute its weights."""
        if self._siblings:
            self._weights = attention_rows(attention, kwargs, self._siblings, "opera")


def _token(new: Tensor, row: Tensor, place: Tensor) -> Tensor:
    """Return the keys or values of one token per row, `[R, H, C, D]` -> `[R', H, 1, D]`."""
    chosen = new[row.to(new.device), :, place.to(new.device)]  # two indices around a slice: [R', H, D]
    return chosen[:, :, None]


def _replaced(
    stored: Tensor,
    new: Tensor,
    rows: slice,
    dims: tuple[int, int],
    width: int,
) -> Tensor:
    """Replace some rows; all rows get width `width`, padded or cut on the left. `dims`: of rows, and of columns."""
    row, column = dims
    after = stored.shape[row] - rows.stop
    padded = []
    above = stored.narrow(row, 0, rows.start)
    below = stored.narrow(row, rows.stop, after)
    for part in (above, new, below):
        left = width - part.shape[column]
        padding = (0, 0, left, 0) if column == -2 else (left, 0)  # of the last dimension first
        padded.append(F.pad(part, padding))
    return torch.cat(padded, dim=row)
