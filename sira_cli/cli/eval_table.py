"""The tables of `sira eval`: per group one row per method, as wide as the terminal allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sira_cli.cli.output import table_console

if TYPE_CHECKING:
    from rich.table import Table

    from sira_cli.eval.report import EvalReport, MethodRow
    from sira_cli.eval.stats.bootstrap import Figure

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


def _tables(report: EvalReport) -> list[tuple[list[str], list[MethodRow]]]:
    """Group rows that have the same figures, with the figures' names."""
    tables: dict[tuple[str, ...], list[MethodRow]] = {}
    for row in report.rows:
        tables.setdefault(tuple(row.figures), []).append(row)
    return [(list(names), rows) for names, rows in tables.items()]


def _table(report: EvalReport, rows: list[MethodRow], names: list[str], intervals: bool, widest: int) -> Table:
    """Make a table of some figures; names of methods are wrapped at `widest` characters."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from sira_cli.eval.paper import decimals
    from sira_cli.eval.report import p_text

    compared = len(report.settings) > 1
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.add_column("", overflow="fold", max_width=max(widest, 12))
    for head in [*names, *(["p"] if compared else [])]:
        table.add_column(head, justify="right", no_wrap=True)
    for number, row in enumerate(rows):
        if number == 0 or rows[number - 1].group != row.group:
            table.add_row(Text(row.group, "bold"))
        last = number + 1 == len(rows) or rows[number + 1].group != row.group
        shown = [(f"  {report.labels[row.method]}", row.figures, "", "")]
        if row.differences and row.method not in report.not_run:
            shown.append((f"    - {report.labels[report.first]}", row.differences, "+", "dim"))
        for place, (label, figures, sign, style) in enumerate(shown):
            cells = [_cell(figures[name], f"{sign}.{decimals(report.benchmark, name)}f", intervals) for name in names]
            cells += ["" if place else p_text(report.p(row))] if compared else []
            closes = last and not row.printed and place + 1 == len(shown)
            table.add_row(Text(label), *cells, style=style, end_section=closes)
        for source, printed in row.printed.items():
            digits = {name: decimals(report.benchmark, name) for name in printed}
            cells = [f"{printed[name]:.{digits[name]}f}" if name in printed else "" for name in names]
            closes = last and source == [*row.printed][-1]
            label = "    " + source.replace("paper", "in the paper")
            table.add_row(Text(label), *cells, style="dim", end_section=closes)
    return table


def _cell(figure: Figure, form: str, interval: bool) -> str:
    return f"{figure:{form}}" if interval else f"{figure.value:{form}}"


def _remarks(report: EvalReport) -> list[str]:
    remarks = report.how()
    several = {row.method: row.counts["captions"] / row.answered for row in report.rows if "captions" in row.counts}
    for name, count in several.items():
        if count > 1:
            remarks.append(f"{report.labels[name]}: {count:g} captions per image, all counted; p is for the first")
    for name, other in report.not_run.items():
        remarks.append(f"{name}: not run, because without sampling its answers equal those of {other}")
    if report.paper:
        remarks.append(f"in the paper: {report.paper}" + _not_in_the_paper(report))
    facts = [f"{key}: {value}" for key, value in report.facts.items() if isinstance(value, str)]
    return [*remarks, ", ".join(facts)] if facts else remarks


def _not_in_the_paper(report: EvalReport) -> str:
    """Return a remark on methods and groups without figures in the paper."""
    from sira_cli.eval.base import MEAN
    from sira_cli.eval.paper import paper_groups

    groups = paper_groups(report.paper, report.benchmark)
    known = {name for names in groups.values() for name in names} | {row.method for row in report.rows if row.paper}
    without = list(dict.fromkeys(row.method for row in report.rows if row.method not in known))
    there = {*groups, MEAN} | {row.group for row in report.rows if row.paper}
    others = list(dict.fromkeys(row.group for row in report.rows if row.group not in there))
    said = f"; no figures for {', '.join(without)}" if without else ""
    if groups and others:
        said += f"; no figures for {', '.join(others)}, only for {', '.join(groups)}"
        said += ": give --lengths N" if report.benchmark == "chair" else ""
    return said
