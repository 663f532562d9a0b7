"""Measure the cost of a second look: `python -m tools.look_cost -o docs/bench/cpu-demo-second-look.json`.

The bundled model captions drawn scenes without a second look and with `flag`, in turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from sira_cli import load
from sira_cli.analysis.bench.figures import Spread, TimedOn
from sira_cli.cli.terminal.output import save_report
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.methods import find
from sira_cli.models.look.verify import Verify
from sira_cli.models.lvlm import Lvlm

SCENES = 8  # captions per round


@dataclass(frozen=True)
class LookCost:
    """The cost of a second look under a method.

    Attributes:
        method: its name.
        pictures: number captioned in a round.
        things: mean number of objects in a caption.
        caption: mean seconds of a caption without a second look, by round.
        ratio: the time of a round divided by the same round's time without a second look.
    """

    method: str
    pictures: int
    things: float
    caption: Spread
    ratio: Spread


@dataclass(frozen=True)
class LookReport(TimedOn):
    """The measurements, with model and device. `runs`: measured rounds, after one that only warms up."""

    schema = "sira.look-cost/1"

    runs: int
    looks: tuple[LookCost, ...]


def look_costs(
    methods: Mapping[str, Lvlm],
    pictures: Sequence[Image.Image],
    runs: int,
) -> tuple[LookCost, ...]:
    """Time captions one by one, from the picture's samples to the text; a round before the first only warms up.

    Args:
        methods: a model under each.
        pictures: to caption.
        runs: rounds.
    """
    looks = (None, Verify())
    costs = []
    for name, lvlm in methods.items():
        seconds: tuple[list[float], list[float]] = ([], [])
        for number in range(runs + 1):
            spent, things = [0.0, 0.0], 0
            for picture in pictures if number else pictures[:1]:
                for way, look in enumerate(looks):
                    began = time.perf_counter()
                    result = lvlm.caption(picture, verify=look)
                    spent[way] += time.perf_counter() - began
                    things += len(result.objects or ())
            if number:
                for times, total in zip(seconds, spent, strict=True):
                    times.append(total)
        alone, flagged = seconds
        costs.append(
            LookCost(
                name,
                len(pictures),
                things / len(pictures),
                Spread.of([total / len(pictures) for total in alone]),
                Spread.of([a / b for a, b in zip(flagged, alone, strict=True)]),
            )
        )
    return tuple(costs)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.look_cost", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--runs", type=int, default=5, help="rounds, after one that warms up (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json", required=True)
    given = parser.parse_args()
    lvlm = load("demo", device="cpu")
    pictures = [render(held_out(seed))[0] for seed in VALIDATION_SEEDS[:SCENES]]
    costs = look_costs({name: lvlm.under(find(name)) for name in ("greedy", "sira")}, pictures, given.runs)
    save_report(LookReport(**LookReport.fields_of(lvlm), runs=given.runs, looks=costs), given.output)


if __name__ == "__main__":
    main()
