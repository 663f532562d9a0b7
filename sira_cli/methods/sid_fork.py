"""SID's contrast stream as SIRA's fork with another choice of rows and columns.

    layers 0, 1       one stream; layer 1's attention of the newest row ranks the image tokens
    from layer 2 on   both streams hold every row. The newest rows of the contrast stream see its text and
                      the `visible` image tokens that they attend to least

Each row ranks the image tokens once, when it is the newest one, and is not computed again: the prompt's rows use the
ranking of the prompt's last row, each generated token its own. So image rows stay in the cache and only the mask
changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sira_cli.core.arguments import Args, Kwargs, cache_of
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import check_columns, find_backbone
from sira_cli.core.fork import Fork
from sira_cli.core.hooks import Removable
from sira_cli.core.masks import Pass, text_rows
from sira_cli.errors import PictureSettingsError, UnsupportedModelError
from sira_cli.methods.attention_rows import attention_rows

BOUNDARY = 2


class SidFork(Fork):
    """A fork at layer 2 whose contrast stream has image rows, most of them hidden."""

    def __init__(self, model: Any, config: SiraConfig, visible: Callable[[int], int]) -> None:
        check_columns(model, "method sid")
        backbone = find_backbone(model)
        name = type(model).__name__
        layers = len(backbone.decoder_layers)
        if backbone.first_boundary > BOUNDARY or layers <= BOUNDARY:
            raise UnsupportedModelError(
                f"method sid forks at layer {BOUNDARY}, but {name} has {layers} layers, the first "
                f"{backbone.first_boundary} of which every stream must share (DeepStack): choose another method"
            )
        kinds = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
        if "sliding_attention" in kinds[BOUNDARY - 1 : BOUNDARY]:
            raise UnsupportedModelError(
                f"method sid ranks image tokens by the attention of layer {BOUNDARY - 1}, but in {name} this "
                "layer has a sliding window and sees only some of them: choose another method"
            )
        super().__init__(model, dataclasses.replace(config, k=layers - BOUNDARY))
        self._visible_of = visible
        self._visible = torch.empty(0)  # [B]
        self._ranking: Any = backbone.decoder_layers[BOUNDARY - 1].self_attn
        self._chosen = torch.empty(0)  # [B, kv] bool, image positions that the newest rows may see
        self._live = torch.empty(0)  # [B, T] bool, rows of the prompt that are not fillers

    def hooks(self) -> Iterator[Removable]:
        """Put the fork's hooks on, and one that ranks image tokens."""
        yield from super().hooks()
        yield self._ranking.register_forward_hook(self._rank, with_kwargs=True)

    def choose_cf_rows(self, image: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Choose every row but padding; set the number of visible image rows."""
        self._visible = torch.tensor([self._visible_of(tokens) for tokens in image.sum(dim=1).tolist()])
        rows, self._live = text_rows(torch.zeros_like(image), valid)
        return rows, self._live

    def visible_cf_rows(self, now: Pass) -> Tensor:
        """Show text, and the image rows that the newest row chose."""
        assert self.image is not None
        rows = now.streams.rows  # [B, T], every row of the prompt but padding
        image = self.image.to(rows.device).gather(1, rows)
        chosen = self._chosen.to(rows.device).gather(1, rows)
        return self._live & (~image | chosen)

    def _rank(self, attention: Any, args: Args, kwargs: Kwargs, output: Any) -> None:
        """After layer b - 1's attention: choose the image tokens that its last row attends to least."""
        self.running()
        cache = cache_of(args, kwargs)
        stored: Any = None if cache is None else cache.layers[attention.layer_idx]
        if getattr(stored, "is_sliding", False) and stored.get_seq_length() > stored.keys.shape[-2]:
            raise PictureSettingsError(
                f"method sid ranks image tokens by the attention of layer {BOUNDARY - 1}, which sees only the last "
                f"{stored.sliding_window} positions, fewer than prompt and text have: choose another method"
            )
        weights = attention_rows(attention, kwargs, 1, "sid")  # [B, H, 1, kv]
        attended = weights.mean(dim=1)[:, 0]  # [B, kv]
        assert self.image is not None
        new = attended.shape[1] - self.image.shape[1]
        image = F.pad(self.image, (0, new)).to(attended.device)  # text follows
        order = attended.masked_fill(~image, torch.inf).argsort(dim=1, stable=True)  # [B, kv], least attended first
        least = torch.arange(order.shape[1]) < self._visible[:, None]  # [B, kv]
        self._chosen = torch.zeros_like(image).scatter(1, order, least.to(order.device)) & image
