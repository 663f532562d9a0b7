"""What a sampled method is called, and the differences to the first method."""

from __future__ import annotations

import json
import re

import pytest

from sira_cli.cli.eval import print_report
from sira_cli.eval.report import EvalReport, label
from tests.support.eval.made import Made, said


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("greedy", {}, "greedy"),
        ("greedy", {"temperature": 0, "top_p": 0.9, "num_beams": 1}, "greedy"),
        ("greedy", {"temperature": 1.0, "top_p": 1.0, "num_beams": 1}, "sampling, T=1"),
        ("greedy+apc", {"temperature": 0.7}, "sampling+apc, T=0.7"),
        ("sira", {"temperature": 0.2, "top_p": 0.9}, "sira, T=0.2, top-p=0.9"),
        ("greedy", {"num_beams": 5}, "greedy, 5 beams"),
        ("greedy_of_mine", {"temperature": 1}, "greedy_of_mine, T=1"),
        ("sira", {"temperature": None, "num_beams": "many"}, "sira"),
    ],
)
def test_a_label(name, settings, expected):
    assert label(name, settings) == expected


def answers(temperature: float):
    both = [said("greedy", "1100" * 10, "1" * 40), said("sira", "1110" * 10, "1" * 40)]
    for one in both:
        one.settings = {"temperature": temperature, "top_p": 1.0}
    return both


def test_the_table_says_that_answers_are_sampled(capsys):
    report = EvalReport.of(Made(), answers(1.0))
    print_report(report)
    table = capsys.readouterr().out
    shown = [re.split(" {2,}", line.strip())[0] for line in table.splitlines() if "±" in line and "- " not in line]
    assert shown[:6] == ["sampling, T=1", "sira, T=1"] * 3
    assert "T: answers are sampled at this temperature" in table
    rows = json.loads(report.to_json())["rows"]
    assert {(row["method"], row["label"]) for row in rows} == {("greedy", "sampling, T=1"), ("sira", "sira, T=1")}


def test_differences_to_the_first_method_are_shown(capsys):
    report = EvalReport.of(Made(), answers(0.0))
    row = next(row for row in report.rows if (row.group, row.method) == ("a", "sira"))
    difference, p = row.differences["share"], row.p
    assert (difference.value, p) == (25, pytest.approx(2 / 2**10))  # ten answers are right only under sira
    print_report(report)
    lines = capsys.readouterr().out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.split()[:1] == ["sira"])
    assert lines[place].split() == ["sira", "75.0", f"±{row.figures['share'].half:.1f}", "0.002"]
    assert lines[place + 1].split() == ["-", "greedy", "+25.0", f"±{difference.half:.1f}"]


def test_a_method_that_was_not_run_has_no_differences_to_show(capsys):
    greedy, sira = answers(0.0)
    report = EvalReport.of(Made(), [greedy, greedy.under("greedy+apc"), sira])
    print_report(report)
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if "±" in line]
    assert lines[:4] == [["greedy", "50.0"], ["greedy+apc", "50.0"], ["sira", "75.0"], ["-", "greedy"]]
