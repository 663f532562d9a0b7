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

from sira_cli.core.arguments import CACHE, cache_of, mask_name
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
        self._model, self._layers, self._beams = model, backbone.decoder_layers, beams
        self._siblings = 0  # tokens of a beam in a pass that looks ahead
        self._weights = torch.empty(0)  # [R, H, C, N + C] of that pass

    def hooks(self) -> Iterator[Removable]:
        """Put the hooks on one by one, and yield the handle of each."""
        for layer in self._layers:
            yield layer.register_forward_pre_hook(self._part_siblings, with_kwargs=True)
        attention: Any = self._layers[-1].self_attn
        yield attention.register_forward_hook(self._keep_weights, with_kwargs=True)

    def prompt(self, input_ids: Tensor, kwargs: dict[str, Any]) -> Tensor:
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
        self._per_token = {
            name: kwargs[name].expand(*kwargs[name].shape[:-2], *input_ids.shape).repeat_interleave(self._beams, dim=-2)
            for name in PER_TOKEN
            if kwargs.get(name) is not None
        }
        last: Tensor = output.logits[:, -1].to(input_ids.device, torch.float32)
        return last.repeat_interleave(self._beams, dim=0)

    def look_ahead(self, tokens: Tensor) -> Ahead:
        """Run C possible next tokens of each beam, `[R, C]`. The cache holds none of them afterwards."""
        count, columns = tokens.shape[1], self.cache.get_seq_length()
        one = next_inputs(self._model, {}, self._per_token)
        several = {name: torch.cat([each, *[each[..., -1:]] * (count - 1)], dim=-1) for name, each in one.items()}
        self._siblings = count
        try:
            output = self._run(tokens, several, self.cache, keep=count)
        finally:
            self._siblings = 0
        stored = []
        for layer in self.cache.layers:
            stored.append((layer.keys[:, :, columns:], layer.values[:, :, columns:]))
            layer.keys, layer.values = layer.keys[:, :, :columns], layer.values[:, :, :columns]
        weights = self._weights.amax(dim=1)  # [R, C, N + C]
        weights = weights / weights.sum(dim=-1, keepdim=True)
        own = weights[:, :, columns:].diagonal(dim1=1, dim2=2)  # [R, C]
        attention = torch.cat([weights[:, :, :columns], own[:, :, None]], dim=2)
        return Ahead(output.logits[:, -count:].to(tokens.device), attention.to(tokens.device), stored)

    def keep(self, ahead: Ahead, parents: Tensor, place: Tensor, length: int) -> None:
        """Let beams follow others as in `follow`, each with its looked-ahead token at `place [R']`."""
        for layer, new in zip(self.cache.layers, ahead.stored, strict=True):
            layer.keys, layer.values = (
                torch.cat([*self._followed(stored, parents, length), _token(more, parents, place)], dim=2)
                for stored, more in zip((layer.keys, layer.values), new, strict=True)
            )
        self._per_token = next_inputs(self._model, {}, self._followed_inputs(parents, length))

    def follow(self, parents: Tensor, length: int) -> None:
        """Let beams follow others: row i becomes row `parents[i]`, `[R']`; columns that no text needs leave."""
        for layer in self.cache.layers:
            layer.keys, layer.values = (
                torch.cat(self._followed(stored, parents, length), dim=2) for stored in (layer.keys, layer.values)
            )
        self._per_token = self._followed_inputs(parents, length)

    def _followed(self, stored: Tensor, parents: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Return the columns up to the prompts' last one, which a picture's beams share, and those after it."""
        parents, end = parents.to(stored.device), stored.shape[2] - length
        shared = stored[:, :, end - self._prompt : end]  # [R, H, S, D]
        return shared if len(parents) == len(stored) else shared[parents], stored[parents, :, end:]

    def _followed_inputs(self, parents: Tensor, length: int) -> dict[str, Tensor]:
        return {name: each[..., parents, -(self._prompt + length) :] for name, each in self._per_token.items()}

    def go_back(self, rows: slice, length: int, tokens: Tensor, longest: int) -> Tensor:
        """Replace a picture's beams by shorter ones, and return the logits of their next tokens, `[K, V]` float32."""
        # tokens [K, p]; length: of the current beams; longest: of any picture's text afterwards
        columns = self.cache.get_seq_length()
        prompt = slice(columns - length - self._prompt, columns - length)
        cache: Any = DynamicCache()
        for number, layer in enumerate(self.cache.layers):
            cache.update(layer.keys[rows, :, prompt], layer.values[rows, :, prompt], number)
        per_token = {name: each[..., rows, prompt] for name, each in self._per_token.items()}
        for _ in range(tokens.shape[1]):
            # one by one: some inputs differ between new tokens and the prompt
            per_token = next_inputs(self._model, {}, per_token)
        output = self._run(tokens, per_token, cache, keep=1)
        width = self._prompt + longest
        for layer, own in zip(self.cache.layers, cache.layers, strict=True):
            layer.keys = _replaced(layer.keys, own.keys, rows, (-4, -2), width)
            layer.values = _replaced(layer.values, own.values, rows, (-4, -2), width)
        self._per_token = {
            name: _replaced(each, per_token[name], rows, (-2, -1), width) for name, each in self._per_token.items()
        }
        last: Tensor = output.logits[:, -1].to(tokens.device, torch.float32)
        return last

    def _run(self, tokens: Tensor, per_token: Mapping[str, Tensor], cache: DynamicCache, keep: int) -> Any:
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

    def _part_siblings(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before each layer: no token sees its siblings; otherwise each sees the same as the first one."""
        count = self._siblings
        if count < 2:
            return None
        name = mask_name(layer, kwargs)
        mask = kwargs[name]  # [R or 1, 1, C, N + C]
        if mask is None:
            raise UnsupportedModelError(f"method opera cannot split tokens in {type(layer).__name__}: it has no mask")
        first, own = mask[:, :, :1], torch.eye(count, dtype=torch.bool, device=mask.device)
        siblings = torch.where(own, first[..., -count : 1 - count], first[..., -1:])  # its own column, and the last's
        rest = first[..., :-count].expand(-1, -1, count, -1)
        return args, {**kwargs, name: torch.cat([rest, siblings], dim=-1)}

    def _keep_weights(self, attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """After the last layer's attention: compute its weights."""
        if self._siblings:
            self._weights = attention_rows(attention, kwargs, self._siblings, "opera")


def _token(new: Tensor, row: Tensor, place: Tensor) -> Tensor:
    """Return the keys or values of one token per row, `[R, H, C, D]` -> `[R', H, 1, D]`."""
    return new[row.to(new.device), :, place.to(new.device)][:, :, None]  # two indices around a slice: [R', H, D]


def _replaced(stored: Tensor, new: Tensor, rows: slice, dims: tuple[int, int], width: int) -> Tensor:
    """Replace some rows; all rows get width `width`, padded or cut on the left."""
    (row, column), size = dims, stored.shape[dims[0]]
    parts = [stored.narrow(row, 0, rows.start), new, stored.narrow(row, rows.stop, size - rows.stop)]
    behind = (0, 0) * (-1 - column)
    return torch.cat([F.pad(part, (*behind, width - part.shape[column], 0)) for part in parts], dim=row)
