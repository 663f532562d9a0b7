"""Image features that a model adds to its rows before late layers (Granite 4 Vision).

The model itself adds those of the shared layers. In later layers it cannot locate the rows of two streams, so features
are added here, to image rows; SIRA's CF stream has no image rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from sira_cli.core.forward_pass import Pass
from sira_cli.core.hooks import Removable
from sira_cli.core.masks import pack_rows


def features_of_late_layers(
    decoder: nn.Module, layers: nn.ModuleList, boundary: int, running: Callable[[], Pass]
) -> Iterator[Removable]:
    """Add features to image rows before layers b+1..L-1; yield the handle of each hook.

    Args:
        decoder: the text stack; optional arguments `deepstack_features`, `[N, d]` by layer, and `vision_mask`,
            `[B, S, 1]` bool, their N rows.
        layers: its L decoder layers.
        boundary: b. Before it there is one stream, and the model adds the features.
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
        now, hidden = running(), args[0]  # [B, q + T, d]
        mask = masks[0].to(hidden.device)
        rows = hidden.new_zeros(len(hidden), now.q, hidden.shape[-1])
        rows = rows.masked_scatter(mask, late.pop(layer).to(hidden.device, hidden.dtype))
        return (hidden + pack_rows(rows, now.cf_rows), *args[1:])

    yield decoder.register_forward_pre_hook(take, with_kwargs=True)
    for layer in range(boundary + 1, len(layers)):
        yield layers[layer].register_forward_pre_hook(partial(add, layer))
