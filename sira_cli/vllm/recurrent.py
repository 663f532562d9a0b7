"""Layers with a state per request in place of keys: gated delta nets (Qwen3.5 and 3.6), short convolutions (LFM2).

The contrast stream has states of its own, in the same blocks, which text rows alone have changed. Nothing is compacted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.utils.torch_utils import async_tensor_h2d, direct_register_custom_op
from vllm.v1.attention.backends.utils import NULL_BLOCK_ID

from sira_cli.vllm.layers import Kind, joined
from sira_cli.vllm.step import Step

# What an operator of vLLM calls with rows alone, by the class of the layer; the compiler does not look into it.
CORES = {
    "QwenGatedDeltaNetAttention": ("_forward_core",),  # after one projection of both streams
    "ShortConv": ("forward_cuda", "forward_native"),  # the one or the other, by the platform
}
WHOLE = "forward_cpu"  # where the operator calls nothing of the layer, so the whole layer runs twice


class Recurrent(Kind):
    """A state per request, which each row changes: a cache of one entry, so a text row's place does not matter."""

    takes = MambaBase

    def unfit(self, layer: Any, *, late: bool, config: Any) -> str:
        """Refuse classes that were not tried, and states that requests share."""
        name = type(layer).__name__
        if name not in CORES:
            return f"is {name}, a recurrent layer that is not known"
        if _forward(layer) not in ("", "forward_cuda", WHOLE):
            return f"runs {_forward(layer)}, which is not known"
        return ""

    def twin(self, layer: Any, name: str) -> Any:
        """Return a copy with states of its own."""
        twin = copy.copy(layer)
        twin.prefix = name
        twin.kv_cache = (torch.tensor([]),)
        return twin

    def join(
        self,
        streams: Any,
        layer: Any,
        twin: Any,
        parent: nn.Module,
        key: str,
    ) -> None:
        """Let the layer's core run both streams where the compiler does not look."""
        if _forward(layer) == WHOLE:
            both = Both(streams, _into(layer), _into(twin))
            layer._forward_method = _operator(layer.prefix)
        else:
            for name in CORES[type(layer).__name__]:
                both = Both(streams, getattr(layer, name), getattr(twin, name))
                setattr(layer, name, both)
        layer.__dict__["sira"] = both


@dataclass
class Both:
    """The core of one late layer in both streams.

    Attributes:
        streams: as in `Kind.join`.
        full: what changes the full stream's states.
        contrast: what changes the contrast stream's.
    """

    streams: Any
    full: Callable[..., Any]
    contrast: Callable[..., Any]

    def __call__(self, **tensors: Tensor) -> None:
        """Run both: each tensor has rows `[N + M, ...]`, and the output is one of them."""
        n = self.streams.n
        end = n + self.streams.live
        full = {name: rows[:n] for name, rows in tensors.items()}
        self.full(**full)
        if end > n:
            text = {name: rows[n:end] for name, rows in tensors.items()}
            self.contrast(**text)


def one_row_each(table: Tensor, step: Step, layers: list[Any]) -> Tensor:
    """Prepare states for a step that is a CUDA graph, which runs one row of each request as a decoding step.

    An image row must not change the state, and the first text row must not go on from that of an earlier request.
    In other steps image rows are left out, and vLLM knows a first row.

    Args:
        table: the block of each request's state `[r, ...]`.
        step: the text rows; with one row of each request, `place` is that of each request.
        layers: of the contrast stream, in this cache group.

    Returns:
        The table, with the block that is no one's for image rows.
    """
    if step.live != len(step.lengths):
        return table
    first = np.flatnonzero(step.place == 0)
    if len(first):
        blocks = table[async_tensor_h2d(first, device=table.device), 0]
        for layer in layers:
            for state in layer.kv_cache:
                state[blocks] = 0
    image = step.place < 0
    if not image.any():
        return table
    mask = async_tensor_h2d(image, device=table.device)
    return table[: len(image)].masked_fill(mask[:, None], NULL_BLOCK_ID)


def _forward(layer: Any) -> str:
    """Return the name of the forward that a layer chose by the platform; empty: its class has no choice."""
    method = getattr(layer, "_forward_method", None)
    return "" if method is None else str(method.__name__)


def _into(layer: Any) -> Callable[..., None]:
    """Return a layer's whole forward, which writes to its output."""
    run = getattr(layer, WHOLE)

    def forward(hidden: Tensor, output: Tensor) -> None:
        output.copy_(run(hidden))

    return forward


def _operator(name: str) -> Callable[[Tensor], Tensor]:
    """Return a forward for the layer `name` of the full stream: `[N + M, d]` of both streams in and out."""

    def forward(hidden: Tensor) -> Tensor:
        output = torch.empty_like(hidden)
        torch.ops.vllm.sira_recurrent(hidden, output, name)
        return output

    return forward


def _recurrent(hidden: Tensor, output: Tensor, layer_name: str) -> None:
    joined(layer_name)(hidden=hidden, output=output)


direct_register_custom_op("sira_recurrent", _recurrent, mutates_args=["output"], fake_impl=lambda *rows: None)
