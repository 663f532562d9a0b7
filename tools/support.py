"""Measure how well `support` tells true things from hallucinated ones: `python -m tools.support --split test`."""

from __future__ import annotations

import argparse
from typing import get_args

from sira_cli.demo.measure import load_methods
from sira_cli.demo.questions import held_out
from sira_cli.demo.support import SEEDS, Split, file_of, measure_support, shown, to_json


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.support", description=__doc__)
    parser.add_argument("--split", choices=get_args(Split), default="validation", help="which scenes")
    parser.add_argument("--count", type=int, help="how many (default: 300 validation scenes, 1,000 test scenes)")
    given = parser.parse_args()
    count = given.count or {"validation": 300, "test": 1_000}[given.split]
    scenes = [held_out(seed) for seed in SEEDS[given.split][:count]]
    found = measure_support(
        load_methods(), scenes, lambda done: print(f"{done} of {count} scenes of a decoder", flush=True)
    )
    text = to_json(given.split, count, found)
    file_of(given.split).write_text(text, encoding="utf-8")
    print(shown(text))


if __name__ == "__main__":
    main()
