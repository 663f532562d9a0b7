"""Several benchmarks of one model on one page: figures with intervals, and the cost of answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from sira_cli._version import __version__
from sira_cli.data.report import Report
from sira_cli.data.rows import read_rows
from sira_cli.eval.card import Card
from sira_cli.eval.catalog import CARDS
from sira_cli.eval.report import EvalReport
from sira_cli.web import base_style

_HERE = Path(__file__).parent
LEFT_OUT = ("neither", "words", "length")  # of the page; the JSON has them


@dataclass(frozen=True)
class Cost:
    """The mean cost of an answer: its tokens, and its share of a batch's seconds on the machine that decoded it."""

    seconds: float
    tokens: float


@dataclass(frozen=True)
class Line:
    """One figure of one group, under each method."""

    group: str
    figure: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Sheet:
    """A benchmark's part of the page.

    Attributes:
        methods: their labels, in the order of the cells.
        cost: seconds and tokens per answer, as cells.
        notes: reasons why figures are not official, and failures.
    """

    card: Card
    methods: tuple[str, ...]
    lines: tuple[Line, ...]
    cost: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Overview(Report):
    """The reports of several benchmarks, by name, and the costs by benchmark and method."""

    schema = "sira.eval-all/1"

    preset: str
    model: str
    reports: dict[str, EvalReport]
    costs: dict[str, dict[str, Cost]]

    def sheets(self) -> Iterator[Sheet]:
        """Yield each benchmark's part of the page: means over groups if it has any, else its main groups."""
        for name, report in self.reports.items():
            methods = [method for method in report.settings if method not in report.not_run]
            costs = (self.costs[name].get(method) for method in methods)
            failed = len({failure.picture for failure in report.failures})
            notes = [f"{part}: NOT the official figures: {why}" for part, why in report.stand_ins.items()]
            notes += [f"{failed} picture{'s' * (failed > 1)} failed: left out of all figures"] if failed else []
            yield Sheet(
                CARDS[name],
                tuple(report.labels[method] for method in methods),
                tuple(_lines(report, methods)),
                tuple("" if cost is None else f"{cost.seconds:.2f} s, {cost.tokens:.0f} tokens" for cost in costs),
                tuple(notes),
            )

    def to_json(self) -> str:
        """Return one JSON object, `sira.eval-all/1`, with the whole reports."""
        reports = {name: json.loads(report.to_json()) for name, report in self.reports.items()}
        return self.as_json(reports=None, costs=None, benchmarks=reports, cost=asdict(self)["costs"])

    def to_html(self) -> str:
        """Return the page as one HTML file that needs no other."""
        environment = Environment(
            loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        return environment.get_template("overview.html.jinja").render(
            overview=self, sheets=list(self.sheets()), how=self.how(), style=Markup(base_style()), version=__version__
        )

    def how(self) -> str:
        """Explain in a sentence how intervals are made."""
        return next(iter(self.reports.values())).how()[0]


def _lines(report: EvalReport, methods: list[str]) -> Iterator[Line]:
    means = {row.part for row in report.rows if not row.counts}
    shown = [row for row in report.rows if not row.counts or row.part not in means]
    shown = [row for row in shown if row.group in CARDS[report.benchmark].main] or shown
    rows = {(row.part, row.group, row.method): row for row in shown}
    for part, group in dict.fromkeys((row.part, row.group) for row in shown):
        of = [rows.get((part, group, method)) for method in methods]
        names = next(list(row.figures) for row in of if row is not None)
        for name in names:
            if name not in LEFT_OUT:
                form = report.digits(name)
                yield Line(group, name, tuple("" if row is None else f"{row.figures[name]:{form}}" for row in of))


def costs_in(folder: Path, methods: Mapping[str, Any], parts: tuple[str, ...]) -> dict[str, Cost]:
    """Return the mean cost of a run's stored answers by method; methods without answers are left out."""
    found = {}
    for method in methods:
        files = [path for part in parts if (path := folder / f"{method}-{part}.jsonl").exists()]
        rows = [row for path in files for _, row in read_rows(path) if row.get("status") == "ok"]
        if rows:
            seconds, tokens = (sum(row[name] for row in rows) for name in ("duration_ms", "output_tokens"))
            found[method] = Cost(seconds / 1_000 / len(rows), tokens / len(rows))
    return found
