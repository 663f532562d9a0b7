"""Recurrent mixers of the late layers (gated delta rules, short convolutions): each stream has a state of its own.

The paper masks attention. A row that is masked in attention influences nothing; the same holds in a recurrent layer
only if the row neither writes nor reads the state. So image rows are also dropped from the CF stream here. Setting
them to zero, as is done with padding, would differ: the state would still decay at each of them.

    prompt            the model's own mixer, once on the full stream's rows and once on the CF stream's: no more
                      multiplications than one call on all of them
    a decoding step   both streams as 2B texts of one row: one call, so weights are read once
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionCacheLayerMixin, LinearAttentionLayer

from sira_cli.core.arguments import Args, Kwargs, hidden_of, mask_name, with_hidden, with_layer
from sira_cli.core.hooks import AroundModules
from sira_cli.core.masks import Pass
from sira_cli.core.streams import StreamRows
from sira_cli.errors import AttachError, UnsupportedModelError


class LateStateLayer(LinearAttentionCacheLayerMixin):
    """One late layer of both streams. The model cannot use its state without the fork."""

    def __init__(self, own: LinearAttentionLayer, streams: StreamRows) -> None:
        super().__init__(number_of_states=own.number_of_states)
        self.own = own  # the model's own layer, which this one replaces
        self.streams = streams  # both streams' rows
        # along the batch the full stream's, then the CF stream's; while a prompt runs, only the full stream's
        self.states = LinearAttentionLayer(number_of_states=own.number_of_states)

    def stack(self, cf: LinearAttentionLayer) -> None:
        """After the prompt: append the CF stream's states, `[B, ...]` -> `[2B, ...]`."""
        full = self.states
        kinds = ((full.conv_states, cf.conv_states), (full.recurrent_states, cf.recurrent_states))
        for states, cf_states in kinds:
            for index, state in states.items():
                if state is not None:
                    states[index] = torch.cat([state, cf_states[index]])  # type: ignore[list-item]

    def reset(self) -> None:
        """Empty both streams."""
        self.states = LinearAttentionLayer(number_of_states=self.number_of_states)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Let both streams follow the beams."""
        both: Any = torch.cat([beam_idx, beam_idx + len(beam_idx)])
        self.states.reorder_cache(both)

    def update_conv_state(self, conv_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Refuse: the model runs without the fork."""
        raise AttachError("a cache filled inside `with attach(...)` cannot be used outside of it")

    def update_recurrent_state(self, recurrent_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Refuse, as `update_conv_state`."""
        return self.update_conv_state(recurrent_states)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is no state."""


class TwoStates(AroundModules):
    """The hooks by which a recurrent mixer runs once per stream."""

    _cf: Tensor  # [B, T, d] while a prompt's full stream runs

    def before(self, mixer: Any, args: Args, kwargs: Kwargs) -> Any:
        """Before the mixer: in a prompt pass the full stream only; in a step make the streams texts of a batch."""
        now: Pass = self.running()
        hidden = hidden_of(mixer, args, kwargs)  # [B, q + T, d]
        if hidden is None:
            raise UnsupportedModelError(f"{type(mixer).__name__} was called without hidden states")
        if now.cf_rows is None:
            hidden = torch.cat([hidden[:, :1], hidden[:, 1:]])  # [2B, 1, d]
        else:
            self._cf = hidden[:, now.q :]  # [B, T, d]
            hidden = hidden[:, : now.q]  # [B, q, d]
        late: Any = None if now.cache is None else now.cache.layers[mixer.layer_idx]
        states = None if late is None else late.states
        return with_hidden(mixer, args, with_layer(kwargs, mixer.layer_idx, states), hidden)

    def after(self, mixer: Any, args: Args, kwargs: Kwargs, output: Tensor) -> Tensor:
        """After the mixer: in a prompt run the CF stream; join the rows of both streams as the layer expects them."""
        now: Pass = self.running()
        if now.cf_rows is None:
            return torch.cat(output.chunk(2), dim=1)  # [B, 2, d]
        cf = self._cf
        del self._cf
        live = now.streams.seen()  # [B, T], None: no fillers
        late: Any = None if now.cache is None else now.cache.layers[mixer.layer_idx]
        states = None if late is None else LinearAttentionLayer(number_of_states=late.number_of_states)
        args, kwargs = with_hidden(mixer, args, with_layer(kwargs, mixer.layer_idx, states), cf)
        kwargs[mask_name(mixer, kwargs)] = None if live is None else live.to(cf.device)
        cf_output = mixer.forward(*args, **kwargs)  # not called as a module: that would come back here
        if states is not None:
            late.stack(states)
        return torch.cat([output, cf_output], dim=1)  # [B, q + T, d]
