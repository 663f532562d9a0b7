"""Methods side by side: intervals, differences, paired tests, means; the paper's figures."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from sira_cli.eval.answers import Answers
from sira_cli.eval.figures import POPE_DENOMINATORS, pope_figures
from sira_cli.eval.paper import printed, results
from sira_cli.eval.pope import Pope
from sira_cli.eval.report import AUTHORS, EvalReport, MethodRow, label
from sira_cli.eval.statistics import MethodFigures, Tally, mcnemar, wilson
from tests.support.eval.benchmarks import Made, said, share
from tests.support.eval.writing import save

# Intervals and tests.


@pytest.mark.parametrize("only_second", [0, 1, 5, 20, 300])
def test_mcnemar_is_the_binomial_test_of_discordant_answers(only_second: int):
    for only_first in range(0, 40, 3):
        discordant = only_first + only_second
        expected = stats.binomtest(only_first, discordant).pvalue if discordant else 1.0
        assert mcnemar(only_first, only_second) == pytest.approx(expected, rel=1e-9)
        assert mcnemar(only_second, only_first) == mcnemar(only_first, only_second)


@pytest.mark.parametrize("trials", [1, 2, 30, 500])
@pytest.mark.parametrize("tenths", [0, 3, 10])
def test_wilsons_interval_is_scipys(trials, tenths):
    hits = trials * tenths // 10
    expected = stats.binomtest(hits, trials).proportion_ci(method="wilson")
    assert wilson(hits / trials, trials) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert (wilson(0, trials)[0], wilson(1, trials)[1]) == (0, 1)


def test_the_interval_is_wilsons_of_an_effective_number():
    """By the formula: answers about a picture are alike, and one picture has none."""
    right, asked = np.array([3, 0, 2, 1, 0]), np.array([4, 1, 2, 3, 0])
    tally = Tally({str(n): {"right": right[n], "all": asked[n]} for n in range(5)})
    methods = {"one": tally, "same": tally, "reversed": Tally(dict(reversed(tally.counts.items())))}
    compared = MethodFigures.of(methods, share, {"share": ("all",)})
    figure = compared.figures("one")["share"]
    n, p = asked.sum(), right.sum() / asked.sum()
    variance = 4 / 3 * sum(((right - p * asked) / n) ** 2)
    low, high = wilson(p, (p * (1 - p) * n + 1) / (variance * n + sum((asked / n) ** 2)))
    assert [figure.low, figure.high] == pytest.approx([100 * low, 100 * high])
    assert compared.differences("reversed", "one") == compared.differences("same", "one")  # pictures go by name


@pytest.mark.parametrize("words", [[3, 8], [3, 8, 4], [3, 5, 8, 13, 4, 4]])
def test_the_interval_of_a_mean_is_students(words):
    tally = Tally({str(n): {"words": count, "texts": 1} for n, count in enumerate(words)})
    found = MethodFigures.of({"one": tally}, lambda total: {"words": total["words"] / total["texts"]}).figures("one")
    expected = stats.ttest_1samp(words, 0).confidence_interval()
    assert [found["words"].low, found["words"].high] == pytest.approx([*expected], rel=1e-3)


def test_a_picture_moves_a_mean_by_a_share_of_each_of_its_groups():
    """Of two groups, by half; its place among all pictures is another than in a group."""
    groups = []
    for words in ({"a": 3, "c": 8, "d": 5}, {"b": 1, "c": 4}):
        tally = Tally({picture: {"words": count, "texts": 1} for picture, count in words.items()})
        groups.append(MethodFigures.of({"one": tally}, lambda total: {"words": total["words"] / total["texts"]}))
    moved = dict.fromkeys("abcd", 0.0)
    for group in groups:
        for picture, influence in zip(group.pictures, group.estimates["one"]["words"].influence, strict=True):
            moved[picture] += influence / 2
    mean = MethodFigures.mean(groups).estimates["one"]["words"]
    assert mean.value == (16 / 3 + 5 / 2) / 2
    assert mean.influence == pytest.approx([*moved.values()])


def pope_row(**counts: int) -> dict[str, float]:
    return dict.fromkeys(("TP", "FP", "TN", "FN", "unanswered yes", "unanswered no", "neither", "words"), 0) | counts


def test_it_counts_the_pictures_that_a_figure_is_about():
    """All questions of four pictures are answered rightly; one picture has no question to be answered with yes."""
    rows = {"a": pope_row(TP=3, TN=3), "b": pope_row(TP=1), "c": pope_row(TP=2, TN=1), "d": pope_row(TN=2)}
    found = MethodFigures.of({"sira": Tally(rows)}, pope_figures, POPE_DENOMINATORS).figures("sira")
    for name, value, sizes in (
        *(("accuracy", 100, [6, 1, 3, 2]), ("recall", 100, [3, 1, 2])),
        *(("FPR", 0, [3, 1, 2]), ("neither", 0, [6, 1, 3, 2])),
    ):
        low, high = wilson(value / 100, sum(sizes) ** 2 / sum(size**2 for size in sizes))  # fewer, if one has most
        assert [found[name].low, found[name].high] == pytest.approx([100 * low, 100 * high]), name
        assert found[name].value == value
    assert found["words"].low == found["words"].high == 0  # no share


def test_what_nothing_is_known_about_has_no_width():
    """Without an answer yes, precision is 0 by convention: no picture says anything about it."""
    tally = Tally({"a": pope_row(FN=1), "b": pope_row(TN=1)})
    compared = MethodFigures.of({"sira": tally}, pope_figures, POPE_DENOMINATORS)
    for each in (compared, MethodFigures.mean([compared, compared])):
        precision = each.figures("sira")["precision"]
        assert (precision.low, precision.high) == (0, 0)
    assert each.figures("sira")["FPR"].high == 100 * wilson(0, 1)[1]


def test_all_figures_of_the_benchmarks_that_are_shares_have_a_denominator(tmp_path, chair, amber):
    questions = save(tmp_path / "q.json", '{"image": "0.jpg", "text": "Is it?", "label": "yes"}')
    for benchmark in (Pope([questions]), chair, amber):
        for part in benchmark.parts:
            for group, tally in benchmark.score(part, {ask.id: "Yes" for ask in part.asks}).items():
                named, total = benchmark.denominators(group), tally.total()
                assert {*benchmark.figures(group, total)} - {*named} <= {"words", "length"}
                assert {count for counts in named.values() for count in counts} <= {*total}


# Reports.


def by_group(*answers: Answers, pictures: int = 4) -> dict[tuple[str, str], MethodRow]:
    return {(row.group, row.method): row for row in EvalReport.of(Made(pictures), answers).rows}


def test_methods_side_by_side():
    answers = [said("base", "1100", "1111"), said("new", "1011", "1110"), said("same", "1100", "1111")]
    report = EvalReport.of(Made(4), answers)
    found = {(row.group, row.method): row for row in report.rows}
    assert list(found) == [(group, method) for group in ("a", "b", "mean") for method in ("base", "new", "same")]
    assert [row.figures["share"].value for row in found.values()] == [50, 75, 50, 100, 75, 100, 75, 75, 75]
    assert found["a", "base"].differences == {}
    assert [found[group, "new"].differences["share"].value for group in ("a", "mean")] == [25, 0]
    for group in ("a", "b", "mean"):
        nothing = found[group, "same"].differences["share"]
        assert nothing.value == 0
        assert nothing.low == -100 * wilson(0, 4)[1]
        assert nothing.high == 100 * wilson(0, 4)[1]
    assert [dataclasses.astuple(test) for test in report.tests] == [
        *(("a", "base", "new", 1, 2, 1.0), ("a", "base", "same", 0, 0, 1.0), ("a", "new", "same", 2, 1, 1.0)),
        *(("b", "base", "new", 1, 0, 1.0), ("b", "base", "same", 0, 0, 1.0), ("b", "new", "same", 0, 1, 1.0)),
    ]
    found = by_group(said("base", "1111", "1111"), said("half", "1100", "1111"), said("none", "0000", "1111"))
    assert [found["a", name].p for name in ("base", "half", "none")] == [None, 0.5, 0.125]  # each against the first


def test_a_difference_is_paired():
    """MOVER by the letter: shares of gains and of losses, their Wilson intervals, and their correlation."""
    base, new = "1" * 20 + "0" * 20, "1" * 18 + "0" * 16 + "1" * 6  # two losses, six gains
    n, gain, loss = 40, 6 / 40, 2 / 40
    (gain_low, gain_high), (loss_low, loss_high) = (
        wilson(p, (p * (1 - p) * n + 0.15) / (p * (1 - p) * n / (n - 1) + 0.15 / n)) for p in (gain, loss)
    )
    alike = -gain * loss / math.sqrt(gain * (1 - gain) * loss * (1 - loss))
    below, above = (
        math.sqrt(one**2 + two**2 - 2 * alike * one * two)
        for one, two in ((gain - gain_low, loss_high - loss), (gain_high - gain, loss - loss_low))
    )
    found = by_group(said("base", base, base), said("new", new, base), pictures=n)["a", "new"].differences["share"]
    expected = [100 * (gain - loss + end) for end in (0, -below, above)]
    assert [found.value, found.low, found.high] == pytest.approx(expected)


def test_what_failed_under_one_method_counts_for_none():
    found = by_group(said("base", "1100", "1111"), said("new", "00--", "1111"))
    for method in ("base", "new"):
        counts = {group: (row.answered, row.failed) for (group, name), row in found.items() if name == method}
        assert counts == {"a": (2, 2), "b": (4, 0), "mean": (6, 2)}  # the same pictures for both
    assert [found["a", method].figures["share"].value for method in ("base", "new")] == [100, 0]
    assert found["a", "base"].counts == {"right": 2, "all": 2}
    assert found["a", "new"].p == 0.5  # of two answers


def test_a_mean_is_of_pictures():
    """Where one group is right about a picture and the other wrong, all pictures say the same of the mean."""
    against, along = (
        by_group(said("base", "10" * 20, b), pictures=40)["mean", "base"].figures["share"]
        for b in ("01" * 20, "10" * 20)
    )
    assert against.value == along.value == 50
    assert 4 * against.half < along.half == pytest.approx(100 * (wilson(0.5, 40)[1] - 0.5), rel=0.02)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("greedy", {"temperature": 0, "top_p": 0.9, "num_beams": 5}, "greedy, 5 beams"),
        ("greedy+apc", {"temperature": 1.0, "top_p": 1.0, "num_beams": 1}, "sampling+apc, T=1"),
        ("sira", {"temperature": 0.2, "top_p": 0.9}, "sira, T=0.2, top-p=0.9"),
    ],
)
def test_a_label(name, settings, expected):
    assert label(name, settings) == expected


# Tables.


# The paper's figures: as its source has them, consistent with one another, and found by sira's names.

SOURCE = (Path(__file__).parents[1] / "data" / "paper_tables.tex").read_text(encoding="utf-8")
TABLES = results()["models"]


def test_the_numbers_are_those_of_the_source():
    main, captions, *decompositions = (
        [float(number) for number in re.findall(r"(?<=[ {])\d+\.\d+", body)]
        for body in re.findall(r"\\midrule(.*?)\\bottomrule", SOURCE, re.DOTALL)
    )
    popes = [model["pope"] for model in TABLES.values()]
    assert main == [
        row[name] for group in popes[0] for name in ("accuracy", "F1") for pope in popes for row in pope[group].values()
    ]
    assert captions == [
        value
        for model in TABLES.values()
        for method in model["chair"]["64 tokens"]
        for rows in (*model["chair"].values(), *model["amber"].values())
        for name, value in rows[method].items()
        if name != "is"
    ]
    rows = [[row for methods in pope.values() for row in methods.values()] for pope in popes]
    names = ("accuracy", "F1", "precision", "recall", "FPR", "yes")
    assert decompositions == [[row[name] for row in each for name in names] for each in rows]
    # To the last digit, all other figures of POPE were reckoned from the two printed ones, not counted.
    for row in (*rows[0], *rows[1]):
        recall = row["F1"] * (100 - row["accuracy"]) / (100 - row["F1"])
        fpr = recall + 100 - 2 * row["accuracy"]
        implied = (100 * recall / (recall + fpr), recall, fpr, (recall + fpr) / 2)
        found = tuple(row[name] for name in ("precision", "recall", "FPR", "yes"))
        assert found == pytest.approx(implied, abs=0.0051)  # two decimals


def test_rows_that_do_not_compare_are_marked():
    """VCD's (Leng et al. 2024), sampled at T = 1, a slip, CHAIR's, and two figures of AMBER's authors; no others."""
    marked = defaultdict(set)
    for model, benchmarks in TABLES.items():
        for benchmark, groups in benchmarks.items():
            for group, method in ((group, method) for group, methods in groups.items() for method in methods):
                if mark := printed(model, benchmark, group, method)["paper_mark"]:
                    marked[model, method, mark].add(group)
    assert {key: len(groups) for key, groups in marked.items()} == {
        ("llava-1.5-7b", "greedy", "T = 1"): 9,
        ("llava-1.5-7b", "vcd", "T = 1"): 9,
        ("qwen2.5-vl-7b", "vcd", "Qwen-VL"): 9,
        ("llava-1.5-7b", "opera", "F1 a slip?"): 1,
        ("qwen2.5-vl-7b", "greedy", "Hal and Cog of Qwen-VL"): 1,
    } | {(model, method, "level of CHAIRi"): 2 for model in TABLES for method in TABLES[model]["chair"]["64 tokens"]}
    assert {mark for *_, mark in marked} < {*results()["notes"]}
    splits = ("random", "popular", "adversarial")
    found = [printed("llava-1.5-7b", "pope", f"coco {split}", "greedy")["published"] for split in splits]
    assert found == [{"F1": 87.3}, {"F1": 86.1}, {"F1": 84.2}]
    assert "2310.03744" in results()["notes"][AUTHORS]
