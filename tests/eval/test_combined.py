"""The table of several benchmarks: its figures, its width, and the same in files."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from sira_cli.cli.terminal.output import print_tables
from sira_cli.eval.combined import MAIN, Combined
from sira_cli.eval.report import EvalReport, MethodRow
from sira_cli.eval.statistics import Figure

METHODS = ("greedy", "greedy+apc", "sira", "text-only")
FIGURES = {
    "chair": {"CHAIRs": (49.8, 4.4), "CHAIRi": (14.4, 1.9), "recall": (77.7, 1.9), "words": (88.0, 2.0)},
    "amber": {"CHAIR": (7.3, 0.7), "Cover": (50.0, 2.0)},
    "pope": {"accuracy": (87.12, 1.24), "F1": (86.44, 1.31), "recall": (82.13, 2.0)},
}
GROUPS = {
    "chair": ("64 tokens", "512 tokens"),
    "amber": ("generative",),
    "pope": ("coco random", "coco popular", "mean"),
}


def made(benchmark: str, not_run: tuple[str, ...] = ()) -> EvalReport:
    """A report with the same figures for all methods; the differences of `sira` alone show an effect."""
    rows = []
    for group in GROUPS[benchmark]:
        for method in METHODS:
            figures = {
                name: Figure(value, value - half, value + half) for name, (value, half) in FIGURES[benchmark].items()
            }
            high = -0.5 if method == "sira" else 0.0
            changes = {} if method == "greedy" else dict.fromkeys(figures, Figure(-1.25, -2.0, high))
            paper = {"CHAIRi": 9.5} if (group, method) == ("64 tokens", "sira") else None
            rows.append(MethodRow("p", group, method, 1, 0, {}, figures, changes, paper, method, pictures=500))
    settings: dict = {method: {} for method in METHODS}
    return EvalReport(benchmark, {}, {}, settings, dict.fromkeys(not_run, "greedy"), "", tuple(rows), (), ())


@pytest.fixture
def combined() -> Combined:
    return Combined.of([made(benchmark, ("greedy+apc",)) for benchmark in FIGURES])


def test_it_has_the_main_figures_and_means(combined):
    """Of POPE the mean over splits only; CHAIR has a column for each length."""
    captions = [f"{name}\n{length}" for length in (64, 512) for name in ("CHAIRs", "CHAIRi", "recall")]
    assert combined.heads == [*captions, "AMBER\nCHAIR", "POPE\naccuracy", "POPE\nF1"]
    table = {row[0].strip(): row for row in combined.table().sections[0]}
    assert list(table) == ["greedy", "greedy+apc", "sira", "- greedy", "in the paper", "text-only"]
    assert table["greedy"][1:3] == ["49.8 ±4.4", "14.4 ±1.9"]
    assert table["in the paper"] == ["  in the paper", "", "9.5", *[""] * 7]


def test_where_no_difference_is_shown_it_is_marked(combined):
    (rows,) = combined.table().sections
    lines = [row[:2] for row in rows]
    assert lines[2:4] == [["sira", "49.8 ±4.4"], ["  - greedy", "-1.2"]]
    assert lines[5:] == [["text-only", "49.8 ±4.4"], ["  - greedy", "≈ -1.2"]]
    assert lines[1][0] == "greedy+apc"  # not run: no line of differences


def test_it_fits_into_120_columns(combined, capsys, monkeypatch):
    """Also on a terminal of that width, where wider tables are divided."""
    from rich.console import Console

    monkeypatch.setattr("sira_cli.cli.terminal.output.table_console", lambda: Console(width=120))
    print_tables([combined.table()])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 120
    assert (out.count("CHAIRs"), out.count("text-only")) == (2, 1)


def test_csv_has_every_figure_with_its_interval(combined):
    rows = list(csv.DictReader(io.StringIO(combined.to_csv())))
    assert [row["method"] for row in rows] == list(METHODS)
    for benchmark, main in MAIN.items():
        for name, head in main.items():
            column = f"{head} 512" if benchmark == "chair" else head.replace("\n", " ")
            value, half = FIGURES[benchmark][name]
            parts = [float(rows[2][column + part]) for part in ("", " low", " high", " difference")]
            assert parts == pytest.approx([value, value - half, value + half, -1.25])
    assert (rows[0]["POPE F1 difference"], rows[1]["POPE F1 difference"]) == ("", "")


def test_latex_has_the_cells_of_the_table(combined):
    text = combined.to_latex()
    (rows,) = combined.table().sections
    body = text.partition("\\midrule\n")[2].partition("\\bottomrule")[0]
    plain = body.replace("$\\pm$", "±").replace("$\\approx$", "≈").replace(" \\\\", "")
    assert [line.split(" & ") for line in plain.splitlines()] == [[cell.strip() for cell in row] for row in rows]
    assert "{lrrrrrrrrr}" in text


def test_what_has_a_meaning_in_latex_is_escaped():
    report = made("amber")
    odd = r"a_b & 5 % #1 {x}\$"
    rows = tuple(MethodRow(*("p", "generative", odd, 1, 0), {}, row.figures, {}, label=odd) for row in report.rows[:1])
    text = Combined.of([EvalReport("amber", {}, {}, {odd: {}}, {}, "", rows, (), ())]).to_latex()
    assert r"a\_b \& 5 \% \#1 \{x\}\textbackslash{}\$ & 7.3" in text


def test_one_benchmark_has_all_its_figures_and_groups():
    heads = Combined.of([made("pope")]).heads
    assert heads == [f"{name}\n{group}" for group in GROUPS["pope"] for name in FIGURES["pope"]]


def test_files_are_written_and_others_are_not_replaced(sira, scenes, loaded, tmp_path):
    files = (tmp_path / "t.csv", tmp_path / "t.tex")
    run = ("eval", "pope", scenes / "pope" / "scenes_pope_random.json", "--images", scenes / "images", "-p", "demo")
    code, out, err = sira(*run, "--csv", files[0], "--latex", files[1], "--json")
    assert code == 0, err
    rows = {row["method"]: row for row in json.loads(out)["rows"]}
    for row in csv.DictReader(files[0].open()):
        assert float(row["F1"]) == pytest.approx(rows[row["method"]]["figures"]["F1"]["value"], abs=1e-3)
    assert re.search(r"^greedy & \d", files[1].read_text(), re.MULTILINE)
    asked = loaded.total()
    for args, message in (
        (("--csv", tmp_path / "answers.jsonl"), "answers.jsonl: expected a name that ends in .csv"),
        (("--latex", files[0]), "t.csv: expected a name that ends in .tex"),
        (("--csv", files[0], "--shard", "1/2", "-o", tmp_path / "o"), "--csv is for all answers"),
    ):
        code, _, err = sira(*run, *args)
        assert code == 2, err
        assert message in err, err
        assert loaded.total() == asked, err
