"""A report as CSV, for spreadsheets and scripts, and as LaTeX, for papers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping

from sira_cli.eval.report import LOWER_IS_BETTER, NO_DIRECTION, EvalReport, MethodRow, p_text
from sira_cli.eval.stats.intervals import Figure

_ESCAPES = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\~{}", "^": r"\^{}"}
)


def to_csv(report: EvalReport) -> str:
    """Write a line per group and method, then lines for differences to the first method and for the paper's figures.

    Columns hold figures and 95 % intervals; `source` identifies the lines.
    """
    names = list(dict.fromkeys(name for row in report.rows for name in row.figures))
    head = ["benchmark", "part", "group", "method", "source", "official", "answered", "failed"]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    columns = [column for name in names for column in (name, f"{name} low", f"{name} high")]
    writer.writerow([*head, *columns, "p", "label"])
    for row in report.rows:
        start = [report.benchmark, row.part, row.group, row.method]
        counts = [row.part not in report.stand_ins, row.answered, row.failed]
        writer.writerow([*start, "measured", *counts, *_numbers(row.figures, names), "", row.label])
        if row.differences:
            numbers, p = _numbers(row.differences, names), "" if row.p is None else repr(row.p)
            writer.writerow([*start, "difference", *counts, *numbers, p, row.label])
        for source, printed in row.printed.items():
            cells = [cell for name in names for cell in (printed.get(name, ""), "", "")]
            writer.writerow([*start, source, "", "", "", *cells, "", row.label])
    return file.getvalue()


def _numbers(figures: Mapping[str, Figure], names: list[str]) -> list[str]:
    cells: list[str] = []
    for name in names:
        figure = figures.get(name)
        cells += ["", "", ""] if figure is None else [repr(figure.value), repr(figure.low), repr(figure.high)]
    return cells


def to_latex(report: EvalReport) -> str:
    r"""Write a LaTeX tabular per part (package `booktabs`), a block of rows per group, the best of each block bold.

    Below each method follows its difference to the first one, with McNemar's p. ± is half a 95 % interval.
    """
    return "\n\n".join(_tabular(report, part) for part in dict.fromkeys(row.part for row in report.rows)) + "\n"


def _tabular(report: EvalReport, part: str) -> str:
    rows = [row for row in report.rows if row.part == part]
    names = list(rows[0].figures)
    p_column = any(row.p is not None for row in rows)
    lines = [f"% NOT the official figures: {report.stand_ins[part]}"] if part in report.stand_ins else []
    lines += [f"% {line}" for line in report.how()]
    lines += [
        rf"\begin{{tabular}}{{ll{'r' * (len(names) + p_column)}}}",
        r"\toprule",
        " & ".join(["", "Method", *(_head(name) for name in names), *["$p$"] * p_column]) + r" \\",
    ]
    for group in dict.fromkeys(row.group for row in rows):
        block = [row for row in rows if row.group == group]
        lines.append(r"\midrule")
        first = _tex(group)
        for cells in (cells for row in block for cells in _rows(report, row, names, block)):
            lines.append(" & ".join([first, *(cells if p_column else cells[:-1])]) + r" \\")
            first = ""
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _rows(report: EvalReport, row: MethodRow, names: list[str], block: list[MethodRow]) -> Iterator[list[str]]:
    """Yield a method's figures, its differences to the first method, and the paper's figures; p stands last."""
    yield [_tex(row.label), *(_cell(report, row, name, block) for name in names), ""]
    if row.differences and row.method not in report.not_run:
        p = p_text(row.p).replace("<", "$<$")
        differences = (_signed(report, name, row.differences[name]) for name in names)
        yield [rf"\quad $-$ {_tex(report.labels[report.first])}", *differences, p]
    for source, printed in row.printed.items():
        cells = [_fixed(report, name, printed[name]) if name in printed else "" for name in names]
        yield [_tex(f"{row.method} ({source})"), *cells, ""]


def _cell(report: EvalReport, row: MethodRow, name: str, block: list[MethodRow]) -> str:
    figure = row.figures[name]
    value = _fixed(report, name, figure.value)
    values = [other.figures[name].value for other in block]
    best = min(values) if name in LOWER_IS_BETTER else max(values)
    if name not in NO_DIRECTION and len(block) > 1 and figure.value == best:
        value = rf"\textbf{{{value}}}"
    return value + _half(report, name, figure)


def _signed(report: EvalReport, name: str, difference: Figure) -> str:
    return f"${difference.value:+{report.digits(name)}}$" + _half(report, name, difference)


def _half(report: EvalReport, name: str, figure: Figure) -> str:
    return rf" {{\scriptsize $\pm${_fixed(report, name, figure.half)}}}"


def _fixed(report: EvalReport, name: str, value: float) -> str:
    return f"{value:{report.digits(name)}}"


def _head(name: str) -> str:
    arrow = "" if name in NO_DIRECTION else r"$\downarrow$" if name in LOWER_IS_BETTER else r"$\uparrow$"
    return _tex(name) + arrow


def _tex(text: str) -> str:
    return text.translate(_ESCAPES)
