"""What the commands of `sira eval` print: in each group one row per method, as wide as the terminal allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sira_cli.cli.output import table_console

if TYPE_CHECKING:
    from rich.table import Table

    from sira_cli.eval.report import EvalReport, Row

EXTRAS = ("neither", "words", "length")  # left out first on a narrow terminal


def print_report(report: EvalReport) -> None:
    """Print the report to stdout; in a file, nothing is wrapped."""
    from rich.measure import Measurement

    out = table_console()
    for names, rows in _tables(report):
        short = [name for name in names if name not in EXTRAS]
        fewer = ((short[:count], False) for count in range(len(short), 0, -1))
        for shown, intervals in ((names, True), (short, True), *fewer):
            table = _table(report, rows, shown, intervals, out.width // 3)
            if Measurement.get(out, out.options.update(max_width=10_000), table).maximum <= out.width:
                break
        out.print(table)
        if len(shown) < len(short):
            out.print(f"too narrow for {', '.join(short[len(shown) :])}: see --json", markup=False, soft_wrap=True)
        for part in dict.fromkeys(row.part for row in rows):
            if part in report.stand_ins:
                note = f"{part}: NOT the official figures: {report.stand_ins[part]}"
                out.print(note, style="bold", markup=False, soft_wrap=True)
    for line in _remarks(report):
        out.print(line, soft_wrap=True, markup=False)


def _tables(report: EvalReport) -> list[tuple[list[str], list[Row]]]:
    """Group rows that have the same figures, with the figures' names."""
    tables: dict[tuple[str, ...], list[Row]] = {}
    for row in report.rows:
        tables.setdefault(tuple(row.figures), []).append(row)
    return [(list(names), rows) for names, rows in tables.items()]


def _table(report: EvalReport, rows: list[Row], names: list[str], intervals: bool, widest: int) -> Table:
    """Make a table of some figures; names of methods are wrapped at `widest` characters."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    compared = len(report.settings) > 1
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.add_column("", overflow="fold", max_width=max(widest, 12))
    for head in [*names, *(["p"] if compared else [])]:
        table.add_column(head, justify="right", no_wrap=True)
    for number, row in enumerate(rows):
        if number == 0 or rows[number - 1].group != row.group:
            table.add_row(Text(row.group, "bold"))
        last = number + 1 == len(rows) or rows[number + 1].group != row.group
        figures = [row.figures[name] for name in names]
        cells = [f"{figure}" if intervals else f"{figure.value:.1f}" for figure in figures]
        cells += [_p(report, row)] if compared else []
        table.add_row(Text(f"  {row.method}"), *cells, end_section=last and not row.paper)
        if row.paper:
            cells = [f"{row.paper[name]:g}" if name in row.paper else "" for name in names]
            table.add_row("    in the paper", *cells, style="dim", end_section=last)
    return table


def _p(report: EvalReport, row: Row) -> str:
    first = next(iter(report.settings))
    for test in report.tests:
        if (test.group, test.first, test.second) == (row.group, first, row.method):
            return f"{test.p:.3f}" if test.p >= 0.001 else "<0.001"
    return ""


def _remarks(report: EvalReport) -> list[str]:
    from sira_cli.eval.report import MEAN

    first = next(iter(report.settings))
    remarks = ["in percent but for words and length, ± half a 95 % interval (bootstrap over pictures)"]
    if len(report.settings) > 1:
        remarks.append(f"p: McNemar's exact test, on which answers only one of {first} and the method is right")
    for name, other in report.not_run.items():
        remarks.append(f"{name}: not run, as it picks what {other} picks unless one samples")
    if report.paper:
        without = dict.fromkeys(row.method for row in report.rows if row.paper is None and row.group != MEAN)
        remarks.append(f"in the paper: {report.paper}" + f"; nothing there of {', '.join(without)}" * bool(without))
    facts = [f"{key}: {value}" for key, value in report.facts.items() if isinstance(value, str)]
    return [*remarks, ", ".join(facts)] if facts else remarks
