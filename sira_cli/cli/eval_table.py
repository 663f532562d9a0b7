"""What the commands of `sira eval` print: for each group a row a method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sira_cli.cli.output import table_console

if TYPE_CHECKING:
    from sira_cli.eval.report import EvalReport, Row


def print_report(report: EvalReport) -> None:
    """To stdout; nothing is wrapped in a file."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    out = table_console()
    first = next(iter(report.settings))
    compared = len(report.settings) > 1
    for part in dict.fromkeys(row.part for row in report.rows):
        rows = [row for row in report.rows if row.part == part]
        names = list(dict.fromkeys(name for row in rows for name in row.figures))
        table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
        for head in ["", "method", *names, *([f"p to {first}"] if compared else [])]:
            table.add_column(head, justify="left" if head in ("", "method") else "right", overflow="fold")
        for number, row in enumerate(rows):
            opens = number == 0 or rows[number - 1].group != row.group
            last = number + 1 == len(rows) or rows[number + 1].group != row.group
            cells = [f"{row.figures[name]}" if name in row.figures else "" for name in names]
            end = [_p(report, row, first)] if compared else []
            paper = row.paper or {}
            table.add_row(row.group if opens else "", row.method, *cells, *end, end_section=last and not paper)
            if paper:
                cells = [f"{paper[name]:g}" if name in paper else "" for name in names]
                table.add_row("", "  in the paper", *cells, *("" for _ in end), style="dim", end_section=last)
        out.print(table)
    for line in _remarks(report):
        out.print(line, soft_wrap=True, markup=False)


def _p(report: EvalReport, row: Row, first: str) -> str:
    for test in report.tests:
        if (test.group, test.first, test.second) == (row.group, first, row.method):
            return f"{test.p:.3f}" if test.p >= 0.001 else "<0.001"
    return ""


def _remarks(report: EvalReport) -> list[str]:
    remarks = ["in percent but for words and length, ± half a 95 % interval (bootstrap over pictures)"]
    if len(report.settings) > 1:
        remarks.append("p: McNemar's exact test, on which answers only one of the two methods is right")
    remarks += [f"{name}: not run, at temperature 0 it picks what {other} picks" for name, other in report.same.items()]
    shown = {key: value for key, value in report.facts.items() if isinstance(value, str) and value}
    remarks.append(", ".join(f"{key}: {value.strip()}" for key, value in shown.items()))
    if not report.official:
        remarks.append("NOT the official figures: a stand-in took part, do not compare them with published ones")
    failed = {failure.picture for failure in report.failures}
    if failed:
        remarks.append(f"{len(failed)} pictures failed; what was asked about them is in no figure")
    return [remark for remark in remarks if remark]
