"""Which models that people know run inside vLLM: the table of docs/vllm.md, with what the tests try of each."""

from __future__ import annotations

import re

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
    "gemma3": ["eager"],
    "qwen3.5": ["eager", "compiled", "in chunks", "graphs", "preempted"],
    "lfm2-vl": ["eager", "in chunks", "graphs"],
}
LIMITS = {
    "lfm2-vl": "not on CPUs",
    "gemma3": "`--max-model-len 1024`, its window; not on CPUs",
    "qwen3-vl": "K leaves out DeepStack's layers",
}
LIMITS["qwen3-vl-moe"] = LIMITS["qwen3-vl"]
REFUSED = {
    "Gemma 4, PaliGemma, Molmo 2": "image tokens attend in both directions",
    "Gemma 4 E, Gemma 3n": "late layers share the keys of other layers",
    "Kimi-VL": "latent attention",
}


def table() -> str:
    """Return the table: models that are tried in the same ways are a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for model, family in TAKEN.items():
        ways = OWN_TESTS.get(family) or _ways(family)
        rows.setdefault((LIMITS.get(family, ""), ", ".join(ways)), []).append(model)
    lines = ["| model | limit | tried with a tiny one |", "|---|---|---|"]
    for (limit, tried), models in rows.items():
        lines.append(f"| {', '.join(models)} | {limit or 'none'} | {tried} |")
    for model, reason in REFUSED.items():
        lines.append(f"| {model} | refused: {reason} | |")
    return "\n".join(lines)


def _ways(family: str) -> list[str]:
    """Return the ways in which `test_plugin.py` decodes a family, each once and without sizes."""
    ways: dict[str, None] = {}
    for name, situation in CASES:
        if name == family:
            ways |= dict.fromkeys(re.sub(r" of \d+ that cut pictures", "", situation).split(", "))
    return list(ways)
