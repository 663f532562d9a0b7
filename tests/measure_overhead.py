"""What SIRA costs beside greedy: `python -m tests.measure_overhead`.

A random-weight model of LLaVA-1.5's layout, 576 image tokens, more than 1 billion parameters. Greedy and
SIRA run in turn (A B A B ...), so that a machine whose speed drifts does not favour one; the ratio of
their medians counts, and the spread of the paired ratios says how far to trust it.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from typing import Any

import torch
import transformers as hf

from sira_cli.config import SiraConfig
from sira_cli.fork import attach
from tests.tiny import CLIP

LAYERS, IMAGE_TOKENS, IMAGE = 24, 576, 32000
PHASES = ("prefill", "decode step", "whole request")


def build(dtype: torch.dtype, kv_heads: int) -> Any:
    config = hf.LlavaConfig(
        vision_config={**CLIP, "image_size": 336, "patch_size": 14},
        text_config={
            "model_type": "llama",
            "vocab_size": 32064,
            "hidden_size": 2048,
            "intermediate_size": 5504,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 16,
            "num_key_value_heads": kv_heads,
            "max_position_embeddings": 4096,
        },
        image_token_index=IMAGE,
        image_seq_length=IMAGE_TOKENS,
    )
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(dtype)
    model = hf.LlavaForConditionalGeneration(config).eval()
    torch.set_default_dtype(torch.float32)
    return model


def measure(model: Any, inputs: dict[str, Any], tokens: int, k: int | None) -> tuple[float, float, float]:
    """Seconds: prefill, median decoding step, whole request. `k` None is greedy."""
    stamps: list[float] = []
    handles = [
        model.register_forward_pre_hook(lambda *_: stamps.append(time.perf_counter())),
        model.register_forward_hook(lambda *_: stamps.append(time.perf_counter())),
    ]
    try:
        with attach(model, SiraConfig(k=k)) if k else contextlib.nullcontext():
            model.generate(**inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
    finally:
        for handle in handles:
            handle.remove()
    passes = [end - start for start, end in zip(stamps[::2], stamps[1::2], strict=True)]
    assert len(passes) == tokens  # the same number of tokens for both
    return passes[0], statistics.median(passes[1:]), stamps[-1] - stamps[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--kv-heads", type=int, default=16, help="16 as in LLaVA-1.5; 4 shares heads as Qwen does")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()

    dtype = getattr(torch, options.dtype)
    model = build(dtype, options.kv_heads)
    ids = torch.randint(5, 30000, (1, 45 + IMAGE_TOKENS))
    ids[:, 5 : 5 + IMAGE_TOKENS] = IMAGE
    inputs = {"input_ids": ids, "pixel_values": torch.randn(1, 3, 336, 336, dtype=dtype)}
    billions = sum(parameter.numel() for parameter in model.parameters()) / 1e9
    print(f"{billions:.2f} B parameters, {options.dtype}, {options.kv_heads} key/value heads of 16, L = {LAYERS}")
    print(
        f"K = {LAYERS // 2}, {ids.shape[1]} prompt tokens, torch {torch.__version__}, {torch.get_num_threads()} threads"
    )

    methods = {"greedy": None, "sira": LAYERS // 2}
    runs: dict[str, list[tuple[float, float, float]]] = {name: [] for name in methods}
    for run in range(options.runs + 1):  # the first is a warm-up
        for name, k in methods.items():
            seconds = measure(model, inputs, options.tokens, k)
            if run:
                runs[name].append(seconds)
    print(f"{'':<14}{'greedy':>12}{'sira':>12}{'ratio':>8}   paired ratios")
    for phase, name in enumerate(PHASES):
        greedy, sira = ([run[phase] for run in runs[method]] for method in methods)
        a, b = statistics.median(greedy), statistics.median(sira)
        paired = sorted(second / first for first, second in zip(greedy, sira, strict=True))
        print(f"{name:<14}{1e3 * a:>9.1f} ms{1e3 * b:>9.1f} ms{b / a:>8.3f}   {paired[0]:.3f} .. {paired[-1]:.3f}")


if __name__ == "__main__":
    main()
