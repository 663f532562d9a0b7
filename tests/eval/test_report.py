"""Methods side by side: intervals, differences, paired tests, means."""

from __future__ import annotations

import json

import pytest
from scipy import stats

from sira_cli.eval.answers import FailedAnswer
from sira_cli.eval.report import EvalReport
from sira_cli.eval.statistics import Figure, MethodFigures, Tally, mcnemar, wilson
from tests.support.eval.made import Made, said, share


@pytest.mark.parametrize("only_first", range(0, 40, 3))
@pytest.mark.parametrize("only_second", [0, 1, 5, 20, 300])
def test_mcnemar_is_the_binomial_test_of_discordant_answers(only_first: int, only_second: int):
    discordant = only_first + only_second
    expected = stats.binomtest(only_first, discordant).pvalue if discordant else 1.0
    assert mcnemar(only_first, only_second) == pytest.approx(expected, rel=1e-9)
    assert mcnemar(only_second, only_first) == mcnemar(only_first, only_second)


def interval(right: list[bool], times: int = 1) -> Figure:
    """The interval of a share, with so many equal answers about each picture."""
    counts = {f"{number:06}": {"right": times * one, "all": times} for number, one in enumerate(right)}
    return MethodFigures.of({"one": Tally(counts)}, share, {"share": ("all",)}).figures("one")["share"]


def test_the_interval_of_independent_answers_is_wilsons():
    found = interval([number % 10 < 7 for number in range(500)])
    assert [found.low / 100, found.high / 100] == pytest.approx(wilson(0.7, 500), abs=2e-4)


def test_ten_equal_answers_about_a_picture_tell_as_much_as_one():
    right = [number % 3 > 0 for number in range(90)]
    one, ten = (interval(right, times) for times in (1, 10))
    assert [ten.low, ten.high] == pytest.approx([one.low, one.high], rel=1e-3)


def test_methods_side_by_side():
    report = EvalReport.of(
        Made(4), [said("base", "1100", "1111"), said("new", "1011", "1110"), said("same", "1100", "1111")]
    )
    found = {(row.group, row.method): row for row in report.rows}
    assert list(found) == [(group, method) for group in ("a", "b", "mean") for method in ("base", "new", "same")]
    assert [row.figures["share"].value for row in found.values()] == [50, 75, 50, 100, 75, 100, 75, 75, 75]
    assert found["a", "base"].differences == {}
    assert found["a", "new"].differences["share"].value == 25
    assert found["mean", "new"].differences["share"].value == 0
    for group in ("a", "b", "mean"):
        nothing = found[group, "same"].differences["share"]
        assert (nothing.value, nothing.low, nothing.high) == (0, -100 * wilson(0, 4)[1], 100 * wilson(0, 4)[1])
    tests = {
        (test.group, test.first, test.second): (test.only_first, test.only_second, test.p) for test in report.tests
    }
    assert tests == {
        ("a", "base", "new"): (1, 2, 1.0),
        ("a", "base", "same"): (0, 0, 1.0),
        ("a", "new", "same"): (2, 1, 1.0),
        ("b", "base", "new"): (1, 0, 1.0),
        ("b", "base", "same"): (0, 0, 1.0),
        ("b", "new", "same"): (0, 1, 1.0),
    }


def test_a_mean_is_of_methods_with_answers_in_all_groups():
    report = EvalReport.of(Made(4), [said("base", "1111", "1111"), said("new", "1111", "----")])
    assert [row.method for row in report.rows if row.group == "mean"] == ["base"]


def test_a_difference_is_paired():
    """Of methods that differ on few answers it is known better than the figures are."""
    base = "10" * 20
    report = EvalReport.of(Made(), [said("base", base, base), said("new", "11" + base[2:], base)])
    row = next(row for row in report.rows if (row.group, row.method) == ("a", "new"))
    figure, difference = row.figures["share"], row.differences["share"]
    assert difference.value == pytest.approx(2.5)
    assert difference.high - difference.low < 0.7 * (figure.high - figure.low)


def test_what_failed_under_one_method_counts_for_none():
    report = EvalReport.of(Made(4), [said("base", "1100", "1111"), said("new", "00--", "1111")])
    found = {(row.group, row.method): row for row in report.rows}
    assert (found["a", "new"].answered, found["a", "new"].failed) == (2, 2)
    assert found["a", "new"].figures["share"].value == 0
    assert found["a", "base"].figures["share"].value == 100
    assert found["a", "base"].counts == {"right": 2, "all": 2}
    assert (found["mean", "new"].answered, found["mean", "new"].failed) == (6, 2)
    assert (found["mean", "base"].answered, found["mean", "base"].failed) == (6, 2)  # the same pictures for both
    test = next(test for test in report.tests if test.group == "a")
    assert (test.only_first, test.only_second) == (2, 0)


def test_a_mean_is_of_pictures():
    """Where one group is right about a picture and the other wrong, all pictures say the same of the mean."""
    halves = {
        b: next(row for row in EvalReport.of(Made(), [said("base", "10" * 20, b)]).rows if row.group == "mean")
        for b in ("01" * 20, "10" * 20)
    }
    against, along = (row.figures["share"] for row in halves.values())
    assert against.value == along.value == 50
    assert 4 * against.half < along.half == pytest.approx(100 * (wilson(0.5, 40)[1] - 0.5), rel=0.02)


def test_differences_are_to_the_first_method_or_none():
    """Also in a group that the first method has no answers of."""
    nothing = said("first", "----", "1111")
    report = EvalReport.of(Made(4), [nothing, said("second", "1111", "1111"), said("third", "1010", "1111")])
    differences = {(row.group, row.method): row.differences for row in report.rows}
    assert differences["a", "third"] == differences["mean", "third"] == {}
    assert differences["b", "third"]["share"].value == 0


def test_a_group_of_which_everything_failed_has_no_row_but_failures():
    nothing = said("new", "----", "1111")
    nothing.failures.append(FailedAnswer("new", "only", "0.jpg", "gone"))
    report = EvalReport.of(Made(4), [said("base", "1111", "1111"), nothing])
    assert [(row.group, row.method) for row in report.rows if row.method == "new"] == [("b", "new")]
    assert json.loads(report.to_json())["failures"] == [
        {"method": "new", "part": "only", "picture": "0.jpg", "error": "gone"}
    ]
