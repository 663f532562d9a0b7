"""Measure the cost of a second look: `python -m tools.look_cost -o docs/bench/cpu-demo-second-look.json`.

The bundled model captions drawn scenes without a second look and with `flag`, in turn.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from PIL import Image

from sira_cli import load
from sira_cli.analysis.bench.measure import Spread, device_name
from sira_cli.demo.measure import markdown
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.look.verify import Verify
from sira_cli.methods import find
from sira_cli.run.lvlm import Lvlm

SCENES = 8  # captions per round


def look_cost(lvlm: Lvlm, pictures: Sequence[Image.Image], runs: int) -> dict[str, Any]:
    """Return the mean number of objects in a caption, and the time of a round with a second look by that without.

    Captions are timed one by one, from the picture's samples to the text; the first of all only warms up.
    """
    lvlm.caption(pictures[0], verify=Verify())
    ratios, things = [], []
    for _ in range(runs):
        spent = [0.0, 0.0]
        for picture in pictures:
            for way, look in enumerate((None, Verify())):
                began = time.perf_counter()
                result = lvlm.caption(picture, verify=look)
                spent[way] += time.perf_counter() - began
            things.append(len(result.objects or ()))
        ratios.append(spent[1] / spent[0])
    return {"things": fmean(things), "ratio": asdict(Spread.of(ratios))}


def table(record: dict[str, Any]) -> str:
    """Return the record in Markdown."""
    rows = [["captions of", "objects per caption", "time with `--verify flag`"]]
    rows += [[look["method"], f"{look['things']:.1f}", f"x{Spread(**look['ratio'])}"] for look in record["looks"]]
    return markdown(rows)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.look_cost", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--runs", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json", required=True)
    given = parser.parse_args()
    lvlm = load("demo", device="cpu")
    pictures = [render(held_out(seed))[0] for seed in VALIDATION_SEEDS[:SCENES]]
    looks = [{"method": name} | look_cost(lvlm.under(find(name)), pictures, given.runs) for name in ("greedy", "sira")]
    record = {
        "schema": "sira.look-cost/1",
        "device": device_name(lvlm.model.device),
        "runs": given.runs,
        "looks": looks,
    }
    given.output.write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(table(record))


if __name__ == "__main__":
    main()
