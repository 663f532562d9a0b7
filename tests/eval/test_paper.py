"""The paper's numbers: as its source has them, consistent with one another, and found by sira's names."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from sira_cli.eval.paper import RESULTS, paper_models, paper_row, pope_group
from sira_cli.models import presets
from tools.paper_tables import main_table, tables, to_yaml

SOURCE = Path(__file__).parents[1] / "data" / "paper_tables.tex"
PAPER = yaml.safe_load(RESULTS.read_text(encoding="utf-8"))
HALF = 0.005  # what rounding to two decimals may take away
QUESTIONS = 3_000  # in a split of POPE, half of them to be answered with yes


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
    assert RESULTS.read_text(encoding="utf-8") == to_yaml(tables(SOURCE.read_text(encoding="utf-8")))


def test_the_main_table_agrees_with_the_decomposition():
    found = main_table(SOURCE.read_text(encoding="utf-8"))
    assert found == {(*row.where, figure): getattr(row, figure) for row in POPE for figure in ("accuracy", "F1")}


def test_everything_is_there():
    methods = {"greedy", "dola", "opera", "vcd", "ict", "maskcd", "sid", "sira"}
    splits = {f"{data} {split}" for data in ("coco", "aokvqa", "gqa") for split in ("random", "popular", "adversarial")}
    groups = {"pope": splits, "chair": {"64 tokens", "512 tokens"}, "amber": {"generative"}}
    figures = {
        "pope": ["accuracy", "F1", "precision", "recall", "FPR", "yes"],
        "chair": ["CHAIRs", "CHAIRi"],
        "amber": ["CHAIR", "Cover", "Hal", "Cog"],
    }
    assert set(PAPER) == {"qwen2.5-vl-7b", "llava-1.5-7b"}
    for benchmarks in PAPER.values():
        assert {name: set(found) for name, found in benchmarks.items()} == groups
        for name, found in benchmarks.items():
            for rows in found.values():
                assert set(rows) == methods
                for row in rows.values():
                    assert list(row) == figures[name]
                    assert all(type(value) is float and 0 <= value <= 100 for value in row.values())


def test_sira_leads_every_column_as_the_paper_says():
    """A column that was read as another method's would not."""
    less_is_better = {"CHAIRs", "CHAIRi", "CHAIR", "Hal", "Cog"}
    for benchmarks in PAPER.values():
        for rows in (rows for found in benchmarks.values() for rows in found.values()):
            for figure in set(rows["sira"]) - {"precision", "recall", "FPR", "yes"}:
                best = (min if figure in less_is_better else max)(row[figure] for row in rows.values())
                assert rows["sira"][figure] == best


def beyond_rounding(name: str, row: Row) -> bool:
    """Whether an identity of balanced questions fails by more than rounding explains."""
    if name == "F1":  # grows with precision and recall
        low, high = (harmonic_mean(row.precision + by, row.recall + by) for by in (-HALF, HALF))
        return not low - HALF <= row.F1 <= high + HALF
    if name == "precision":  # grows with recall, falls with FPR
        low, high = (100 * (row.recall + by) / (row.recall + by + max(row.FPR - by, 0)) for by in (-HALF, HALF))
        return not low - HALF <= row.precision <= high + HALF
    value, expected = {
        "accuracy": (row.accuracy, (row.recall + 100 - row.FPR) / 2),
        "yes": (row.yes, (row.recall + row.FPR) / 2),
    }[name]
    return abs(value - expected) > 2 * HALF + 1e-9


def harmonic_mean(one: float, other: float) -> float:
    return 2 * one * other / (one + other)


@pytest.mark.parametrize("name", ["F1", "precision", "accuracy", "yes"])
def test_no_row_breaks_an_identity_by_more_than_rounding(name):
    assert [row.where for row in POPE if beyond_rounding(name, row)] == []
    changed = [row._replace(**{name: getattr(row, name) + 0.1}) for row in POPE]
    assert all(beyond_rounding(name, row) for row in changed)


def test_the_decomposition_is_what_accuracy_and_f1_imply():
    """In all rows, to the last digit: it was reckoned from the two printed figures, not counted."""
    for row in POPE:
        recall = row.F1 * (100 - row.accuracy) / (100 - row.F1)
        fpr = recall + 100 - 2 * row.accuracy
        implied = (100 * recall / (recall + fpr), recall, fpr, (recall + fpr) / 2)
        assert (row.precision, row.recall, row.FPR, row.yes) == pytest.approx(implied, abs=HALF + 1e-4)


def test_which_figures_can_be_shares_of_popes_questions():
    """What is counted on the official files once is one; an average over runs, or what is reckoned, need not be."""

    def is_share(value: float, of: int) -> bool:
        return abs(100 * round(value * of / 100) / of - value) <= HALF + 1e-9

    shares = {
        "accuracy": sum(is_share(row.accuracy, QUESTIONS) for row in POPE),
        "recall": sum(is_share(row.recall, QUESTIONS // 2) for row in POPE),
        "FPR": sum(is_share(row.FPR, QUESTIONS // 2) for row in POPE),
    }
    assert shares == {"accuracy": 81, "recall": 15, "FPR": 25}, f"of {len(POPE)} rows"
    assert all(is_share(row.accuracy, QUESTIONS) for row in POPE if row.where[2] == "sira")


def test_rows_are_found_by_preset_and_by_model():
    for model, name in paper_models().items():
        assert presets.find(name).model == model
        row = paper_row(name, "pope", "coco random", "sira")
        assert row == PAPER[name]["pope"]["coco random"]["sira"]
        assert paper_row(model, "pope", "coco random", "sira") == row
        row.clear()  # a caller's own
        assert paper_row(name, "pope", "coco random", "sira")
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
    assert paper_row(*unknown) is None


def test_the_group_of_a_question_file():
    stems = ["coco_pope_random", "aokvqa_pope_adversarial", "scenes_pope_popular", "mine", "_pope_random", "coco_pope_"]
    groups = ["coco random", "aokvqa adversarial", "scenes popular", "mine", "_pope_random", "coco_pope_"]
    assert [pope_group(stem) for stem in stems] == groups
