"""The main figures of several benchmarks, or all of one, in one table: for the terminal, as CSV, and as LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sira_cli.eval.benchmark import MEAN
from sira_cli.eval.report import EvalReport, MethodRow
from sira_cli.eval.statistics import Figure
from sira_cli.run.reports import Table

# The figures of several benchmarks in the table, with their heads: with CHAIR's two lengths it is 120 columns wide.
MAIN = {
    "chair": {"CHAIRs": "CHAIRs", "CHAIRi": "CHAIRi", "recall": "recall"},
    "amber": {"CHAIR": "AMBER\nCHAIR"},
    "pope": {"accuracy": "POPE\naccuracy", "F1": "POPE\nF1"},
}
_LATEX = str.maketrans(
    {"\\": r"\textbackslash{}", "±": r"$\pm$", "≈": r"$\approx$"} | {sign: f"\\{sign}" for sign in "&%$#_{}"}
)


@dataclass(frozen=True)
class Cell:
    """A figure of a method.

    Attributes:
        figure: with its interval.
        change: the paired difference to the first method; None for the first, and if it cannot differ.
        digits: the format, such as `.1f`.
        paper: the paper's figure as text, with its mark; empty without one.
    """

    figure: Figure
    change: Figure | None
    digits: str
    paper: str = ""

    @property
    def difference(self) -> str:
        """The difference as text, after ≈ if its interval holds 0; empty without one."""
        if self.change is None:
            return ""
        sign = "≈ " if self.change.low <= 0 <= self.change.high else ""
        return f"{sign}{self.change.value:+{self.digits}}"


@dataclass(frozen=True)
class Combined:
    """Figures by the methods' labels and the heads of columns, whose lines are divided by \\n.

    Of several benchmarks they are the main figures, over the means of groups if there are any; of one all.
    """

    reports: Sequence[EvalReport]
    heads: list[str] = field(default_factory=list)
    methods: dict[str, dict[str, Cell]] = field(default_factory=dict)

    @classmethod
    def of(cls, reports: Sequence[EvalReport]) -> Combined:
        """Collect the main figures of reports about the same methods."""
        combined = cls(reports)
        for report in reports:
            for row in combined._rows(report):
                combined._add(report, row)
        return combined

    def _rows(self, report: EvalReport) -> list[MethodRow]:
        means = [row for row in report.rows if row.group.startswith(MEAN)]
        return means if means and len(self.reports) > 1 else list(report.rows)

    def _add(self, report: EvalReport, row: MethodRow) -> None:
        cells = self.methods.setdefault(row.label, {})
        main = MAIN.get(report.benchmark, {}) if len(self.reports) > 1 else {}
        for name in main or row.figures:
            if name not in row.figures:
                continue
            head = main.get(name, name) + self._suffix(report, name, row.group)
            if head not in self.heads:
                self.heads.append(head)
            change = None if row.method in report.not_run else row.differences.get(name)
            digits = report.digits(name)
            cells[head] = Cell(row.figures[name], change, digits, _in_paper(row, name, digits))

    def _suffix(self, report: EvalReport, figure: str, group: str) -> str:
        """Return the group in a head, if several groups in the table have the figure."""
        groups = {row.group for row in self._rows(report) if figure in row.figures}
        return f"\n{group.removesuffix(' tokens')}" if len(groups) > 1 else ""

    def table(self) -> Table:
        """Return the table: a method's figures, the differences to the first, the paper's."""
        rows = []
        first = next(iter(self.methods), "")
        for method, cells in self.methods.items():
            figures = [method]
            differences = [f"  - {first}"]
            in_paper = ["  in the paper"]
            for head in self.heads:
                cell = cells.get(head)
                figures.append("" if cell is None else format(cell.figure, cell.digits))
                differences.append("" if cell is None else cell.difference)
                in_paper.append("" if cell is None else cell.paper)
            rows += [line for line in (figures, differences, in_paper) if any(line[1:])]
        return Table([""], self.heads, [rows], tight=True)

    def legend(self) -> Iterator[str]:
        """Yield the lines below the table."""
        reports = self.reports
        pictures = []
        for report in reports:
            count = max((row.pictures for row in report.rows), default=0)
            pictures.append(f"{count:,} ({report.benchmark})")
        yield f"pictures: {', '.join(pictures)}"
        yield "in percent, ± half a 95 % interval over pictures; all other figures: --json"
        first = next(iter(self.methods), "")
        yield f"- {first}: difference on the same pictures; ≈: no difference shown, its interval holds 0"
        yield from dict.fromkeys(line for report in reports for line in report.marks())
        for report in reports:
            yield from (f"{report.benchmark}: {line}" for line in report.expectations())
        not_run = ", ".join(reports[0].not_run)
        if not_run:
            yield f"{not_run}: not run, because without sampling its answers equal those of greedy"
        for report in reports:
            for reason in dict.fromkeys(report.stand_ins.values()):
                yield f"{report.benchmark}: NOT the official figures: {reason}"

    def to_csv(self) -> str:
        """Return a row per method: each figure in percent, its interval, and the difference to the first method."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        heads = ["method"]
        for head in self.heads:
            name = _one_line(head)
            heads += [name, f"{name} low", f"{name} high", f"{name} difference"]
        writer.writerow(heads)
        for method, cells in self.methods.items():
            row: list[float | str] = [method]
            for head in self.heads:
                row += _values(cells.get(head))
            writer.writerow(row)
        return file.getvalue()

    def to_latex(self) -> str:
        """Return the table as a LaTeX tabular, with the rules of the package booktabs."""
        table = self.table()
        head = " & ".join(["", *(_escaped(_one_line(each)) for each in table.figures)])
        (rows,) = table.sections
        body = [f"{' & '.join(map(_escaped, row))} \\\\" for row in rows]
        lines = [
            r"% needs \usepackage{booktabs}",
            rf"\begin{{tabular}}{{l{'r' * len(table.figures)}}}",
            r"\toprule",
            rf"{head} \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
        return "\n".join(lines) + "\n"


def _in_paper(row: MethodRow, figure: str, digits: str) -> str:
    """Return the paper's figure as text, with its mark; empty without one."""
    if row.paper is None or figure not in row.paper:
        return ""
    text = f"{row.paper[figure]:{digits}}"
    return f"{text}, {row.paper_mark}" if row.paper_mark else text


def _values(cell: Cell | None) -> list[float | str]:
    """Return the four values of a cell in CSV."""
    if cell is None:
        return [""] * 4
    change = "" if cell.change is None else round(cell.change.value, 4)
    figure = cell.figure
    return [round(figure.value, 4), round(figure.low, 4), round(figure.high, 4), change]


def _one_line(head: str) -> str:
    return head.replace("\n", " ")


def _escaped(text: str) -> str:
    """Return a text in LaTeX."""
    return text.strip().translate(_LATEX)
