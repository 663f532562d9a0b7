"""What SIRA costs beside greedy: `python -m tests.measure_overhead`; `--compile`: with compiled steps too.

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

from sira_cli.compiled import CompiledSteps
from sira_cli.config import SiraConfig
from sira_cli.fork import attach
from tests.tiny import CLIP

LAYERS, IMAGE_TOKENS, IMAGE = 24, 576, 32000
PHASES = ("prefill", "decode step", "whole request")


def build(dtype: torch.dtype, kv_heads: int, hidden: int) -> Any:
    config = hf.LlavaConfig(
        vision_config={**CLIP, "image_size": 336, "patch_size": 14},
        text_config={
            "model_type": "llama",
            "vocab_size": 32064,
            "hidden_size": hidden,
            "intermediate_size": hidden * 43 // 16,
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


def measure(
    model: Any, inputs: dict[str, Any], tokens: int, k: int | None, compiled: CompiledSteps | None
) -> tuple[float, float, float]:
    """Seconds: prefill, median decoding step, whole request. `k` None is greedy."""
    stamps: list[float] = []
    settings = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    if compiled:
        settings |= compiled.arguments(*inputs["input_ids"].shape, tokens)
    with attach(model, SiraConfig(k=k)) if k else contextlib.nullcontext():
        stamp = torch.compiler.disable(lambda *_: stamps.append(time.perf_counter()))
        handles = [
            model.register_forward_pre_hook(stamp, prepend=True),
            model.register_forward_hook(stamp),
        ]
        try:
            model.generate(**inputs, **settings)
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
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()

    dtype = getattr(torch, options.dtype)
    model = build(dtype, options.kv_heads, options.hidden)
    ids = torch.randint(5, 30000, (1, 45 + IMAGE_TOKENS))
    ids[:, 5 : 5 + IMAGE_TOKENS] = IMAGE
    inputs = {"input_ids": ids, "pixel_values": torch.randn(1, 3, 336, 336, dtype=dtype)}
    billions = sum(parameter.numel() for parameter in model.parameters()) / 1e9
    print(f"{billions:.2f} B parameters, {options.dtype}, {options.kv_heads} key/value heads of 16, L = {LAYERS}")
    print(
        f"K = {LAYERS // 2}, {ids.shape[1]} prompt tokens, torch {torch.__version__}, {torch.get_num_threads()} threads"
    )

    k = LAYERS // 2
    methods: dict[str, tuple[int | None, CompiledSteps | None]] = {"greedy": (None, None), "sira": (k, None)}
    pairs = [("greedy", "sira")]
    if options.compile:
        methods |= {"greedy compiled": (None, CompiledSteps(model)), "sira compiled": (k, CompiledSteps(model))}
        pairs += [("greedy", "greedy compiled"), ("greedy", "sira compiled"), ("greedy compiled", "sira compiled")]
    runs: dict[str, list[tuple[float, float, float]]] = {name: [] for name in methods}
    for run in range(options.runs + 1):  # the first is a warm-up, and compiles
        for name, (layers, compiled) in methods.items():
            seconds = measure(model, inputs, options.tokens, layers, compiled)
            if run:
                runs[name].append(seconds)
            elif compiled:
                print(f"{name}: first request {seconds[2]:.0f} s")
    for first, second in pairs:
        print(f"{'':<14}{first:>16}{second:>16}{'ratio':>8}   paired ratios")
        for phase, name in enumerate(PHASES):
            one, other = ([run[phase] for run in runs[method]] for method in (first, second))
            a, b = statistics.median(one), statistics.median(other)
            paired = sorted(y / x for x, y in zip(one, other, strict=True))
            print(
                f"{name:<14}{1e3 * a:>13.1f} ms{1e3 * b:>13.1f} ms{b / a:>8.3f}   {paired[0]:.3f} .. {paired[-1]:.3f}"
            )


if __name__ == "__main__":
    main()
