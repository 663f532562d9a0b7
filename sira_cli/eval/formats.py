"""A report as CSV, for spreadsheets and scripts, and as LaTeX, for papers."""

from __future__ import annotations

import csv
import io

from sira_cli.eval.report import LOWER_IS_BETTER, NO_DIRECTION, EvalReport, Row

_ESCAPES = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\~{}", "^": r"\^{}"}
)


def to_csv(report: EvalReport) -> str:
    """Write a line per group and method, and one for the paper's figures; columns hold figures and 95 % intervals."""
    names = list(dict.fromkeys(name for row in report.rows for name in row.figures))
    head = ["benchmark", "part", "group", "method", "source", "official", "answered", "failed"]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*head, *(column for name in names for column in (name, f"{name} low", f"{name} high"))])
    for row in report.rows:
        start = [report.benchmark, row.part, row.group, row.method]
        cells: list[str] = []
        for name in names:
            figure = row.figures.get(name)
            cells += ["", "", ""] if figure is None else [repr(figure.value), repr(figure.low), repr(figure.high)]
        writer.writerow([*start, "measured", row.part not in report.stand_ins, row.answered, row.failed, *cells])
        if row.paper is not None:
            paper = [cell for name in names for cell in (row.paper.get(name, ""), "", "")]
            writer.writerow([*start, "paper", "", "", "", *paper])
    return file.getvalue()


def to_latex(report: EvalReport) -> str:
    r"""Write a tabular per part (package `booktabs`), a block of rows per group, the best of each block in bold."""
    tables = []
    for part in dict.fromkeys(row.part for row in report.rows):
        rows = [row for row in report.rows if row.part == part]
        names = list(rows[0].figures)
        lines = [f"% NOT the official figures: {report.stand_ins[part]}"] if part in report.stand_ins else []
        lines += [
            rf"\begin{{tabular}}{{ll{'r' * len(names)}}}",
            r"\toprule",
            " & ".join(["", "Method", *(_head(name) for name in names)]) + r" \\",
        ]
        for group in dict.fromkeys(row.group for row in rows):
            block = [row for row in rows if row.group == group]
            lines.append(r"\midrule")
            for number, row in enumerate(block):
                cells = [_cell(row, name, block) for name in names]
                lines.append(" & ".join(["" if number else _tex(group), _tex(row.method), *cells]) + r" \\")
                if row.paper is not None:
                    cells = [f"{row.paper[name]:g}" if name in row.paper else "" for name in names]
                    lines.append(" & ".join(["", _tex(row.method) + " (paper)", *cells]) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        tables.append("\n".join(lines))
    return "\n\n".join(tables) + "\n"


def _cell(row: Row, name: str, block: list[Row]) -> str:
    value = f"{row.figures[name].value:.2f}"
    if name in NO_DIRECTION or len(block) < 2:
        return value
    values = [other.figures[name].value for other in block]
    best = min(values) if name in LOWER_IS_BETTER else max(values)
    return rf"\textbf{{{value}}}" if row.figures[name].value == best else value


def _head(name: str) -> str:
    arrow = "" if name in NO_DIRECTION else r"$\downarrow$" if name in LOWER_IS_BETTER else r"$\uparrow$"
    return _tex(name) + arrow


def _tex(text: str) -> str:
    return text.translate(_ESCAPES)
