"""Wilson's interval, and those at 0 and 100 %, which are of the number of pictures."""

from __future__ import annotations

import pytest
from scipy import stats

from sira_cli.eval.figures import POPE_DENOMINATORS, pope_figures
from sira_cli.eval.pope import Pope
from sira_cli.eval.statistics import MethodFigures, Tally, wilson


@pytest.mark.parametrize("trials", [1, 2, 30, 500])
@pytest.mark.parametrize("tenths", [0, 3, 10])
def test_it_is_scipys(trials, tenths):
    hits = trials * tenths // 10
    expected = stats.binomtest(hits, trials).proportion_ci(method="wilson")
    assert wilson(hits / trials, trials) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert wilson(0, trials)[0] == 0
    assert wilson(1, trials)[1] == 1


def row(**counts: int) -> dict[str, float]:
    return dict.fromkeys(("TP", "FP", "TN", "FN", "unanswered yes", "unanswered no", "neither", "words"), 0) | counts


def test_it_counts_the_pictures_that_a_figure_is_about():
    """All questions of four pictures are answered rightly; one picture has no question to be answered with yes."""
    counts = {"a": row(TP=3, TN=3), "b": row(TP=1), "c": row(TP=2, TN=1), "d": row(TN=2)}
    compared = MethodFigures.of({"sira": Tally(counts)}, pope_figures, POPE_DENOMINATORS)
    found = compared.figures("sira")
    for name, value, sizes in (
        ("accuracy", 100, [6, 1, 3, 2]),
        ("recall", 100, [3, 1, 2]),
        ("FPR", 0, [3, 1, 2]),
        ("neither", 0, [6, 1, 3, 2]),
    ):
        low, high = wilson(value / 100, sum(sizes) ** 2 / sum(size**2 for size in sizes))  # fewer, if one has most
        assert [found[name].low, found[name].high] == pytest.approx([100 * low, 100 * high]), name
        assert found[name].value == value
    assert found["yes"].low < found["yes"].value < found["yes"].high < 100
    assert found["words"].low == found["words"].high == 0  # no share


def test_what_nothing_is_known_about_has_no_width():
    """Without an answer yes, precision is 0 by convention: no picture says anything about it."""
    compared = MethodFigures.of({"sira": Tally({"a": row(FN=1), "b": row(TN=1)})}, pope_figures, POPE_DENOMINATORS)
    precision = compared.figures("sira")["precision"]
    assert (precision.low, precision.high) == (0, 0)
    mean = MethodFigures.mean([compared, compared]).figures("sira")
    assert (mean["precision"].low, mean["precision"].high) == (0, 0)
    assert mean["FPR"].high == 100 * wilson(0, 1)[1]


def test_all_figures_of_the_benchmarks_that_are_shares_have_a_denominator(tmp_path, chair, amber):
    (tmp_path / "q.json").write_text('{"image": "0.jpg", "text": "Is it?", "label": "yes"}')
    for benchmark in (Pope([tmp_path / "q.json"]), chair, amber):
        for part in benchmark.parts:
            texts = {ask.id: "Yes" for ask in part.asks}
            for group, tally in benchmark.score(part, texts).items():
                total = tally.total()
                named = benchmark.denominators(group)
                assert {*benchmark.figures(group, total)} - {*named} <= {"words", "length"}
                assert {count for counts in named.values() for count in counts} <= {*total}
