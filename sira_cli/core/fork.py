"""SIRA: one model, two streams, one pass (paper, Section 3 and Algorithm 1).

    layers 0..b-1     [ x_1 ........... x_S ]                      shared prefix, computed once
    at layer b        [ x_1 ........... x_S | x_t for t in text ]  the CF stream's rows are appended
    layers b..L-1     one call per layer; attention runs once per stream, all else on both at once
    after layer L-1   last row of each stream -> Norm -> W_out -> z_full, z_cf
    a decoding step   1 row in the shared layers, 2 rows (full, CF) in the late ones

The paper masks image positions in the CF stream. A masked row influences nothing, so here the stream
simply does not contain it: same numbers, fewer rows, and weights are read once for both streams.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, StaticCache

from sira_cli.core.attention import Split, two_streams
from sira_cli.core.cache import Streams, is_prompt, known_streams, open_streams
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import FAMILIES, check_static_cache, find_backbone
from sira_cli.core.hooks import Removable, attached_hooks
from sira_cli.core.masks import cf_mask, pack_rows, text_rows, valid_rows
from sira_cli.core.rules import contrast, plausible
from sira_cli.core.static_cache import Slots, share_layers
from sira_cli.errors import AttachError, ImageTokenError, SettingsError, UnsupportedModelError, UntestedModelWarning


@dataclass(frozen=True)
class Step:
    """The logits of one decoding step, float32 `[B, V]` each (B counts beams and returned sequences).

    `contrast` = (1 + alpha) full - alpha cf (paper, Eq. 4), before the plausibility cut-off if one is set.
    """

    full: Tensor
    cf: Tensor
    contrast: Tensor


@contextmanager
def attach(
    model: nn.Module, config: SiraConfig | None = None, *, on_step: Callable[[Step], None] | None = None
) -> Iterator[Fork]:
    """Decode `model` with SIRA inside this context: every `model.generate(...)` picks from z_cd.

    Only hooks are used, and the late layers' attention modules meanwhile have a config of their own; at the end all is
    as before, also after an error. A plain forward returns the contrast of the last row, `[B, 1, V]`. Hidden states
    that `generate` may return hold the rows of both streams in the late layers, and after the last one
    `[2B, 1, d]`; attentions are those of the full stream. The cache may be a static one. One thread at a time.

    Args:
        model: a Hugging Face LVLM with `sdpa` or `eager` attention.
        config: settings; default K = L / 2, alpha = 0.5.
        on_step: called once per generated token with the logits of both streams.

    Yields:
        The fork: `k`, `boundary`, `layers`, and `image`, the image positions of the latest prompt.

    Raises:
        UnsupportedModelError: the model, its cache or the way of generating cannot be followed exactly.
        SettingsError: K does not fit the model.
        ImageTokenError: no image tokens in a prompt, or a prompt that ends with one.
        AttachError: the model is attached already.
    """
    fork = Fork(model, config or SiraConfig(), on_step)
    with attached_hooks(fork._norm) as handles:
        fork._hook(model, handles)
        yield fork


@dataclass
class _Pass:
    """One forward pass of the model under way.

    Attributes:
        q: rows of the full stream.
        cf_rows: `[B, T]` which of them go on as the CF stream; None in a decoding step: its one row.
        live: `[B, T]` False at rows that only fill up; None: there are none.
        streams: of the request, with this pass's rows, from layer b on.
        packed: tensors as the model gave them, and what was made of them: cosines and sines of positions, masks.
    """

    q: int
    cf_rows: Tensor | None
    live: Tensor | None
    streams: Streams | Slots = field(init=False)
    packed: list[tuple[Tensor | None, Any]] = field(default_factory=list)

    def newest(self) -> Tensor:
        """`[B, T]` positions of this pass's rows of the CF stream."""
        return self.streams.newest() if self.cf_rows is None else self.cf_rows

    def once(self, source: Tensor | None, pack: Callable[[], Any]) -> Any:
        """What `pack` makes of `source`: layers share masks and embeddings, so each is packed once."""
        for known, packed in self.packed:
            if known is source:
                return packed
        self.packed.append((source, pack()))
        return self.packed[-1][1]


class Fork:
    """The two streams of one model. Made by `attach`; its methods are the hooks, in the order they run.

    Where a decoding step is compiled, the hooks inside the model are a part of its graph, those around it are not.

    Attributes:
        config: the settings.
        k, layers, boundary: K, L and b = L - K.
        image: `[B, S]` bool, P_img of the latest prompt (None before the first).
        keep: how many last rows of each stream reach the final norm. With more than one, all of them have to be text.
    """

    def __init__(self, model: nn.Module, config: SiraConfig, on_step: Callable[[Step], None] | None = None) -> None:
        backbone = find_backbone(model)
        self.config = config
        self.layers = len(backbone.layers)  # L
        self.k = config.layers_after_fork(self.layers)  # K
        self.boundary = self.layers - self.k  # b
        if self.boundary < backbone.first_boundary:
            raise SettingsError(
                f"k = {self.k} forks at layer b = {self.boundary}, but this model adds image features to the "
                f"outputs of its first {backbone.first_boundary} layers (DeepStack): "
                f"k must be at most {self.layers - backbone.first_boundary}"
            )
        if not backbone.tested:
            warnings.warn(
                f"{type(model).__name__} has the structure that SIRA needs, but its family is not among the "
                f"{len(FAMILIES)} that were tested against the reference; check results with alpha = 0",
                UntestedModelWarning,
                stacklevel=4,
            )
        self.image: Tensor | None = None
        self.keep = 1
        self._find_image = config.image_tokens.resolve(model.config).find
        self._on_step = on_step
        self._late_layers = backbone.layers[self.boundary :]
        self._norm = backbone.norm
        self._pass: _Pass | None = None  # only while the model runs

    def _hook(self, model: nn.Module, handles: list[Removable]) -> None:
        """Put the hooks on, each with its handle in `handles` at once."""
        handles.append(model.register_forward_pre_hook(self._begin, with_kwargs=True))
        handles.append(self._late_layers[0].register_forward_pre_hook(self._split, with_kwargs=True))
        for layer in self._late_layers:
            handles.append(layer.register_forward_pre_hook(self._run_both, with_kwargs=True))
        handles.append(two_streams([layer.self_attn for layer in self._late_layers], self._attention))
        handles.append(self._norm.register_forward_pre_hook(self._join))
        handles.append(model.register_forward_hook(self._contrast))

    @torch.compiler.disable  # type: ignore[untyped-decorator] # not annotated upstream
    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the model: find P_img in a prompt (Algorithm 1, input)."""
        input_ids = kwargs.get("input_ids", args[0] if args else None)
        if input_ids is None:
            raise UnsupportedModelError(
                "the model was called without input_ids, so its image tokens cannot be found: "
                "pass input_ids instead of inputs_embeds"
            )
        cache: Cache | None = kwargs.get("past_key_values")
        q = input_ids.shape[1]
        if is_prompt(cache, self.boundary, q):
            if isinstance(cache, StaticCache):
                self._check_static(model)
                share_layers(cache, self.boundary)
            self._pass = _Pass(q, *self._read_prompt(input_ids, kwargs.get("attention_mask")))
        elif q == 1:
            self._pass = _Pass(q, None, None)
        else:
            seen = int(cache.get_seq_length()) if cache is not None else 0
            raise UnsupportedModelError(
                f"{q} new tokens arrived on a cache that already holds {seen}: chunked prefill, assisted "
                "generation and continued conversations are not supported. Pass the whole prompt, without "
                "past_key_values, assistant_model, prompt_lookup_num_tokens or prefill_chunk_size."
            )

    def _read_prompt(self, input_ids: Tensor, attention_mask: Any) -> tuple[Tensor, Tensor]:
        """Rows of the CF stream: `input_ids [B, S]` -> `[B, T]` and which of them are live."""
        valid = valid_rows(attention_mask, input_ids)  # [B, S]
        if valid.shape != input_ids.shape:
            raise UnsupportedModelError(
                f"the attention mask covers {valid.shape[1]} positions but {input_ids.shape[1]} "
                "arrived: chunked prefill is not supported, leave out prefill_chunk_size"
            )
        self.image = self._find_image(input_ids)  # [B, S]
        if not bool(valid[:, -1].all()):
            raise ImageTokenError("the prompts are padded on the right: pad them on the left to generate")
        if bool(self.image[:, -1].any()):
            raise ImageTokenError(
                "the prompt ends with an image token, so the CF stream has no last row: put text after the image"
            )
        return self._cf_rows(self.image, valid)

    def _cf_rows(self, image: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Which rows go on as the CF stream, and which of them are live: `[B, T]` each, from `[B, S]`."""
        return text_rows(image, valid)

    def _check_static(self, model: nn.Module) -> None:
        """Refuse static caches where they cannot be followed."""
        check_static_cache(model)

    def _restrict(self, streams: Streams | Slots) -> None:
        """Narrow down what the CF stream may see of its own rows: everything, for it holds no image."""

    def _split(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before layer b: append the CF stream's rows to h^b (Algorithm 1, lines 5-6 and 13-14)."""
        now = self._running()
        hidden = args[0] if len(args) == 1 else None
        if not isinstance(hidden, Tensor) or hidden.ndim != 3 or hidden.shape[1] != now.q:
            raise UnsupportedModelError(
                f"{type(layer).__name__} was not called with hidden states [B, {now.q}, d] as its only "
                "positional argument: the fork does not know how to pack its inputs"
            )
        cache: Cache | None = kwargs.get("past_key_values")
        if now.cf_rows is not None:  # a prompt
            live = None if now.live is None or bool(now.live.all()) else now.live
            now.streams = Streams(now.cf_rows, live, now.q)
            open_streams(cache, self.boundary, self.layers, now.streams)
        else:
            now.streams = known_streams(cache, self.boundary)
            now.streams.count()
        self._restrict(now.streams)
        return (pack_rows(hidden, now.cf_rows),), kwargs  # [B, q + T, d]

    def _run_both(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before each layer b..L-1: positions for the rows of both streams (Eq. 2)."""
        missing = {"attention_mask", "position_embeddings"} - kwargs.keys()
        if missing:
            raise UnsupportedModelError(f"{type(layer).__name__} was called without {', '.join(sorted(missing))}")
        now, rotary = self._running(), kwargs["position_embeddings"]
        return args, {
            **kwargs,
            "position_embeddings": now.once(rotary[0], lambda: tuple(pack_rows(part, now.cf_rows) for part in rotary)),
        }

    def _attention(self, mask: Tensor | None) -> Split:
        """Inside the attention of such a layer: where its rows part, and what the CF stream sees and attends to."""
        now = self._running()
        keys, values = now.streams.pending
        now.streams.pending = (None, None)
        return Split(now.q, now.once(mask, lambda: cf_mask(mask, now.streams, now.newest())), keys, values)

    def _join(self, norm: nn.Module, args: tuple[Any, ...]) -> Any:
        """Before the final norm: keep the last rows of each stream, stacked along the batch (Eq. 3)."""
        hidden, q = args[0], self._running().q  # [B, q + T, d]
        h_full, h_cf = hidden[:, q - self.keep : q], hidden[:, -self.keep :]  # [B, keep, d]
        self._running().packed.clear()  # else they are outputs of a compiled step
        return (torch.cat([h_full, h_cf], dim=0), *args[1:])  # [2B, keep, d]

    @torch.compiler.disable  # type: ignore[untyped-decorator] # not annotated upstream
    def _contrast(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """After the model: z_cd = (1 + alpha) z_full - alpha z_cf, in float32 (Eq. 4)."""
        self._pass = None
        if not hasattr(output, "logits"):
            raise UnsupportedModelError("the model returned a tuple: call it with return_dict=True")
        # What is looked at is a copy: of compiled steps, the next one overwrites the logits.
        z = output.logits[:, -1].to(torch.float32, copy=self._on_step is not None)  # [2B, V]
        z_full, z_cf = z.chunk(2)  # [B, V]
        z_cd = contrast(z_full, z_cf, self.config.alpha)  # [B, V]
        if self._on_step is not None:
            self._on_step(Step(z_full, z_cf, z_cd))
        if self.config.beta is not None:
            z_cd = plausible(z_cd, z_full, self.config.beta)
        output.logits = z_cd[:, None]  # [B, 1, V]
        return output

    def _running(self) -> _Pass:
        """The pass under way.

        Raises:
            AttachError: a part of the model was called by itself, so its prompt is not known.
        """
        if self._pass is None:
            raise AttachError(
                "a part of the model was called by itself inside `with attach(...)`: call, and attach, the whole "
                "model whose `generate` you use (not `model.model`, nor a wrapper such as torch.compile's)"
            )
        return self._pass
