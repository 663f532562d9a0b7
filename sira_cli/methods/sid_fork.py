"""SID's contrast stream as SIRA's fork with another choice of rows and columns.

    layers 0, 1       one stream; layer 1's attention of the newest row ranks the image tokens
    from layer 2 on   both streams hold every row. The newest rows of the contrast stream see its text and
                      the `visible` image tokens that they attend to least

Each row is ranked when it is the newest one, and keeps what it computed then: the prompt's rows by the
prompt's last row, each generated token by itself. So image rows stay in the cache and only the mask changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sira_cli.core.cache import Streams
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import find_backbone
from sira_cli.core.fork import Fork, Step
from sira_cli.core.hooks import Removable, attached_hooks
from sira_cli.core.image_tokens import ImageTokens
from sira_cli.core.masks import text_rows
from sira_cli.core.static_cache import Slots
from sira_cli.errors import UnsupportedModelError

BOUNDARY = 2


@contextmanager
def attach_sid(
    model: Any,
    image_tokens: ImageTokens,
    *,
    alpha: float,
    beta: float,
    visible: int,
    on_step: Callable[[Step], None] | None = None,
) -> Iterator[Fork]:
    """Decode `model` with SID inside this context; otherwise as `sira_cli.core.fork.attach`.

    Args:
        model, on_step: as for `attach`.
        image_tokens: which positions belong to the image.
        alpha, beta: contrast strength and plausibility cut-off.
        visible: image tokens that the contrast stream sees.

    Raises:
        UnsupportedModelError: also if the model's first layers do not allow the ranking or the fork.
    """
    backbone = find_backbone(model)
    name, layers = type(model).__name__, len(backbone.layers)
    kinds = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
    if backbone.first_boundary > BOUNDARY or layers <= BOUNDARY:
        raise UnsupportedModelError(
            f"method sid forks at layer {BOUNDARY}, but {name} has {layers} layers, the first "
            f"{backbone.first_boundary} of which every stream must share (DeepStack): choose another method"
        )
    if "sliding_attention" in kinds[BOUNDARY - 1 : BOUNDARY]:
        raise UnsupportedModelError(
            f"method sid ranks image tokens by the attention of layer {BOUNDARY - 1}, but that of {name} "
            "has a sliding window, beyond which none is attended to: choose another method"
        )
    fork = _SidFork(model, SiraConfig(k=layers - BOUNDARY, alpha=alpha, beta=beta, image_tokens=image_tokens), on_step)
    fork.visible, fork.ranking = visible, backbone.layers[BOUNDARY - 1].self_attn
    with attached_hooks(fork._norm) as handles:
        fork._hook(model, handles)
        yield fork


class _SidFork(Fork):
    """A fork whose contrast stream has image rows, most of which it may not see."""

    visible: int
    ranking: Any  # the attention of layer b - 1
    _chosen: Tensor  # [B, kv] bool, image positions that the newest rows may see
    _live: Tensor  # [B, T] rows of the prompt that are no fillers
    _again = False

    def _hook(self, model: nn.Module, handles: list[Removable]) -> None:
        super()._hook(model, handles)
        handles.append(self.ranking.register_forward_hook(self._rank, with_kwargs=True))

    def _cf_rows(self, image: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        return text_rows(torch.zeros_like(image), valid)  # all but padding

    def _rank(self, attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """After layer b - 1's attention: the image tokens that its last row attends to least."""
        if self._again:
            return
        self._running()
        cache, hidden = kwargs.get("past_key_values"), kwargs.get("hidden_states")
        if cache is None or hidden is None:
            raise UnsupportedModelError(
                "method sid reads keys from the cache: leave out use_cache=False"
                if cache is None
                else f"method sid does not know how {type(attention).__name__} gets its hidden states"
            )
        stored = cache.layers[BOUNDARY - 1]
        mask = kwargs.get("attention_mask")
        if mask is not None:
            mask = mask[:, :, -1:]  # [B or 1, 1, 1, kv]
            if mask.dtype == torch.bool:
                mask = torch.zeros_like(mask, dtype=hidden.dtype).masked_fill(~mask, torch.finfo(hidden.dtype).min)
        again = {
            **kwargs,
            "hidden_states": hidden[:, -1:],  # [B, 1, d]
            "position_embeddings": tuple(part[..., -1:, :] for part in kwargs["position_embeddings"]),
            "attention_mask": mask,
            "past_key_values": _Stored(stored.keys, stored.values),
        }
        weights = self._eagerly(attention, again)  # [B, H, 1, kv]
        attended = weights.float().mean(dim=1)[:, 0]  # [B, kv]
        assert self.image is not None
        image = F.pad(self.image, (0, attended.shape[1] - self.image.shape[1])).to(attended.device)  # text follows
        order = attended.masked_fill(~image, torch.inf).argsort(dim=1, stable=True)  # least attended first
        self._chosen = torch.zeros_like(image).scatter(1, order[:, : self.visible], True) & image

    def _eagerly(self, attention: Any, kwargs: dict[str, Any]) -> Tensor:
        """The attention weights of one row: sdpa does not give them, and computes nothing here."""
        config, self._again = attention.config, True
        implementation = config._attn_implementation
        config._attn_implementation = "eager"
        try:
            weights: Tensor = attention(**kwargs)[1]
        finally:
            config._attn_implementation, self._again = implementation, False
        return weights

    def _check_static(self, model: nn.Module) -> None:
        raise UnsupportedModelError("method sid needs a cache that grows: leave out cache_implementation")

    def _restrict(self, streams: Streams | Slots) -> None:
        """The contrast stream's image rows are visible if they are chosen, for the rows under way."""
        assert self.image is not None
        assert isinstance(streams, Streams)
        rows = streams.rows  # [B, T], every row of the prompt but padding
        image, chosen = (each.to(rows.device).gather(1, rows) for each in (self.image, self._chosen))
        if (live := self._running().live) is not None:  # a prompt
            self._live = live
        streams.live = self._live & (~image | chosen)


class _Stored:
    """Keys and values that hold the row which is computed again."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self._stored = keys, values

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """All of them, nothing added."""
        return self._stored
