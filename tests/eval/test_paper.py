"""The paper's numbers: as its source has them, consistent with one another, and found by sira's names."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from sira_cli.eval import report as paper
from sira_cli.eval.report import AUTHORS, paper_models, results
from sira_cli.eval.report import PAPER as RESULTS
from sira_cli.models import presets
from tools.paper_tables import main_table, tables, to_yaml

SOURCE = Path(__file__).parents[1] / "data" / "paper_tables.tex"
WHOLE = yaml.safe_load(RESULTS.read_text(encoding="utf-8"))
NOTES = results()["notes"]
PAPER = tables(SOURCE.read_text(encoding="utf-8"))
HALF = 0.005  # what rounding to two decimals may take away


class Row(NamedTuple):
    where: tuple[str, str, str]  # model, group, method
    accuracy: float
    F1: float
    precision: float
    recall: float
    FPR: float
    yes: float


POPE = [
    Row((model, group, method), **figures)
    for model, benchmarks in PAPER.items()
    for group, methods in benchmarks["pope"].items()
    for method, figures in methods.items()
]


def test_the_numbers_are_those_of_the_source():
    assert RESULTS.read_text(encoding="utf-8") == to_yaml(PAPER)


# VCD's published rows (Leng et al. 2024), sampled at T = 1: accuracy and F1 of random, popular, adversarial.
VCD_LLAVA_REGULAR_COCO = (83.29, 81.33, 81.88, 80.06, 78.96, 77.57)
VCD_LLAVA_VCD_COCO = (87.73, 87.16, 85.38, 85.06, 80.88, 81.33)
VCD_QWEN_VL = {
    "coco": (88.63, 87.81, 87.12, 86.40, 84.26, 83.90),
    "aokvqa": (89.22, 89.01, 87.85, 87.81, 81.27, 82.38),
    "gqa": (85.59, 85.33, 81.83, 82.23, 80.01, 80.75),
}
THREE = ("random", "popular", "adversarial")


def pairs(model: str, dataset: str, method: str) -> tuple[float, ...]:
    rows = [paper.printed(model, "pope", f"{dataset} {split}", method)["paper"] for split in THREE]
    return tuple(row[figure] for row in rows for figure in ("accuracy", "F1"))


def marks(model: str, method: str) -> set[str]:
    return {
        paper.printed(model, "pope", f"{data} {split}", method)["paper_mark"] for data in VCD_QWEN_VL for split in THREE
    }


def test_rows_that_are_vcd_s_sampled_ones_say_so():
    assert pairs("llava-1.5-7b", "coco", "greedy") == VCD_LLAVA_REGULAR_COCO
    assert pairs("llava-1.5-7b", "coco", "vcd") == VCD_LLAVA_VCD_COCO
    for dataset, figures in VCD_QWEN_VL.items():
        assert pairs("qwen2.5-vl-7b", dataset, "vcd") == figures
    assert marks("llava-1.5-7b", "greedy") == marks("llava-1.5-7b", "vcd") == {"T = 1"}
    assert marks("qwen2.5-vl-7b", "vcd") == {"Qwen-VL"}


def test_the_other_rows_compare():
    """All that no mark is on: nothing is marked by mistake."""
    marked = {
        (model, group, method)
        for model, benchmarks in WHOLE["models"].items()
        for groups in benchmarks.values()
        for group, methods in groups.items()
        for method in methods
        if any(paper.printed(model, benchmark, group, method)["paper_mark"] for benchmark in benchmarks)
    }
    assert len(marked) == 3 * 9 + 1
    assert ("llava-1.5-7b", "coco popular", "opera") in marked
    assert {paper.printed(model, "pope", group, method)["paper_mark"] for model, group, method in marked} < {*NOTES}


def test_greedy_figures_of_the_authors_of_llava():
    found = [paper.printed("llava-1.5-7b", "pope", f"coco {split}", "greedy")["published"] for split in THREE]
    assert found == [{"F1": 87.3}, {"F1": 86.1}, {"F1": 84.2}]
    assert paper.printed("llava-1.5-7b", "pope", "coco random", "sira")["published"] is None
    assert "2310.03744" in NOTES[AUTHORS]


def test_the_main_table_agrees_with_the_decomposition():
    found = main_table(SOURCE.read_text(encoding="utf-8"))
    assert found == {(*row.where, figure): getattr(row, figure) for row in POPE for figure in ("accuracy", "F1")}


def test_the_decomposition_is_what_accuracy_and_f1_imply():
    """In all rows, to the last digit: it was reckoned from the two printed figures, not counted."""
    for row in POPE:
        recall = row.F1 * (100 - row.accuracy) / (100 - row.F1)
        fpr = recall + 100 - 2 * row.accuracy
        implied = (100 * recall / (recall + fpr), recall, fpr, (recall + fpr) / 2)
        assert (row.precision, row.recall, row.FPR, row.yes) == pytest.approx(implied, abs=HALF + 1e-4)


def test_rows_are_found_by_preset_and_by_model():
    for model, name in paper_models().items():
        assert presets.find(name).model == model
        row = paper.printed(name, "pope", "coco random", "sira")["paper"]
        assert row == PAPER[name]["pope"]["coco random"]["sira"]
        assert paper.printed(model, "pope", "coco random", "sira")["paper"] == row
        row.clear()  # a caller's own
        assert paper.printed(name, "pope", "coco random", "sira")["paper"]
    assert list(paper_models().values()) == list(PAPER)


@pytest.mark.parametrize(
    "unknown",
    [
        ("demo", "pope", "coco random", "sira"),
        ("llava-1.5-7b", "mme", "coco random", "sira"),
        ("llava-1.5-7b", "pope", "scenes random", "sira"),
        ("llava-1.5-7b", "pope", "coco random", "greedy+apc"),
    ],
)
def test_what_the_paper_does_not_have_is_none(unknown):
    assert paper.printed(*unknown)["paper"] is None
