"""Layers with a state per request as a card runs them, in Triton's interpreter and in float32.

On CPUs vLLM has gated delta nets in 16 bits only, and LFM2 turns its keys by wrong angles.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

KERNELS = "vllm.third_party.flash_linear_attention.ops"


def prepare(dtype: str) -> None:
    """Let vLLM take a card's way through these layers, in float32; before it is started."""
    import triton.language as tl
    from triton.runtime.autotuner import Autotuner
    from vllm.model_executor.layers.mamba.gdn import qwen_gdn_linear_attn as layers
    from vllm.model_executor.layers.mamba.short_conv import ShortConv
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
    from vllm.model_executor.models import qwen3_vl

    if dtype != "float32":
        qwen3_vl.HAS_TRITON = False  # a kernel of its picture tower gives NaN in the interpreter
        return
    layers.QwenGatedDeltaNetAttention.forward_cpu = layers.QwenGatedDeltaNetAttention.forward_cuda
    ShortConv.forward_native = ShortConv.forward_cuda
    RotaryEmbedding.forward_cpu = RotaryEmbedding.forward_native
    layers.fla_chunk_gated_delta_rule = chunk_rule
    # The interpreter runs `tl.exp`, but not a function that was imported before.
    for name, module in sys.modules.items():
        if name.startswith(KERNELS):
            for function in {"exp", "exp2", "log", "log2"} & vars(module).keys():
                setattr(module, function, lambda x, function=function: getattr(tl, function)(x))

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:  # nothing is timed here
        return self.fn.run(*args, **kwargs, **self.configs[0].all_kwargs())

    Autotuner.run = run


def chunk_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor, cu_seqlens: Tensor, **unused: Any
) -> tuple[Tensor, Tensor]:
    """Stand for a kernel that takes 16 bits only: rows `[1, N, heads, size]` of several prompts, one after another."""
    q, k = (each.repeat_interleave(v.shape[2] // each.shape[2], dim=2) for each in (q, k))
    out = torch.empty_like(v)
    states = initial_state.clone()  # [prompts, heads, value, key]
    for number, (start, end) in enumerate(zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)):
        for row in range(start, end):
            decayed = states[number] * g[0, row].exp()[:, None, None]
            seen = torch.einsum("hvk,hk->hv", decayed, k[0, row])
            change = beta[0, row][:, None] * (v[0, row] - seen)
            states[number] = decayed + change[:, :, None] * k[0, row][:, None]
            out[0, row] = torch.einsum("hvk,hk->hv", states[number], q[0, row]) * k.shape[-1] ** -0.5
    return out, states
