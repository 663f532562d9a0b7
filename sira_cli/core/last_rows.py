"""The last layer of a prompt: every row gets a key and a value there, but only rows that decide a token go further.

k_proj, v_proj                   all rows of both streams: the cache needs them
q_proj, attention, o_proj, MLP   the last rows of each stream; the others become zeros and are never read

Layers that share the keys of earlier ones write none, so only the last row of each stream runs there, as in Gemma 4
without a fork. Without a cache all rows stay: nothing else holds the CF stream's keys then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sira_cli.core.arguments import Args, Kwargs, mask_name, parameters
from sira_cli.core.families import ROW_ARGUMENTS, Backbone
from sira_cli.core.hooks import Removable
from sira_cli.core.masks import Pass, pack_rows

FEATURES = "deepstack_features"  # the argument by which a text stack takes features to add in front of its layers


@dataclass(frozen=True)
class LastRows:
    """The last rows of both streams among the packed rows of a prompt."""

    q: int  # rows of the full stream, which come first
    cf: int  # rows of the CF stream
    count: int  # number of last rows of each

    def take(self, rows: Tensor) -> Tensor:
        """Take the full stream's last rows, then the CF stream's: `[B, q + T, ...]` -> `[B, 2 count, ...]`."""
        full = rows[:, self.q - self.count : self.q]
        return torch.cat([full, rows[:, -self.count :]], dim=1)

    def put_back(self, taken: Tensor) -> Tensor:
        """Put taken rows back in place, among zeros: `[B, 2 count, ...]` -> `[B, q + T, ...]`."""
        rows = taken.new_zeros(len(taken), self.q + self.cf, *taken.shape[2:])
        rows[:, self.q - self.count : self.q] = taken[:, : self.count]
        rows[:, -self.count :] = taken[:, self.count :]
        return rows


def last_row_inputs(layer: nn.Module, now: Pass, args: Args, kwargs: Kwargs) -> tuple[Any, Any]:
    """Return a decoder layer's arguments, except hidden states, reduced to a prompt's last row."""
    name = mask_name(layer, kwargs)
    mask = kwargs[name]  # [B or 1, H, q, kv]
    reduced = dict(kwargs)
    for argument in ROW_ARGUMENTS:
        if argument in kwargs:
            reduced[argument] = now.last(kwargs[argument])
    if mask is not None:
        reduced[name] = now.once(mask, lambda: mask[:, :, -1:])
    return (*args[:1], *map(now.last, args[1:])), reduced


class LastRowsOnly:
    """Hooks by which only a prompt's last rows go through modules that treat each row by itself.

    They are there while a prompt runs: in a decoding step they would cost time and do nothing. Hooks of others see
    the last rows before such a module, and all rows after it.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self.handles: list[Removable] = []

    def begin(self, rows: LastRows) -> None:
        """Put the hooks on."""

        def take(module: nn.Module, args: Args) -> tuple[Tensor]:
            return (rows.take(args[0]),)

        def put_back(module: nn.Module, args: Args, output: Tensor) -> Tensor:
            return rows.put_back(output)

        for module in self._modules:
            self.handles.append(module.register_forward_pre_hook(take, prepend=True))
            self.handles.append(module.register_forward_hook(put_back, prepend=True))

    def end(self) -> None:
        """Remove them, if they are there."""
        while self.handles:
            self.handles.pop().remove()


def features_of_late_layers(backbone: Backbone, boundary: int, running: Callable[[], Pass]) -> Iterator[Removable]:
    """Add image features that a model adds to its rows before layers b+1..L-1 (Granite 4 Vision); yield each handle.

    The model itself adds those of the shared layers. In later layers it cannot locate the rows of two streams, so they
    are added here, to image rows; SIRA's CF stream has none.
    """
    late: dict[int, Tensor] = {}  # while a prompt runs
    masks: list[Tensor] = []
    if FEATURES not in parameters(type(backbone.decoder).forward):
        return

    def take(decoder: nn.Module, args: Args, kwargs: Kwargs) -> Any:
        late.clear()
        shared: dict[int, Tensor] = {}
        for layer, rows in (kwargs.get(FEATURES) or {}).items():
            (late if layer > boundary else shared)[layer] = rows
        if not late:
            return None
        masks[:] = [kwargs["vision_mask"]]
        return args, {**kwargs, FEATURES: shared}

    def add(layer: int, module: nn.Module, args: Args) -> Any:
        if layer not in late:
            return None
        now = running()
        hidden = args[0]  # [B, q + T, d]
        mask = masks[0].to(hidden.device)
        rows = hidden.new_zeros(len(hidden), now.q, hidden.shape[-1])
        rows = rows.masked_scatter(mask, late.pop(layer).to(hidden.device, hidden.dtype))
        return (hidden + pack_rows(rows, now.cf_rows), *args[1:])

    yield backbone.decoder.register_forward_pre_hook(take, with_kwargs=True)
    for number, layer in enumerate(backbone.decoder_layers):
        if number > boundary:
            yield layer.register_forward_pre_hook(partial(add, number))
