"""Recurrent mixers of the late layers (gated delta rules, short convolutions): each stream has a state of its own.

The paper masks attention. A row that is masked in attention influences nothing; a recurrent layer offers the same only
if the row neither writes into the state nor reads it. So image rows are dropped from the CF stream here, as everywhere.
Setting them to zero, as is done with padding, would be something else: the state would still decay at each of them.

    prompt            the model's own mixer, once on the full stream's rows and once on the CF stream's: as many
                      multiplications as one call on all of them
    a decoding step   both streams as 2B texts of one row: one call, so weights are read once
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, LinearAttentionLayer

from sira_cli.core.forward_pass import Pass
from sira_cli.core.hooks import Removable
from sira_cli.core.streams import Streams
from sira_cli.errors import UnsupportedModelError


class LateStateLayer(LinearAttentionLayer):
    """States of both streams for one late layer: along the batch those of the full stream, then those of the CF stream.

    Attributes:
        streams: the rows of both streams.
        cf: the CF stream's states while the prompt runs.
    """

    def __init__(self, streams: Streams, states: int) -> None:
        super().__init__(number_of_states=states)
        self.streams = streams
        self.cf = LinearAttentionLayer(number_of_states=states)

    def stack(self) -> None:
        """After the prompt: append the CF stream's states, `[B, ...]` -> `[2B, ...]`."""
        for full, cf in ((self.conv_states, self.cf.conv_states), (self.recurrent_states, self.cf.recurrent_states)):
            for index, state in full.items():
                if state is not None:
                    full[index] = torch.cat([state, cf[index]])  # type: ignore[list-item]
        self.cf = LinearAttentionLayer(number_of_states=self.number_of_states)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Let both streams follow the beams."""
        both: Any = torch.cat([beam_idx, beam_idx + len(beam_idx)])
        super().reorder_cache(both)


def two_states(mixers: Sequence[nn.Module], running: Callable[[], Pass]) -> Iterator[Removable]:
    """Let recurrent mixers run once per stream; yield what removes each hook.

    Args:
        mixers: called with hidden states `[B, q + T, d]`, which they return in the same shape.
        running: returns the pass under way.
    """
    for mixer in mixers:
        both = _BothStreams(running)
        yield mixer.register_forward_pre_hook(both.before, with_kwargs=True)
        yield mixer.register_forward_hook(both.after, with_kwargs=True)


class _BothStreams:
    """The hooks around one recurrent mixer."""

    def __init__(self, running: Callable[[], Pass]) -> None:
        self._running = running
        self._cf = torch.empty(0)  # [B, T, d] while a prompt's full stream runs

    def before(self, mixer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before the mixer: in a prompt leave it the full stream; in a step let the streams be texts of a batch."""
        now = self._running()
        hidden = kwargs.get("hidden_states", args[0] if args else None)  # [B, q + T, d]
        if not isinstance(hidden, Tensor):
            raise UnsupportedModelError(f"{type(mixer).__name__} was called without hidden states")
        if now.cf_rows is None:
            hidden = torch.cat([hidden[:, :1], hidden[:, 1:]])  # [2B, 1, d]
        else:
            hidden, self._cf = hidden[:, : now.q], hidden[:, now.q :]  # [B, q, d], [B, T, d]
        if "hidden_states" in kwargs:
            return args, {**kwargs, "hidden_states": hidden}
        return (hidden, *args[1:]), kwargs

    def after(self, mixer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
        """After the mixer: in a prompt run the CF stream; put the rows of both streams where the layer expects them."""
        now = self._running()
        if now.cf_rows is None:
            return torch.cat(output.chunk(2), dim=1)  # [B, 2, d]
        cf, self._cf = self._cf, torch.empty(0)
        live = now.streams.seen()  # [B, T], None: no fillers
        changed: dict[str, Any] = {"attention_mask": None if live is None else live.to(cf.device)}
        cache_name = next((name for name, value in kwargs.items() if isinstance(value, Cache)), None)
        late = None
        if cache_name is not None:
            late = kwargs[cache_name].layers[mixer.layer_idx]
            changed[cache_name] = _with_layer(kwargs[cache_name], mixer.layer_idx, late.cf)
        if "hidden_states" in kwargs:
            changed["hidden_states"] = cf
        else:
            args = (cf, *args[1:])
        cf_output = mixer.forward(*args, **{**kwargs, **changed})  # not called as a module: that would come back here
        if late is not None:
            late.stack()
        return torch.cat([output, cf_output], dim=1)  # [B, q + T, d]


def _with_layer(cache: Cache, index: int, layer: Any) -> Cache:
    """Return the same cache but for one layer."""
    changed = copy.copy(cache)
    changed.layers = [*cache.layers[:index], layer, *cache.layers[index + 1 :]]
    return changed
