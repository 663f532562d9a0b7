"""The tables of `sira eval`: per group one row per method, as wide as the terminal allows."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from sira_cli.cli.terminal.console import with_options_named
from sira_cli.cli.terminal.output import new_table, table_console

if TYPE_CHECKING:
    from rich.table import Table

    from sira_cli.eval.report import EvalReport, MethodRow
    from sira_cli.eval.statistics import Figure

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
            out.print(f"too narrow for {', '.join(short[len(shown) :])}: see --json", soft_wrap=True)
        for part in dict.fromkeys(row.part for row in rows):
            if part in report.stand_ins:
                note = f"{part}: NOT the official figures: {report.stand_ins[part]}"
                out.print(note, style="bold", soft_wrap=True)
    for line in report.remarks():
        out.print(with_options_named(line), soft_wrap=True)


def _tables(report: EvalReport) -> list[tuple[list[str], list[MethodRow]]]:
    """Group rows that have the same figures, with the figures' names."""
    tables: dict[tuple[str, ...], list[MethodRow]] = {}
    for row in report.rows:
        tables.setdefault(tuple(row.figures), []).append(row)
    return [(list(names), rows) for names, rows in tables.items()]


def _table(report: EvalReport, rows: list[MethodRow], names: list[str], intervals: bool, widest: int) -> Table:
    """Make a table of some figures; names of methods are wrapped at `widest` characters."""
    from rich.text import Text

    from sira_cli.eval.report import p_text

    compared = ["p"] if report.tests else []
    table = new_table("", figures=(*names, *compared), tight=True)
    labels, *figures = table.columns
    labels.overflow, labels.max_width = "fold", max(widest, 12)
    for column in figures:
        column.no_wrap = True

    def add(label: str, figures: Mapping[str, Figure | float], sign: str = "", p: str = "", style: str = "dim") -> None:
        shown = [f"{figures[name]:{sign}{report.digits(name)}}" if name in figures else "" for name in names]
        cells = shown if intervals else [cell.partition(" ±")[0] for cell in shown]
        table.add_row(Text(label), *cells, *(p for _ in compared), style=style)

    for group, own in groupby(rows, key=attrgetter("group")):
        table.add_section()
        table.add_row(Text(group, "bold"))
        for row in own:
            add(f"  {row.label}", row.figures, p=p_text(row.p), style="")
            if row.differences and row.method not in report.not_run:
                add(f"    - {report.labels[report.first]}", row.differences, sign="+")
            for source, printed in row.printed.items():
                add("    " + source.replace("paper", "in the paper"), printed)
    return table
