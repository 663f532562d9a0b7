"""Measure captions of pictures one by one, and of a folder in batches: `python -m tools.speed -o FILE.json`.

The bundled model captions the same drawn scenes in every way, all ways in turn; means over all rounds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from sira_cli import load, run_pictures
from sira_cli.analysis.bench.measure import device_name
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.methods import find

SCENES, BATCH = 24, 8
WAYS = {name: (name, None) for name in ("greedy", "sira", "vcd")} | {
    f"greedy + {look}": ("greedy", look) for look in ("flag", "best", "guide")
}


def speed(folder: Path, rounds: int) -> dict[str, Any]:
    """Return the seconds of processor time per caption, by batch size and way; a first round only warms up."""
    for seed in VALIDATION_SEEDS[:SCENES]:
        render(held_out(seed))[0].save(folder / f"{seed}.png")
    lvlm = load("demo", device="cpu")
    seconds = {str(batch): dict.fromkeys(WAYS, 0.0) for batch in (1, BATCH)}
    for number in range(rounds + 1):
        for batch, spent in seconds.items():
            for way, (method, look) in WAYS.items():
                began = time.process_time()
                for _ in run_pictures(lvlm.under(find(method)), folder, batch_size=int(batch), verify=look):
                    pass
                spent[way] += (time.process_time() - began) / (rounds * SCENES) if number else 0
    device = device_name(lvlm.model.device)
    return {"schema": "sira.speed/1", "device": device, "dtype": lvlm.dtype, "rounds": rounds, "seconds": seconds}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.speed", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json", required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        record = speed(Path(folder), given.rounds)
    given.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
