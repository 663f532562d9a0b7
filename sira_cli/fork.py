"""SIRA: one model, two streams, one pass (paper, Section 3 and Algorithm 1).

    layers 0..b-1     [ x_1 ........... x_S ]                      shared prefix, computed once
    at layer b        [ x_1 ........... x_S | x_t for t in text ]  the CF stream's rows are appended
    layers b..L-1     one call per layer; every row sees its own stream only
    after layer L-1   last row of each stream -> Norm -> W_out -> z_full, z_cf
    a decoding step   1 row in the shared layers, 2 rows (full, CF) in the late ones

The paper masks image positions in the CF stream. A masked row influences nothing, so here the stream
simply does not contain it: same numbers, fewer rows, and weights are read once for both streams.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from sira_cli.config import SiraConfig
from sira_cli.errors import AttachError, ImageTokenError, SettingsError, UnsupportedModelError, UntestedModelWarning
from sira_cli.families import FAMILIES, find_backbone
from sira_cli.masks import CF, FULL, Slots, pack_mask, text_rows

_attached: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@dataclass(frozen=True)
class Step:
    """The logits of one decoding step, float32 `[B, V]` each (B counts beams and returned sequences).

    `contrast` = (1 + alpha) full - alpha cf (paper, Eq. 4), before the plausibility cut-off if one is set.
    """

    index: int
    full: Tensor
    cf: Tensor
    contrast: Tensor


@contextmanager
def attach(
    model: nn.Module, config: SiraConfig | None = None, *, on_step: Callable[[Step], None] | None = None
) -> Iterator[Fork]:
    """Decode `model` with SIRA inside this context: every `model.generate(...)` picks from z_cd.

    Only hooks are used, and they are removed at the end, also after an error.

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
    if model in _attached:
        raise AttachError("SIRA is attached to this model already: leave the first `with attach(...)` block first")
    handles: list[torch.utils.hooks.RemovableHandle] = []
    _attached.add(model)
    try:
        handles.append(model.register_forward_pre_hook(fork._begin, with_kwargs=True))
        handles.append(fork._late_layers[0].register_forward_pre_hook(fork._split, with_kwargs=True))
        for layer in fork._late_layers:
            handles.append(layer.register_forward_pre_hook(fork._run_both, with_kwargs=True))
        handles.append(fork._norm.register_forward_pre_hook(fork._join))
        handles.append(model.register_forward_hook(fork._contrast))
        yield fork
    finally:
        for handle in handles:
            handle.remove()
        _attached.discard(model)


class Fork:
    """The two streams of one model. Made by `attach`; its methods are the hooks, in the order they run.

    Attributes:
        config: the settings.
        k, layers, boundary: K, L and b = L - K.
        image: `[B, S]` bool, P_img of the latest prompt (None before the first).
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
        self._find_image = config.image_tokens.resolve(model.config).find
        self._on_step = on_step
        self._late_layers = backbone.layers[self.boundary :]
        self._norm = backbone.norm
        self._step = 0
        # State of the forward pass under way.
        self._prefill = False
        self._q = 0  # rows of the full stream
        self._cf_rows: Tensor | None = None  # [B, T] rows that go on as the CF stream; None: all of them
        self._live: Tensor | None = None  # [B, T] False at fillers
        self._slots = Slots.empty(0, torch.device("cpu"))
        self._streams: Tensor | None = None  # [R] stream of each packed row
        self._packed: list[tuple[Any, Any]] = []  # masks and position embeddings made in this pass

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the model: find P_img in the prompt (Algorithm 1, input)."""
        input_ids = kwargs.get("input_ids", args[0] if args else None)
        if input_ids is None:
            raise UnsupportedModelError(
                "the model was called without input_ids, so its image tokens cannot be found: "
                "pass input_ids instead of inputs_embeds"
            )
        cache: Cache | None = kwargs.get("past_key_values")
        seen = cache.get_seq_length() if cache is not None else 0
        self._prefill = seen == 0
        self._packed = []
        self._q = input_ids.shape[1]
        if self._prefill:
            self._begin_prompt(input_ids, kwargs.get("attention_mask"))
        elif self._q == 1:
            self._cf_rows = self._live = None
        else:
            raise UnsupportedModelError(
                f"{self._q} new tokens arrived on a cache that already holds {seen}: chunked prefill, assisted "
                "generation and continued conversations are not supported. Pass the whole prompt, without "
                "past_key_values, assistant_model, prompt_lookup_num_tokens or prefill_chunk_size."
            )

    def _begin_prompt(self, input_ids: Tensor, attention_mask: Any) -> None:
        valid = torch.ones_like(input_ids, dtype=torch.bool)
        if isinstance(attention_mask, Tensor) and attention_mask.ndim == 2:
            if attention_mask.shape != input_ids.shape:
                raise UnsupportedModelError(
                    f"the attention mask covers {attention_mask.shape[1]} positions but {self._q} arrived: "
                    "chunked prefill is not supported, leave out prefill_chunk_size"
                )
            valid = attention_mask.bool()
        self.image = self._find_image(input_ids)  # [B, S]
        if not bool(valid[:, -1].all()):
            raise ImageTokenError("the prompts are padded on the right: pad them on the left to generate")
        if bool(self.image[:, -1].any()):
            raise ImageTokenError(
                "the prompt ends with an image token, so the CF stream has no last row: put text after the image"
            )
        self._cf_rows, self._live = text_rows(self.image, valid)  # [B, T]
        self._step = 0

    def _split(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before layer b: append the CF stream's rows to h^b (Algorithm 1, lines 5-6 and 13-14)."""
        hidden = args[0] if len(args) == 1 else None
        if not isinstance(hidden, Tensor) or hidden.ndim != 3 or hidden.shape[1] != self._q:
            raise UnsupportedModelError(
                f"{type(layer).__name__} was not called with hidden states [B, {self._q}, d] as its only "
                "positional argument: the fork does not know how to pack its inputs"
            )
        self._slots = self._open_slots(kwargs.get("past_key_values"), hidden)
        self._append_slots(hidden)
        return (self._pack_rows(hidden),), kwargs  # [B, q + T, d]

    def _open_slots(self, cache: Cache | None, hidden: Tensor) -> Slots:
        if not self._prefill:
            late = cache.layers[self.boundary] if cache is not None else None
            if not isinstance(late, LateLayer):
                raise AttachError(
                    "past_key_values was filled outside this `with attach(...)` block, so it holds no CF "
                    "stream: generate from the whole prompt, without past_key_values"
                )
            return late.slots
        slots = Slots.empty(len(hidden), hidden.device)
        if cache is not None:
            _replace_late_layers(cache, self.boundary, self.layers, slots)
        return slots

    def _append_slots(self, hidden: Tensor) -> None:
        batch, q, device = len(hidden), self._q, hidden.device
        position = torch.arange(self._slots.full_rows, self._slots.full_rows + q, device=device).expand(batch, q)
        text = self._cf_rows.to(device) if self._cf_rows is not None else position  # [B, T]
        visible = torch.zeros(batch, 2, q + text.shape[1], dtype=torch.bool, device=device)
        visible[:, FULL, :q] = True
        visible[:, CF, q:] = True if self._live is None else self._live.to(device)
        self._slots.append(torch.cat([position, text], dim=1), visible, q)
        self._streams = torch.tensor([FULL] * q + [CF] * text.shape[1], device=device)

    def _run_both(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before each layer b..L-1: the streams' mask and positions in place of the model's own (Eq. 2)."""
        assert self._streams is not None
        missing = {"attention_mask", "position_embeddings"} - kwargs.keys()
        if missing:
            raise UnsupportedModelError(f"{type(layer).__name__} was called without {', '.join(sorted(missing))}")
        mask, rotary = kwargs["attention_mask"], kwargs["position_embeddings"]
        streams = self._streams
        return args, {
            **kwargs,
            "attention_mask": self._once(mask, lambda: pack_mask(mask, self._slots, streams)),
            "position_embeddings": self._once(rotary, lambda: tuple(self._pack_rows(part) for part in rotary)),
        }

    def _once(self, source: Any, pack: Callable[[], Any]) -> Any:
        """Layers share masks and position embeddings, so each is packed once per forward pass."""
        for known, packed in self._packed:
            if known is source:
                return packed
        self._packed.append((source, pack()))
        return self._packed[-1][1]

    def _pack_rows(self, rows: Tensor) -> Tensor:
        """`[B or 1, q, d]` -> `[B, q + T, d]`: the rows of both streams."""
        if self._cf_rows is None:
            return torch.cat([rows, rows], dim=1)
        index = self._cf_rows.to(rows.device)  # [B, T]
        rows = rows.expand(len(index), -1, -1)
        text = rows.gather(1, index[:, :, None].expand(-1, -1, rows.shape[2]))  # [B, T, d]
        return torch.cat([rows, text], dim=1)

    def _join(self, norm: nn.Module, args: tuple[Any, ...]) -> Any:
        """Before the final norm: keep the last row of each stream, stacked along the batch (Eq. 3)."""
        hidden = args[0]  # [B, q + T, d]
        h_full, h_cf = hidden[:, self._q - 1 : self._q], hidden[:, -1:]  # [B, 1, d]
        return (torch.cat([h_full, h_cf], dim=0), *args[1:])  # [2B, 1, d]

    def _contrast(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """After the model: z_cd = (1 + alpha) z_full - alpha z_cf, in float32 (Eq. 4)."""
        if not hasattr(output, "logits"):
            raise UnsupportedModelError("the model returned a tuple: call it with return_dict=True")
        alpha = self.config.alpha
        z_full, z_cf = output.logits[:, -1].float().chunk(2)  # [B, V]
        z_cd = (1 + alpha) * z_full - alpha * z_cf  # [B, V]
        if self._on_step is not None:
            self._on_step(Step(self._step, z_full, z_cf, z_cd))
        self._step += 1
        if self.config.beta is not None:
            cut = z_full.max(dim=-1, keepdim=True).values + math.log(self.config.beta)  # [B, 1]
            z_cd = z_cd.masked_fill(z_full < cut, -math.inf)
        output.logits = z_cd[:, None]  # [B, 1, V]
        return output


class LateLayer(DynamicLayer):
    """Keys and values of both streams for one of the K late layers.

    To whoever builds masks it looks like the full stream alone, so that the model's own mask keeps
    the geometry it has without a fork. It never slides: a window would evict packed rows.
    """

    def __init__(self, slots: Slots) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # not annotated upstream
        self.slots = slots

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append `[B, H, R, D]` rows of both streams; both arguments grow to `[B, H, N, D]`.

        Raises:
            AttachError: the rows are not those that the fork announced.
        """
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        if keys.shape[-2] != len(self.slots):
            raise AttachError(
                f"a late layer's cache holds {keys.shape[-2]} rows where the two streams have {len(self.slots)}: "
                "a cache filled inside `with attach(...)` cannot be used outside of it"
            )
        return keys, values

    def get_seq_length(self) -> int:
        """Rows of the full stream."""
        return self.slots.full_rows

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Key columns of the model's own mask, and the position of the first."""
        return self.slots.full_rows + query_length, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Refused: packed rows are not in the order of positions."""
        raise UnsupportedModelError("the cache of two streams cannot be cropped: assisted generation is not supported")


def _replace_late_layers(cache: Cache, boundary: int, layers: int, slots: Slots) -> None:
    """Give an empty cache layers b..L-1 that hold both streams. The shared layers stay as they are."""
    if not isinstance(cache, DynamicCache) or cache.offloading:
        name = "an offloaded cache" if isinstance(cache, DynamicCache) else type(cache).__name__
        raise UnsupportedModelError(f"{name} is not supported: leave out cache_implementation (a dynamic cache)")
    while len(cache.layers) < layers:
        cache.layers.append(DynamicLayer())
    for index in range(boundary, layers):
        kind = type(cache.layers[index])
        if kind not in (DynamicLayer, DynamicSlidingWindowLayer, LateLayer):
            raise UnsupportedModelError(f"a cache with a {kind.__name__} is not supported: use a DynamicCache")
        cache.layers[index] = LateLayer(slots)
