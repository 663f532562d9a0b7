"""A report as a table."""

from __future__ import annotations

import dataclasses
import io
import itertools
import re

import pytest
from rich.console import Console

from sira_cli.cli.eval import print_report
from sira_cli.eval.report import EvalReport, MethodRow
from sira_cli.eval.statistics import Figure, McNemarTest
from tests.support.eval.made import Made, said, share


@dataclasses.dataclass
class Named(Made):
    """With figures of any names, the same for all methods but the first; not official."""

    figure: str = "share"

    def __post_init__(self) -> None:
        super().__init__(2)

    def figures(self, group, total):
        return {self.figure: share(total)["share"]}

    def stand_ins(self):
        return {"only": "a coin"}


def made_report(*rows: tuple[str, str, str, dict[str, float], dict[str, float] | None], **more) -> EvalReport:
    """Of part, group, method, figures and the paper's."""
    made = [
        MethodRow(
            part,
            group,
            method,
            8,
            0,
            {},
            {name: Figure(value, value, value) for name, value in figures.items()},
            {},
            of,
            label=method,
        )
        for part, group, method, figures, of in rows
    ]
    settings = {row.method: {} for row in made}
    tests = tuple(McNemarTest("all", *pair, 0, 0, 1.0) for pair in itertools.combinations(settings, 2))
    known = {"stand_ins": {}, "facts": {}, "not_run": {}, "paper": ""} | more
    return EvalReport(benchmark="made", settings=settings, rows=tuple(made), tests=tests, failures=(), **known)


@pytest.mark.parametrize(
    ("columns", "heads", "left_out"),
    [(80, "share hits neither words", ""), (44, "share hits", ""), (24, "share", "too narrow for hits: see --json")],
)
def test_a_narrow_table_leaves_out_what_one_can_do_without(monkeypatch, columns, heads, left_out):
    figures = {"share": 50.0, "hits": 7.0, "neither": 1.0, "words": 2.5}
    out = printed(made_report(("one", "all", "a_name_of_its_own", figures, None)), monkeypatch, columns)
    assert next(line for line in out.splitlines() if "share" in line).split() == heads.split()
    assert "50.0" in out
    assert "…" not in out  # names go on in the next line, and no figure is cut
    assert ("too narrow" in out) == bool(left_out)
    assert left_out in out


def test_remarks_say_what_was_not_run_and_what_decides(monkeypatch):
    report = made_report(
        ("one", "all", "base", {"share": 50.0}, {"share": 61.25}),
        ("one", "all", "other", {"share": 50.0}, None),
        not_run={"other": "base"},
        paper="llava-1.5-7b",
        facts={"rule": "official", "questions": {"a": "b"}, "language": "nltk"},
    )
    lines = printed(report, monkeypatch, 200).splitlines()
    assert lines[-5] == f"in percent but for words and length, ± half a 95 % interval over {report.intervals}"
    assert lines[-4:] == [
        "p: McNemar's exact test, on which answers only one of base and the method is right, taken as independent",
        "other: not run, because without sampling its answers equal those of base",
        "in the paper: llava-1.5-7b; no figures for other",
        "rule: official, language: nltk",
    ]


def printed(report: EvalReport, monkeypatch, columns: int) -> str:
    console = Console(width=columns, file=io.StringIO(), highlight=False)
    monkeypatch.setattr("sira_cli.cli.eval.table_console", lambda: console)
    print_report(report)
    return console.file.getvalue()


def test_the_table_has_p_values_and_says_what_is_not_official(capsys):
    report = EvalReport.of(Named("share"), [said("base", "11", "11"), said("[red]new", "10", "11")])
    print_report(report)
    out = capsys.readouterr().out
    assert "only: NOT the official figures: a coin" in out
    assert [line.split()[-1] for line in out.splitlines() if "[red]new" in line] == ["1.000", "1.000", mean(report)]
    report = EvalReport.of(Made(), [said("base", "1" * 40, "1" * 40), said("new", "0" * 40, "1" * 40)])
    print_report(report)
    out = capsys.readouterr().out
    assert "NOT the official" not in out
    assert [line.split()[-1] for line in out.splitlines() if line.split()[:1] == ["new"]] == [
        "<0.001",
        "1.000",
        mean(report),
    ]


def mean(report: EvalReport) -> str:
    """The last row's interval."""
    return report.rows[-1].text(report.rows[-1].figures["share"], ".1f").split()[1]


@pytest.mark.parametrize(("columns", "expected"), [(200, "50.0 (7.6..92.4)"), (24, "50.0")])
def test_a_narrow_table_leaves_intervals_out(monkeypatch, columns, expected):
    out = printed(EvalReport.of(Made(2), [said("base", "10", "11"), said("new", "10", "11")]), monkeypatch, columns)
    row = next(line for line in out.splitlines() if line.split()[:1] == ["base"])
    assert row.split(maxsplit=1)[1].strip() == expected
    assert "…" not in out.split("in percent")[0]
    assert "; (low..high): its bounds, below 30 pictures" in out


def test_what_the_paper_lacks_is_named(monkeypatch):
    """Methods it has none of; and groups, of which captions of unknown length are one."""
    figures = {"CHAIRs": 50.0}
    rows = [("captions", "captions", name, figures, None) for name in ("greedy", "opera", "mine")]
    report = dataclasses.replace(made_report(*rows, paper="llava-1.5-7b"), benchmark="chair")
    assert (
        "in the paper: llava-1.5-7b; no figures for mine; "
        "no figures for captions, only for 64 tokens, 512 tokens: give --lengths N\n"
    ) in printed(report, monkeypatch, 200)
    rows = [("g", "generative", "sid", {"CHAIR": 5.0}, {"CHAIR": 6.1}), ("d", "existence", "sid", {"F1": 5.0}, None)]
    report = dataclasses.replace(made_report(*rows, paper="llava-1.5-7b"), benchmark="amber")
    out = printed(report, monkeypatch, 200)
    assert "in the paper: llava-1.5-7b; no figures for existence, only for generative\n" in out


@pytest.mark.parametrize(("benchmark", "shown"), [("pope", "89.10 ±0.00"), ("chair", "89.1 ±0.0")])
def test_figures_have_as_many_decimals_as_in_the_paper(monkeypatch, benchmark, shown):
    figures = {"accuracy" if benchmark == "pope" else "CHAIRs": 89.1, "words": 2.25}
    paper = {name: value for name, value in figures.items() if name != "words"}
    report = dataclasses.replace(made_report(("one", "all", "sira", figures, paper)), benchmark=benchmark)
    out = printed(report, monkeypatch, 200)
    assert re.search(rf"sira +{shown} +2\.2 ±0\.0 *\n +in the paper +{shown.split()[0]}\s", out)
