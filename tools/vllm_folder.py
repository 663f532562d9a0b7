"""Measure pictures per second of a folder: `python -m tools.vllm_folder`, where vLLM is.

It writes docs/bench/vllm-folder.json.
The bundled model captions drawn scenes in process and in vLLM, by SIRA and greedily, each way in a process of its own,
all in turn; the fastest of a few rounds. Loading is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SAVED = Path(__file__).parents[1] / "docs/bench/vllm-folder.json"
BATCH = 16
WARM = 2  # pictures before the clock starts
WAYS = {
    "one": "in process, SIRA",
    "batches": f"in process, SIRA, `-b {BATCH}`",
    "sira": "`--engine vllm`, SIRA",
    "greedy": "vLLM alone, greedy",
}

Caption = Callable[[Path], list[int]]  # takes a folder; returns the number of tokens of each text


def in_process(batch: int) -> Caption:
    """Load what captions a folder by SIRA in process."""
    from sira_cli import load

    lvlm = load("demo", device="cpu")
    return lambda folder: captioned(lvlm, folder, batch)


def in_vllm() -> Caption:
    """Load what captions a folder by SIRA in vLLM."""
    from sira_cli.models import presets
    from sira_cli.vllm import engine

    preset = presets.resolve("demo")
    lvlm = engine.load(preset, preset.method("sira"), offline=True)
    return lambda folder: captioned(lvlm, folder, None)


def captioned(lvlm: Any, folder: Path, batch: int | None) -> list[int]:
    """Caption a folder into a file of records, as `sira caption` does; return the number of tokens of each text."""
    from sira_cli import run_pictures

    tokens = []
    for event in run_pictures(lvlm, folder, output=folder.parent / "captions.jsonl", overwrite=True, batch_size=batch):
        if record := getattr(event, "record", None):
            assert record.status == "ok", record.error
            tokens.append(record.output_tokens)
    return tokens


def by_vllm_alone() -> Caption:
    """Load what captions a folder greedily in vLLM, without this project."""
    from PIL import Image
    from vllm import LLM, SamplingParams

    from sira_cli.models import presets
    from sira_cli.vllm.engine import MOST_AT_ONCE

    preset = presets.resolve("demo")
    limits: dict[str, Any] = {"max_num_seqs": MOST_AT_ONCE, "max_model_len": -1, "limit_mm_per_prompt": {"image": 1}}
    model = LLM(str(presets.BUNDLED_FOLDER), dtype="float32", enable_prefix_caching=False, **limits)
    params = SamplingParams(temperature=0, max_tokens=preset.generation.max_new_tokens)
    request = {"type": "text", "text": preset.prompts.caption}

    def caption(folder: Path) -> list[int]:
        chats: list[Any] = []
        for path in sorted(folder.iterdir()):
            picture = {"type": "image_pil", "image_pil": Image.open(path).convert("RGB")}
            chats.append([{"role": "user", "content": [picture, request]}])
        return [len(output.outputs[0].token_ids) for output in model.chat(chats, params, use_tqdm=False)]

    return caption


def measured(way: str, folders: list[Path]) -> dict[str, float]:
    """Return the seconds of one way for the last folder, and the mean number of tokens of its texts."""
    if way == "greedy":
        caption = by_vllm_alone()
    elif way == "sira":
        caption = in_vllm()
    else:
        caption = in_process(BATCH if way == "batches" else 1)
    for folder in folders:
        began = time.perf_counter()
        tokens = caption(folder)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "pictures": len(tokens), "tokens": sum(tokens) / len(tokens)}


def drawn(folder: Path, seeds: range) -> Path:
    """Draw scenes into a folder."""
    from sira_cli.demo.questions import held_out
    from sira_cli.demo.scenes import render

    folder.mkdir()
    for seed in seeds:
        render(held_out(seed))[0].save(folder / f"{seed}.png")
    return folder


def alone(way: str, folders: list[Path]) -> dict[str, float]:
    """Measure one way in a process of its own."""
    command = [sys.executable, "-m", "tools.vllm_folder", "--way", way, *map(str, folders)]
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_LOGGING_STREAM": "ext://sys.stderr", "HF_HUB_OFFLINE": "1"}
    quiet |= {"VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")}
    done = subprocess.run(command, env=os.environ | quiet, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(way, found, f"load {os.getloadavg()[0]:.1f}", flush=True)
    return found


def table() -> str:
    """Return the figures as a table of pictures per second."""
    saved = json.loads(SAVED.read_text(encoding="utf-8"))
    ways = saved["ways"]
    rates = {way: ways[way]["pictures"] / ways[way]["seconds"] for way in WAYS}
    heads = [*WAYS.values(), "in vLLM / in process", "SIRA / greedy in vLLM"]
    cells = [f"{rates[way]:.1f}" for way in WAYS]
    cells += [f"{rates['sira'] / rates['batches']:.1f}", f"{rates['sira'] / rates['greedy']:.2f}"]
    rows = [heads, ["---"] * len(heads), cells]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    tokens = f"{ways['sira']['tokens']:.0f} tokens a text ({ways['greedy']['tokens']:.0f} greedily)"
    folder = f"a folder of {ways['sira']['pictures']}, loading apart"
    return "\n".join([*lines, "", f"Pictures per second of {folder}; the bundled model, {tokens}. {saved['on']}"])


def compared(pictures: int, rounds: int) -> dict[str, Any]:
    """Return the record: each way's fastest round, and the machine."""
    from sira_cli.demo.scenes import VALIDATION_SEEDS

    best: dict[str, dict[str, float]] = {}
    with TemporaryDirectory() as place:
        warm = drawn(Path(place) / "warm", VALIDATION_SEEDS[-WARM:])
        folder = drawn(Path(place) / "folder", VALIDATION_SEEDS[:pictures])
        for _ in range(rounds):
            for way in WAYS:
                found = alone(way, [warm, folder])
                if way not in best or found["seconds"] < best[way]["seconds"]:
                    best[way] = found
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    on = (
        f"The fastest round of {rounds}; float32, vllm-cpu {version('vllm-cpu')} (model runner V1), "
        f"{os.cpu_count()} cores of {platform.machine()}, threads: {threads}, load {os.getloadavg()[0]:.1f}."
    )
    return {"on": on, "ways": best}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.vllm_folder", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--pictures", type=int, default=500, help="pictures of the folder (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds (default: %(default)s)")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)  # this process measures
    parser.add_argument("folders", nargs="*", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        print(json.dumps(measured(given.way, given.folders)))
        return
    record = compared(given.pictures, given.rounds)
    SAVED.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table())


if __name__ == "__main__":
    main()
