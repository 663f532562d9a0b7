"""Choose K and alpha for the bundled model on validation scenes: `python -m sira_cli.demo.choose`.

The rule, fixed beforehand: of the settings whose coverage is at most one point below greedy's, whose
adversarial accuracy is not below it and whose CHAIRi is, the one with the least CHAIRi; where there is
none, the paper's K = L/2 and alpha = 0.5. The grid is saved as `choice.json`
beside the weights; the preset's K and alpha are edited by hand.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sira_cli import presets
from sira_cli.demo import MODEL
from sira_cli.demo.evaluate import Questions, held_out, load_method, measure
from sira_cli.demo.scenes import VALIDATION_SEEDS

FIGURES = ("CHAIRs", "CHAIRi", "coverage", "words", "random accuracy", "adversarial accuracy", "adversarial yes")


def sweep(folder: Path, ks: list[int], alphas: list[float], count: int) -> dict[str, Any]:
    """Every K and alpha on the first `count` validation scenes: rows of figures, greedy's first."""
    grid = [(k, alpha) for k in ks for alpha in alphas]
    methods = {"greedy": load_method("greedy", folder)}
    methods |= {f"{k} {alpha}": load_method("sira", folder, k=k, alpha=alpha) for k, alpha in grid}
    subjects = [held_out(seed) for seed in VALIDATION_SEEDS[:count]]
    report = measure(methods, subjects, Questions(), lambda done: print(f"{done} of {count} scenes", flush=True))
    rows = [
        {"K": k or "-", "alpha": alpha, **{name: round(figures[name].value, 1) for name in FIGURES}}
        for (k, alpha), figures in zip([(None, 0.0), *grid], report.figures.values(), strict=True)
    ]
    return {"scenes": count, "rows": rows}


def best(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The row that the rule picks; `rows` begins with greedy's. None where no other qualifies."""
    greedy, *others = rows
    fit = [
        row
        for row in others
        if row["coverage"] >= greedy["coverage"] - 1
        and row["adversarial accuracy"] >= greedy["adversarial accuracy"]
        and row["CHAIRi"] < greedy["CHAIRi"]
    ]
    return min(fit, key=lambda row: float(row["CHAIRi"]), default=None)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m sira_cli.demo.choose", description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL, help="the checkpoint's folder")
    parser.add_argument("--count", type=int, default=300, help="scenes")
    parser.add_argument("--k", type=int, nargs="+", default=list(range(1, 8)))
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.25, 0.5, 1.0, 1.5, 2.0])
    given = parser.parse_args()
    choice = sweep(given.model, given.k, given.alpha, given.count)
    for row in choice["rows"]:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    print(f"best: {best(choice['rows'])}; the preset has {presets.find('demo').sira}")
    (given.model / "choice.json").write_text(json.dumps(choice, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
