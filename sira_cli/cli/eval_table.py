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
    compared = len(report.settings) > 1
    first = next(iter(report.settings))
    for names, rows in _tables(report):
        table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
        for head in ["", "method", *names, *([f"p to {first}"] if compared else [])]:
            table.add_column(head, justify="left" if head in ("", "method") else "right", overflow="fold")
        for number, row in enumerate(rows):
            opens = number == 0 or rows[number - 1].group != row.group
            last = number + 1 == len(rows) or rows[number + 1].group != row.group
            cells = [f"{row.figures[name]}" for name in names] + ([_p(report, row, first)] if compared else [])
            table.add_row(row.group if opens else "", row.method, *cells, end_section=last and not row.paper)
            if row.paper:
                cells = [f"{row.paper[name]:g}" if name in row.paper else "" for name in names]
                table.add_row("", "  in the paper", *cells, style="dim", end_section=last)
        out.print(table)
        for part in dict.fromkeys(row.part for row in rows):
            if part in report.stand_ins:
                out.print(f"{part}: NOT the official figures: {report.stand_ins[part]}", style="bold", soft_wrap=True)
    for line in _remarks(report):
        out.print(line, soft_wrap=True, markup=False)


def _tables(report: EvalReport) -> list[tuple[list[str], list[Row]]]:
    """Rows that have the same figures, with the figures' names."""
    tables: dict[tuple[str, ...], list[Row]] = {}
    for row in report.rows:
        tables.setdefault(tuple(row.figures), []).append(row)
    return [(list(names), rows) for names, rows in tables.items()]


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
    shown = {key: value for key, value in report.facts.items() if isinstance(value, str)}
    remarks.append(", ".join(f"{key}: {value}" for key, value in shown.items()))
    failed = {failure.picture for failure in report.failures}
    if failed:
        remarks.append(f"{len(failed)} pictures failed; what was asked about them is in no figure")
    return [remark for remark in remarks if remark]
