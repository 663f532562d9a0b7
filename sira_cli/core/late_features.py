"""Image features that a model adds to its rows before late layers (Granite 4 Vision).

Those of the shared layers the model adds itself. Those of later ones are meant for rows of the full stream: the model
knows no others, so they are added here. The CF stream holds no image rows, and gets nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sira_cli.core.forward_pass import Pass
from sira_cli.core.hooks import Removable


def features_of_late_layers(
    decoder: nn.Module, layers: nn.ModuleList, boundary: int, running: Callable[[], Pass]
) -> Iterator[Removable]:
    """Add features to the full stream's rows before layers b+1..L-1; yield what removes each hook.

    Args:
        decoder: the text stack, called with `deepstack_features`, `[N, d]` by layer, and `vision_mask`, `[B, S, 1]`
            bool, which N rows they belong to; or without.
        layers: its L decoder layers.
        boundary: b. Before it there is one stream, so that its features are the model's own affair.
        running: returns the pass under way.
    """
    late: dict[int, Tensor] = {}  # while a prompt runs
    masks: list[Tensor] = []

    def take(decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        features = kwargs.get("deepstack_features") or {}
        late.clear()
        late.update({layer: rows for layer, rows in features.items() if layer > boundary})
        masks[:] = [kwargs["vision_mask"]] if late else []
        if not late:
            return None
        return args, {**kwargs, "deepstack_features": {key: rows for key, rows in features.items() if key not in late}}

    def add(layer: int, module: nn.Module, args: tuple[Any, ...]) -> Any:
        if layer not in late:
            return None
        full, cf = args[0][:, : running().q], args[0][:, running().q :]  # [B, q, d], [B, T, d]
        mask, rows = masks[0].to(full.device), late.pop(layer).to(full.device, full.dtype)
        full = full.masked_scatter(mask, (full[mask.squeeze(-1)] + rows).view(-1))
        return (torch.cat([full, cf], dim=1), *args[1:])

    yield decoder.register_forward_pre_hook(take, with_kwargs=True)
    for layer in range(boundary + 1, len(layers)):
        yield layers[layer].register_forward_pre_hook(partial(add, layer))
