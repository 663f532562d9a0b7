"""Methods side by side: intervals, differences, paired tests, means."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from scipy import stats

from sira_cli.eval.answers.texts import FailedAnswer
from sira_cli.eval.report import EvalReport
from sira_cli.eval.stats.bootstrap import draws, interval, resample
from sira_cli.eval.stats.mcnemar import mcnemar
from tests.support.eval.made import Made, said, share


@pytest.mark.parametrize("only_first", range(0, 40, 3))
@pytest.mark.parametrize("only_second", [0, 1, 5, 20, 300])
def test_mcnemar_is_the_binomial_test_of_discordant_answers(only_first: int, only_second: int):
    discordant = only_first + only_second
    expected = stats.binomtest(only_first, discordant).pvalue if discordant else 1.0
    assert mcnemar(only_first, only_second) == pytest.approx(expected, rel=1e-9)
    assert mcnemar(only_second, only_first) == mcnemar(only_first, only_second)


def counts(right: list[bool], times: int = 1) -> list[dict[str, float]]:
    return [{"right": times * one, "all": times} for one in right]


def test_an_interval_is_as_wide_as_that_of_a_mean():
    right = [number % 10 < 7 for number in range(500)]
    found = interval(70.0, resample(counts(right), share)["share"])
    error = 100 * np.sqrt(0.7 * 0.3 / 500)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.1)
    assert (found.high + found.low) / 2 == pytest.approx(70, abs=0.3)


def test_questions_about_one_picture_are_drawn_together():
    """Ten equal answers about a picture tell as much as one."""
    right = [number % 3 > 0 for number in range(90)]
    one, ten = (resample(counts(right, times), share)["share"] for times in (1, 10))
    assert np.array_equal(one, ten)


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
        assert (nothing.value, nothing.low, nothing.high) == (0, 0, 0)
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


def test_draws_do_not_depend_on_the_order_of_answers():
    """Pictures are drawn by name."""
    made = Made()
    mixed = Made()
    (part,) = mixed.parts
    mixed.parts = (dataclasses.replace(part, asks=part.asks[::-1]),)
    first, second = (EvalReport.of(one, [said("base", "10010" * 8, "1" * 40)]) for one in (made, mixed))
    assert first.rows == second.rows


class Sized(Made):
    """Pictures that weigh more, the higher their number is."""

    def score(self, part, texts):
        tallies = super().score(part, texts)
        for tally in tallies.values():
            for picture, counts in tally.counts.items():
                size = 1 + int(picture.removesuffix(".jpg"))
                tally.counts[picture] = {name: size * count for name, count in counts.items()}
        return tallies


def test_pictures_are_drawn_in_the_order_of_their_names():
    """So the same draws are made in every process, whatever it hashes strings to."""
    right = "10010" * 8
    row = EvalReport.of(Sized(), [said("base", right, right)]).rows[0]
    numbers = sorted(range(40), key=str)
    sizes = np.array([1 + number for number in numbers])
    hits = sizes * np.array([right[number] == "1" for number in numbers])
    expected = np.percentile(100 * (draws(40) @ hits) / (draws(40) @ sizes), [2.5, 97.5])
    figure = row.figures["share"]
    assert [figure.low, figure.high] == pytest.approx(expected)


def test_a_difference_is_paired():
    """Of methods that differ on few answers it is known better than the figures are."""
    base = "10" * 20
    report = EvalReport.of(Made(), [said("base", base, base), said("new", "11" + base[2:], base)])
    row = next(row for row in report.rows if (row.group, row.method) == ("a", "new"))
    figure, difference = row.figures["share"], row.differences["share"]
    assert difference.value == pytest.approx(2.5)
    assert difference.high - difference.low < (figure.high - figure.low) / 3


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


@pytest.mark.parametrize("first", ["base", "new"])
def test_differences_are_of_the_same_draws_when_a_picture_failed(first: str):
    """What was drawn is reckoned again, picture by picture."""
    rows = {"base": "1101", "new": "-011"}
    second = next(name for name in rows if name != first)
    answers = [said(name, rows[name], "1111") for name in (first, second)]
    row = next(row for row in EvalReport.of(Made(4), answers).rows if (row.group, row.method) == ("a", second))
    drawn = {}
    for name, texts in rows.items():
        known = list(zip(draws(3).T, texts[1:], strict=True))  # the first picture counts for none
        right = sum(weights for weights, text in known if text == "1")
        drawn[name] = 100 * right / 3
    expected = np.percentile(drawn[second] - drawn[first], [2.5, 97.5])
    difference = row.differences["share"]
    assert [difference.low, difference.high] == pytest.approx(expected)


def test_a_mean_is_drawn_by_picture():
    """Where one group is right about a picture and the other wrong, the mean is the same in every draw."""
    report = EvalReport.of(Made(4), [said("base", "1100", "0011")])
    mean = next(row for row in report.rows if row.group == "mean").figures["share"]
    assert (mean.value, mean.low, mean.high) == (50, 50, 50)


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
