"""The figures of methods side by side, with intervals, differences to the first method, paired tests, and the paper's.

POPE's precision, recall, FPR and yes-rate in the paper add nothing to accuracy and F1: every row has the values that
the printed accuracy and F1 imply for equally many yes- and no-questions (recall = F1 (1 - accuracy) / (1 - F1)). Rows
that do not compare with greedy decoding of their model have a mark.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sira_cli.errors import SettingsError
from sira_cli.eval.answers import Answers, FailedAnswer
from sira_cli.eval.benchmark import MEAN, Benchmark, Part
from sira_cli.eval.paper import decimals, known_model, printed, results
from sira_cli.eval.published import Expected, expected
from sira_cli.eval.statistics import Counts, Figure, McNemarTest, MethodFigures, Tally, common, compare_pairs
from sira_cli.parsing import from_json
from sira_cli.run.reports import Report, Table

INTERVALS = "pictures: Wilson's, of the effective number of answers; differences by MOVER"
FEW = 30  # pictures
GREEDY = "greedy"  # the method, and its label where it neither samples nor searches with beams
ONLY_SHOWN = ("p", "pictures")  # fields of a row that JSON has not: `tests` has p
IF_PRINTED = ("paper_mark", "published")  # fields of a row that are left out without figures of others
AUTHORS = "by its authors"
REPORT = "report.json"  # next to the answers


@dataclass(frozen=True)
class MethodRow:
    """One method in one group."""

    part: str
    group: str  # a split, a length, a dimension; or a mean over groups, see `Benchmark.means`
    method: str
    answered: int  # number of asks that count
    failed: int  # asks left out, because this or another method failed on their pictures: all have the same pictures
    counts: Counts  # sums over pictures, the terms of the figures' ratios; empty for a mean
    figures: dict[str, Figure]  # percentages, except `words`, `length`, `seconds`, with 95 % intervals over pictures
    differences: dict[str, Figure]  # paired, to the first method's figures; empty for the first, or without its answers
    paper: dict[str, float] | None = None  # the paper's figures, if they were asked for and exist
    label: str = ""  # the method's name in tables; it marks sampled answers
    paper_mark: str = ""  # set if the paper's figures do not compare with greedy decoding of the model: see `notes`
    published: dict[str, float] | None = None  # those that the model's authors print, if the paper's were asked for
    p: float | None = None  # p value of McNemar's test against the first method; None if they were not compared
    pictures: int = FEW  # their number; below FEW, tables show bounds instead of ±


class ScoredPart:
    """The answers of methods to one part of a benchmark, counted by group."""

    def __init__(self, benchmark: Benchmark, part: Part, answers: Sequence[Answers]) -> None:
        self.benchmark = benchmark
        self.part = part
        self.first = answers[0].name  # the method that others are compared with
        self.labels = {method.name: label(method.name, method.settings) for method in answers}
        self.asked = benchmark.score(part, {ask.id: "" for ask in part.asks})  # as if all were answered
        self.counted: dict[str, dict[str, Tally]] = {}  # by group and method
        self.figures: dict[str, MethodFigures] = {}  # by group, and by mean over groups
        self.tests: list[McNemarTest] = []
        tallies = self._tallies(answers)
        pictures = {ask.id: ask.picture for ask in part.asks}
        for group in part.groups:
            counted = common({name: tally[group] for name, tally in tallies.items()}, pictures)
            figures = MethodFigures.of(
                counted,
                functools.partial(benchmark.figures, group),
                benchmark.denominators(group),
                smooth=functools.partial(benchmark.figures, group, smooth=True),
            )
            self.counted[group] = counted
            self.figures[group] = figures
            self.tests += compare_pairs(group, counted, figures.estimates)
        self.p = {(test.group, test.second): test.p for test in self.tests if test.first == self.first}
        self.means = {mean: groups for mean, groups in benchmark.means(part).items() if len(groups) > 1}
        for mean, groups in self.means.items():
            self.figures[mean] = MethodFigures.mean([self.figures[group] for group in groups])

    def _tallies(self, answers: Sequence[Answers]) -> dict[str, Mapping[str, Tally]]:
        """Return the counts of each method that answered the part, by group; with seconds, if all have them."""
        answered = [method for method in answers if self.part.name in method.texts]
        timed = all(self.part.name in method.seconds for method in answered)
        tallies: dict[str, Mapping[str, Tally]] = {}
        for method in answered:
            seconds = method.seconds[self.part.name] if timed else {}
            tallies[method.name] = self.benchmark.score(self.part, method.texts[self.part.name], seconds)
        return tallies

    def rows(self, paper: str) -> Iterator[MethodRow]:
        """Yield a row for each method in each group, with the figures of a model of the paper."""
        for group, figures in self.figures.items():
            for method in figures.estimates:
                yield self._row(group, method, paper)

    def _row(self, group: str, method: str, paper: str) -> MethodRow:
        figures = self.figures[group]
        groups = self.means.get(group, (group,))
        asked = 0
        answered = 0
        for name in groups:
            asked += len(self.asked[name].right)
            answered += len(self.counted[name][method].right)
        return MethodRow(
            part=self.part.name,
            group=group,
            method=method,
            answered=answered,
            failed=asked - answered,
            counts={} if group in self.means else self.counted[group][method].total(),
            figures=figures.figures(method),
            differences=figures.differences(method, self.first),
            label=self.labels[method],
            p=self.p.get((group, method)),
            pictures=len(figures.pictures),
            **printed(paper, self.benchmark.name, group, method),
        )


@dataclass(frozen=True)
class EvalReport(Report):
    """The measured figures, and the settings that decided them."""

    schema = "sira.eval/1"

    benchmark: str
    stand_ins: dict[str, str]  # by part, why its figures differ from those of a published script
    facts: dict[str, Any]  # the rule, language data and their versions, files
    settings: dict[str, dict[str, Any]]  # of each method, as far as known; others are compared with the first
    not_run: dict[str, str]  # methods whose answers are taken from another one, because they cannot differ
    paper: str  # the model whose figures in the paper are shown for comparison, if any
    rows: tuple[MethodRow, ...]
    tests: tuple[McNemarTest, ...]
    failures: tuple[FailedAnswer, ...]
    notes: dict[str, str] = field(default_factory=dict)  # explanations of the marks in the rows, and sources
    intervals: str = INTERVALS  # how they were made
    expected: tuple[Expected, ...] = ()  # greedy decoding's figures next to those that others publish

    optional = ("expected",)

    @classmethod
    def of(cls, benchmark: Benchmark, answers: Sequence[Answers], paper: str = "", model: str = "") -> EvalReport:
        """Make the report of some answers.

        Args:
            benchmark: what was asked.
            answers: those of each method; others are compared with the first.
            paper: the paper's model whose figures are shown.
            model: the preset or model that answered, if the answers do not record it.
        """
        rows: list[MethodRow] = []
        tests: list[McNemarTest] = []
        for part in benchmark.parts:
            scored = ScoredPart(benchmark, part, answers)
            rows += scored.rows(paper)
            tests += scored.tests
        stand_ins = benchmark.stand_ins()
        model = model or _model_of(answers)
        expectations: list[Expected] = []
        marks: set[str] = set()
        for row in rows:
            marks.add(row.paper_mark)
            if row.published:
                marks.add(AUTHORS)
            if row.label == GREEDY and row.part not in stand_ins:
                expectations += expected(model, benchmark.name, row.group, row.figures)
        return cls(
            benchmark=benchmark.name,
            stand_ins=stand_ins,
            facts=benchmark.facts(),
            settings={method.name: method.settings for method in answers},
            not_run={method.name: method.taken_from for method in answers if method.taken_from},
            paper=paper,
            notes={mark: text for mark, text in results()["notes"].items() if mark in marks},
            rows=tuple(rows),
            tests=tuple(tests),
            failures=tuple(failure for method in answers for failure in method.failures),
            expected=tuple(expectations),
        )

    @property
    def labels(self) -> dict[str, str]:
        """The methods' names in tables, the first method's first."""
        return {name: name for name in self.settings} | {row.method: row.label for row in self.rows}

    def digits(self, figure: str) -> str:
        """Return the format of a figure, with as many decimals as in the paper: `.1f`."""
        return f".{2 if figure == 'seconds' else decimals(self.benchmark, figure)}f"

    def table(self) -> Iterator[Table | str]:
        """Yield tables, one per set of figures, and the lines below them."""
        tables: dict[tuple[str, ...], list[MethodRow]] = {}
        for row in self.rows:
            tables.setdefault(tuple(row.figures), []).append(row)
        for names, rows in tables.items():
            sections: dict[str, list[list[str]]] = {}
            for row in rows:
                sections.setdefault(row.group, [[row.group]]).extend(self._lines(row, names))
            heads = [*names, "p"] if self.tests else names
            yield Table([""], heads, [*sections.values()], tight=True)
            for part in dict.fromkeys(row.part for row in rows):
                if part in self.stand_ins:
                    yield f"{part}: NOT the official figures: {self.stand_ins[part]}"
        yield from self.remarks()

    def _lines(self, row: MethodRow, names: Sequence[str]) -> Iterator[list[str]]:
        """Yield the lines of a method in a group: its figures, the differences, the paper's."""
        p = ""
        if row.p is not None:
            p = f"{row.p:.3f}" if row.p >= 0.001 else "<0.001"
        first = next(iter(self.labels.values()))
        printed_by = f"in the paper, {row.paper_mark}" if row.paper_mark else "in the paper"
        lines: list[tuple[str, Mapping[str, Any] | None, str]] = [
            (f"  {row.label}", row.figures, ""),
            (f"    - {first}", {} if row.method in self.not_run else row.differences, "+"),
            (f"    {printed_by}", row.paper, ""),
            (f"    {AUTHORS}", row.published, ""),
        ]
        for head, values, sign in lines:
            if not values:
                continue
            line = [head]
            for name in names:
                value = values.get(name, "")
                spec = sign + self.digits(name)
                if isinstance(value, Figure) and row.pictures < FEW:
                    line.append(value.bounds(spec))
                else:
                    line.append(format(value, spec) if name in values else "")
            if self.tests:
                line.append(p if values is row.figures else "")
            yield line

    def remarks(self) -> list[str]:
        """Return the lines below the tables: what decides the figures, and the marks in labels and the paper's rows."""
        timed = any("seconds" in row.figures for row in self.rows)
        plain = "words, length and seconds" if timed else "words and length"
        intervals = f"in percent but for {plain}, ± half a 95 % interval over {self.intervals}"
        if any(row.pictures < FEW for row in self.rows):
            intervals += f"; (low..high): its bounds, below {FEW} pictures"
        lines = [intervals]
        if self.tests:
            which = f"on which answers only one of {next(iter(self.labels.values()))} and the method is right"
            lines.append(f"p: McNemar's exact test, {which}, taken as independent")
        lines += self.marks()
        for name, other in self.not_run.items():
            lines.append(f"{name}: not run, because without sampling its answers equal those of {other}")
        if self.paper:
            lines.append(f"in the paper: {self.paper}{self._missing_in_paper()}")
        lines += self.expectations()
        facts = ", ".join(f"{name}: {value}" for name, value in self.facts.items() if isinstance(value, str))
        return [*lines, facts] if facts else lines

    def _missing_in_paper(self) -> str:
        """Return the methods and the groups of which the paper has no figures, as a remark; empty if it has all."""
        groups = results()["models"].get(self.paper, {}).get(self.benchmark, {})
        methods = set[str]().union(*groups.values())
        in_paper = {MEAN, *groups}
        for row in self.rows:
            if row.paper:
                methods.add(row.method)
                in_paper.add(row.group)
        remark = ""
        missing = dict.fromkeys(row.method for row in self.rows if row.method not in methods)
        if missing:
            remark = f"; no figures for {', '.join(missing)}"
        others = dict.fromkeys(row.group for row in self.rows if row.group not in in_paper)
        if groups and others:
            remark += f"; no figures for {', '.join(others)}, only for {', '.join(groups)}"
        return remark

    def expectations(self) -> list[str]:
        """Return a line for each figure of greedy decoding that others publish for the model, and the remarks."""
        lines = [expectation.line(self.digits(expectation.figure)) for expectation in self.expected]
        for expectation in self.expected:
            remark = f"{expectation.group}: {expectation.remark}"
            if expectation.remark and remark not in lines:
                lines.append(remark)
        return lines

    def marks(self) -> list[str]:
        """Return the explanations of the marks in labels and the paper's rows."""
        lines = [f"{mark}: {text}" for mark, text in self.notes.items()]
        if any(settings.get("temperature") for settings in self.settings.values()):
            lines.insert(0, "T: answers are sampled at this temperature; greedy decoding with it is called sampling")
        return lines

    @staticmethod
    def check_place(folder: Path | None, benchmark: str) -> None:
        """Check that a report in a folder, which will be replaced, is of the same benchmark.

        Raises:
            SettingsError: it is of another one, or something else.
        """
        if folder is None or not (folder / REPORT).exists():
            return
        path = folder / REPORT
        try:
            before = from_json(path.read_bytes())["benchmark"]
        except (OSError, ValueError, KeyError, TypeError):
            before = "something else"
        if before != benchmark:
            raise SettingsError(f"`output=`: {path} holds the report of {before}: give another folder")

    def save_in(self, folder: Path | None) -> None:
        """Write the report into a folder, if there is one."""
        if folder is not None:
            self.save(folder / REPORT)

    def to_json(self) -> str:
        """Return one JSON object, `sira.eval/1`."""
        rows = [asdict(row) for row in self.rows]
        for row in rows:
            for name in ONLY_SHOWN:
                del row[name]
            for name in IF_PRINTED:
                if not row[name]:
                    del row[name]
        return self.as_json({"official": not self.stand_ins}, notes=self.notes or None, rows=rows)


def _model_of(answers: Sequence[Answers]) -> str:
    """Return the paper's model that the records of greedy decoding name; empty: another, or none."""
    for method in answers:
        if method.name == GREEDY:
            return known_model([str(method.settings.get("preset")), str(method.settings.get("model"))])
    return ""


def label(name: str, settings: Mapping[str, Any]) -> str:
    """Return a method's name in tables: with a temperature above 0, greedy decoding is sampling."""
    parts = [name]
    temperature = _number(settings, "temperature")
    if temperature:
        parts = [re.sub(r"^greedy(?=$|\+)", "sampling", name), f"T={temperature:g}"]
        top_p = _number(settings, "top_p")
        if 0 < top_p < 1:
            parts.append(f"top-p={top_p:g}")
    beams = _number(settings, "num_beams")
    if beams > 1:
        parts.append(f"{beams:g} beams")
    return ", ".join(parts)


def _number(settings: Mapping[str, Any], name: str) -> float:
    """Return a number among settings; 0 for another value, as in answers of another tool."""
    value = settings.get(name)
    return value if isinstance(value, int | float) else 0
