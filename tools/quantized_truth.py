"""The truth of captions by quantized weights: the bundled model on test scenes, under greedy decoding and SIRA.

`python -m tools.quantized_truth -o` writes `docs/bench/quantized-truth.json`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sira_cli.demo.measure import load_method, measure
from sira_cli.demo.questions import held_out
from sira_cli.demo.scene_report import SceneReport, markdown
from sira_cli.demo.scenes import TEST_SEEDS
from sira_cli.eval.stats.intervals import Figure
from tools.docs import BENCH
from tools.support import measure_support

FILE = BENCH / "quantized-truth.json"
WAYS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
}  # quantized weights are multiplied with rows in bfloat16, as of a published model


def measure_truth(method: str, count: int) -> dict[str, Any]:
    """Return the figures of captions in every precision, and the AUROC of `support` on their object words."""
    lvlms = {name: load_method(method, **settings) for name, settings in WAYS.items()}
    scenes = [held_out(seed) for seed in TEST_SEEDS[:count]]
    report = measure(lvlms, scenes, on_progress=lambda done: print(f"{method}: {done} of {count}"))
    support = {name: row["all"]["support"] for name, row in measure_support(lvlms, scenes).items()}
    return {"report": report.to_json(), "support": support}


def table(record: dict[str, Any]) -> str:
    """Return the record in Markdown; brackets: paired differences to float32."""
    rows = [["", "weights", "CHAIRi", "coverage", "AUROC of support"]]
    for method, found in record["methods"].items():
        report = SceneReport.from_json(found["report"])
        for name in WAYS:
            figures, changes = report.figures[name], report.differences.get(name)
            cells = [
                f"{figures[each]}" if changes is None else f"{figures[each].value:.1f} ({changes[each]:+})"
                for each in ("CHAIRi", "coverage")
            ]
            rows.append([method, name, *cells, f"{Figure(**found['support'][name])}"])
    return markdown(rows)


def shipped() -> str:
    """Return the table of the record."""
    return table(json.loads(FILE.read_text(encoding="utf-8")))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.quantized_truth", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000, help="number of test scenes")
    parser.add_argument("-o", "--output", type=Path, nargs="?", const=FILE)
    given = parser.parse_args(arguments)
    found = {method: measure_truth(method, given.count) for method in ("greedy", "sira")}
    text = json.dumps({"scenes": given.count, "methods": found}, default=vars, indent=1)
    if given.output is not None:
        given.output.write_text(text + "\n", encoding="utf-8")
    print(table(json.loads(text)))


if __name__ == "__main__":
    main()
