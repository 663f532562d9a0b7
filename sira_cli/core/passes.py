"""Passes over rows that are known beforehand.

ImagePrefix   [ text ... image ]           one pass, into a cache
              [ tail 1 ] [ tail 2 ] ...    one batch, a few rows each, at the positions that follow
score         [ prompt | y_1 ... y_N-1 ]   last N rows of each stream -> Norm, W_out -> z_full, z_cf of y_1 ... y_N
next_token    [ x_1 .............. x_S ]   the full stream once; before layer b = L - K of each K a CF stream begins,
                                           and all that have begun run as one more call per layer
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache

from sira_cli.core.arguments import CACHE, Args, Kwargs, mask_name
from sira_cli.core.attention import scaled_by_column
from sira_cli.core.cache import full_stream
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import ROW_ARGUMENTS, position_state, positions_kept
from sira_cli.core.fork import Fork, attached
from sira_cli.core.hooks import Removable
from sira_cli.core.masks import cf_mask, has_rows, take_rows
from sira_cli.core.rules import contrast
from sira_cli.core.streams import Step
from sira_cli.core.upstream import next_inputs, position_ids
from sira_cli.errors import UnsupportedModelError

# Families whose prompt rows see each other in both directions: text after the picture changes the picture's rows.
BIDIRECTIONAL = ("paligemma",)
TAILS_AT_ONCE = 8  # tails that share a pass; each holds a copy of the prefix's keys and values


class ImagePrefix:
    """The first rows of one prompt, up to its last image row, computed once for many texts that follow them.

    Exact if rows see only earlier rows, as in every supported family except PaliGemma.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: Any,
        inputs: Mapping[str, Tensor],
        length: int,
        cache: DynamicCache | None = None,
    ) -> None:
        """Compute the first `length` rows of an unpadded prompt `[1, S]`; or take them from a `cache`, and leave it."""
        ids = inputs["input_ids"]
        self.length = length  # p, number of rows
        self._model = model
        self._inputs = dict(inputs)
        for name, value in inputs.items():
            if value.shape == ids.shape:
                self._inputs[name] = value[:, :length]
        self._position_state = position_state(model)
        self._cache = cache or DynamicCache(config=model.config.get_text_config(decoder=True))
        if cache is not None:
            return
        with positions_kept(self._position_state):
            positions = self._positions(0)
            more = {} if positions is None else {"position_ids": positions}
            model(**self._inputs, **more, **{CACHE: self._cache}, use_cache=True, logits_to_keep=1)

    @classmethod
    def of(
        cls,
        model: Any,
        inputs: Mapping[str, Tensor],
        image: Tensor,
        row: int,
        cache: Cache,
        place: int,
    ) -> ImagePrefix | None:
        """Take the first rows of a prompt from the cache it was decoded with; None if the cache no longer has them.

        Args:
            model: the model.
            inputs: of all B prompts, left-padded.
            image: `[B, S]` bool, P_img.
            row: number of the prompt, from 0.
            cache: its cache.
            place: number of its text in the cache.
        """
        if model.config.model_type in BIDIRECTIONAL:
            return None
        ids = inputs["input_ids"]
        own = inputs["attention_mask"][row].sum()
        first = int(ids.shape[1] - own)
        last = int(image[row].nonzero().max()) + 1
        rows = full_stream(cache, place, first, last)
        if rows is None:
            return None
        of_prompt = {}
        for name, value in inputs.items():
            if len(value) == len(ids) and not value.is_floating_point():  # no samples: only positions are still needed
                of_prompt[name] = value[row : row + 1]
                if value.shape == ids.shape:
                    of_prompt[name] = value[row : row + 1, first:]
        return cls(model, of_prompt, last - first, rows)

    @property
    def ids(self) -> Tensor:
        """The rows' tokens `[p]`."""
        return self._inputs["input_ids"][0]

    @torch.no_grad()
    def last_logits(self, tails: Sequence[Sequence[int]]) -> Tensor:
        """Return the logits after each tail, as if it followed the prefix alone: `[Q, V]` float32."""
        logits = []
        for first in range(0, len(tails), TAILS_AT_ONCE):
            logits.append(self._pass(tails[first : first + TAILS_AT_ONCE]))
        return torch.cat(logits)

    def _pass(self, tails: Sequence[Sequence[int]]) -> Tensor:
        device = self._inputs["input_ids"].device
        longest = max(map(len, tails))
        padded = []
        for tail in tails:
            padding = [0] * (longest - len(tail))  # on the right: no row sees later rows
            padded.append([*tail, *padding])
        ids = torch.tensor(padded, device=device)  # [Q, T]
        ends = sorted({len(tail) - 1 for tail in tails})  # a list works with hidden states on any device
        cache = copy.deepcopy(self._cache)
        for layer in cache.layers:  # the only text, once per tail; recurrent states can be repeated in no other way
            layer.reorder_cache(torch.zeros(len(tails), dtype=torch.long))  # type: ignore[arg-type] # LongTensor
        with positions_kept(self._position_state):
            positions = self._positions(longest)
            more = {}
            if positions is not None:
                new = positions[..., self.length :]
                more["position_ids"] = new.expand(*new.shape[:-2], len(tails), longest)
            output = self._model(
                input_ids=ids,
                **more,
                **{CACHE: cache},
                use_cache=True,
                logits_to_keep=ends,
            )
        rows = list(range(len(tails)))
        columns = [ends.index(len(tail) - 1) for tail in tails]
        last: Tensor = output.logits[rows, columns].float()  # of [Q, number of different ends, V]
        return last

    def _positions(self, more: int) -> Tensor | None:
        """Return the positions of the prefix and `more` rows after it, or None if the model takes no positions."""
        model = self._model
        if "position_ids" not in inspect.signature(model.forward).parameters:
            return None
        ids = self._inputs["input_ids"]
        grown = dict(self._inputs)
        for name, value in self._inputs.items():
            if value.shape == ids.shape:
                new = value.new_full((1, more), int(name == "attention_mask"))
                grown[name] = torch.cat([value, new], dim=1)
        return position_ids(model, grown["input_ids"], grown)


ROWS_AT_ONCE = 16  # rows of each stream that go through the head at once


@torch.no_grad()
def score(
    model: nn.Module,
    config: SiraConfig,
    inputs: Any,
    texts: Sequence[Sequence[int]],
) -> Iterator[Step]:
    """Yield the logits `[B, V]` of both streams at every token of B given texts, from one prefill.

    The ends of the texts are aligned: text b takes part in the last `len(texts[b])` steps. The head gets a few rows at
    a time: with a vocabulary of 150,000 all logits of a long text would need more memory than the model's cache.
    """
    longest = max(map(len, texts))
    prompts = len(inputs["input_ids"])
    if len(texts) != prompts or min(map(len, texts)) == 0:
        raise ValueError(f"expected {prompts} texts with tokens, one per prompt")
    rows: list[Tensor] = []
    steps: list[Step] = []
    with attached(Fork(model, config, steps.append, last_rows=longest)) as streams:
        keep_rows = streams.norm.register_forward_hook(lambda norm, args, output: rows.append(output))
        try:
            forced = followed(model, inputs, [text[:-1] for text in texts])
            model(**forced, use_cache=False, logits_to_keep=1)
        finally:
            keep_rows.remove()
    (normed,) = rows  # [2B, N, d]
    (last,) = steps
    device = last.full.device  # that of the inputs; the head may be on another
    logits = torch.cat([last.full, last.cf])  # [2B, V]
    head = _head(model, normed[:, -1:], logits[:, None])
    for start in range(0, longest, ROWS_AT_ONCE):
        logits = head(normed[:, start : start + ROWS_AT_ONCE]).to(device)  # [2B, n, V]
        z_full, z_cf = logits.chunk(2)  # [B, n, V]
        z_cd = contrast(z_full, z_cf, config.alpha)
        for row in range(z_full.shape[1]):
            yield Step(z_full[:, row], z_cf[:, row], z_cd[:, row])


def followed(model: Any, inputs: Any, texts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """Append the tokens of a text to each prompt, as one left-padded batch."""
    ids: Tensor = inputs["input_ids"]  # [B, S]
    longest = max(map(len, texts))  # N
    extended: dict[str, Tensor] = dict(inputs)
    extended.setdefault("attention_mask", torch.ones_like(ids))
    for _ in range(longest):  # by the model's own rule, token by token: families differ in token types
        extended = next_inputs(model, {}, extended)
    per_token = [name for name, value in inputs.items() if value.shape == ids.shape]
    new = ids.new_zeros(len(ids), longest)
    extended["input_ids"] = torch.cat([ids, new], dim=1)  # [B, S + N]
    for name in {*per_token, "attention_mask"}:
        tensor = extended[name].clone()
        for row, text in enumerate(texts):
            missing = longest - len(text)
            tensor[row] = tensor[row].roll(missing)
            tensor[row, :missing] = 0  # padding
            if name == "input_ids" and text:
                tensor[row, -len(text) :] = tensor.new_tensor(text)
        extended[name] = tensor
    return extended


def _head(model: Any, normed: Tensor, theirs: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the head of a model after its norm, `[2B, n, d]` -> float32 `[2B, n, V]`, as found by its own logits.

    It is a linear head, with a soft cap or without: PaliGemma 2 leaves the cap of its config out until transformers
    5.22.
    """
    linear = model.get_output_embeddings()
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None) or math.inf

    def plain(rows: Tensor) -> Tensor:
        logits: Tensor = linear(rows).float()
        return logits

    def capped(rows: Tensor) -> Tensor:
        return cap * torch.tanh(plain(rows) / cap)

    heads = (plain,) if math.isinf(cap) else (capped, plain)
    differences = []
    for head in heads:
        difference = head(normed).to(theirs.device) - theirs
        differences.append(float(difference.abs().max()))
    tolerance = 0.02 * float(theirs.abs().max()) + 1e-3
    if min(differences) > tolerance:
        raise UnsupportedModelError(
            "the model does more after its final norm than a linear head and a soft cap: "
            "texts cannot be forced on it; trace generated texts instead"
        )
    return heads[differences.index(min(differences))]


@torch.no_grad()
def next_token(
    model: nn.Module, config: SiraConfig, inputs: Mapping[str, Any], ks: Collection[int]
) -> tuple[Tensor, dict[int, Tensor]]:
    """Return z_full after B prompts, and z_cf by K, float32 `[B, V]` each, as `attach` would give them for each K."""
    with attached(_ForkPerK(model, config, ks)) as fork:
        model(**inputs, use_cache=False, logits_to_keep=1)
    z_full, *z_cf = fork.logits
    return z_full, dict(zip(fork.ks, z_cf, strict=True))


class _ForkPerK(Fork):
    """A CF stream for each of several K, for a prompt without a cache."""

    logits: tuple[Tensor, ...]  # [B, V] of the full stream, then of each K's CF stream
    _cf: Tensor  # [n B, T, d], the CF streams that have begun

    def __init__(self, model: nn.Module, config: SiraConfig, ks: Collection[int]) -> None:
        super().__init__(model, dataclasses.replace(config, k=max(ks), k_fraction=None))
        self.ks = sorted(set(ks), reverse=True)  # values of K, largest first: the order in which their streams begin
        self._shared_keys: dict[str, Any] = {}  # for the CF streams that have begun, by kind of layer
        self._cf_columns: Tensor | None = None  # [n B, T] while a layer runs the CF streams

    def hooks(self) -> Iterator[Removable]:
        """Run the full stream unchanged, and after each late layer the CF streams through the same layer."""
        yield self.model.register_forward_pre_hook(self.begin, with_kwargs=True)
        yield from scaled_by_column([mixer.module for mixer in self._mixers], self.columns)
        for k, layer in zip(range(self.k, 0, -1), self.late_layers, strict=True):
            yield layer.register_forward_hook(partial(self._run_cf, k), with_kwargs=True)
        yield self.norm.register_forward_pre_hook(self.join)
        yield self.model.register_forward_hook(self._keep_logits)

    def _run_cf(
        self,
        k: int,
        layer: nn.Module,
        args: Args,
        kwargs: Kwargs,
        output: Any,
    ) -> None:
        """After the full stream's layer L - k: run the CF streams through it; one of them may begin here."""
        now = self.running()
        rows = now.cf_rows
        assert rows is not None  # this pass is a prompt
        if k in self.ks:
            begun = take_rows(args[0], rows)  # [B, T, d]
            before = [] if k == self.k else [self._cf.to(begun.device)]
            self._cf = torch.cat([*before, begun])
            self._share_keys(kwargs.get("shared_kv_states") or {}, rows)
        n = len(self._cf) // len(rows)

        def text_rows(part: Any) -> Any:
            """Take all CF streams' rows of an argument with a row per token: `[B or 1, S, ...]` -> `[n B, T, ...]`."""
            if isinstance(part, tuple):
                return tuple(map(text_rows, part))
            if not has_rows(part, len(rows), now.q):
                return part
            return torch.cat([take_rows(part, rows)] * n)

        streams = now.prompt_streams()
        recurrent = self._mixers[self.k - k].recurrent
        name = mask_name(layer, kwargs)
        mask = streams.live if recurrent else cf_mask(kwargs[name], streams, rows)  # [B, T] or [B, 1, T, T]
        changed = {
            name: None if mask is None else torch.cat([mask] * n).to(self._cf.device),
            **{name: text_rows(kwargs[name]) for name in ROW_ARGUMENTS if name in kwargs},
        }
        if "shared_kv_states" in kwargs:
            changed["shared_kv_states"] = self._shared_keys
        more = map(text_rows, args[1:])
        self._cf_columns = torch.cat([rows] * n)
        output_cf = layer.forward(self._cf, *more, **{**kwargs, **changed})  # a call would come back to this hook
        self._cf = output_cf[0] if isinstance(output_cf, tuple) else output_cf
        self._cf_columns = None

    def columns(self) -> Tensor:
        """Return the column of each row of the running layer, for the CF streams or the full one."""
        if self._cf_columns is not None:
            return self._cf_columns
        return torch.arange(self.running().q)[None]

    def _share_keys(self, full: Mapping[str, tuple[Tensor, Tensor]], rows: Tensor) -> None:
        """Give a new stream the text columns of the keys that shared layers have stored so far."""
        for kind, stored in full.items():
            text = []  # keys and values, [B, H, T, D] each
            for states in stored:
                of_text = take_rows(states.transpose(1, 2), rows)
                text.append(of_text.transpose(1, 2))
            if kind in self._shared_keys:
                text = [torch.cat(both) for both in zip(self._shared_keys[kind], text, strict=True)]
            self._shared_keys[kind] = tuple(text)

    def join(self, norm: nn.Module, args: Args) -> Any:
        """Before the final norm: keep the last row of every stream, stacked along the batch."""
        full = args[0][:, -1:]  # [B, 1, d]
        cf = self._cf[:, -1:].to(full.device)  # [n B, 1, d]
        return (torch.cat([full, cf]), *args[1:])  # [(1 + n) B, 1, d]

    def _keep_logits(self, model: nn.Module, args: Args, output: Any) -> None:
        """After the model: split the logits by stream."""
        self.end()
        self.logits = output.logits[:, -1].float().chunk(1 + len(self.ks))
