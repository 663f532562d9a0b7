"""The figures of methods side by side, with intervals, differences to the first method, and paired tests."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sira_cli.eval.answers import Answers, FailedAnswer, label
from sira_cli.eval.benchmark import MEAN, Benchmark
from sira_cli.eval.paper import AUTHORS, decimals, paper_groups, printed, results
from sira_cli.eval.statistics import Counts, Figure, McNemarTest, MethodFigures, common, compare_pairs
from sira_cli.run.report import Report

INTERVALS = "pictures: Wilson's, of the effective number of answers; differences by MOVER"
FEW = 30  # pictures
ONLY_SHOWN = ("p", "pictures")  # fields of a row that JSON has not: `tests` has p
IF_PRINTED = ("paper_mark", "published")  # fields of a row that are left out without figures of others


@dataclass(frozen=True)
class MethodRow:
    """One method in one group."""

    # part, group: a split, a length, a dimension; or a mean over groups, see `Benchmark.means`
    part: str
    group: str
    method: str
    answered: int  # number of asks that count
    # number of asks left out, because this or another method failed on their pictures: methods are compared on the same
    # pictures
    failed: int
    counts: Counts  # sums over pictures, the terms of the figures' ratios; empty for a mean
    figures: dict[str, Figure]  # percentages, except `words` and `length`, with 95 % intervals over pictures
    # paired differences to the first method's figures; empty for the first method, or where it has no answers
    differences: dict[str, Figure]
    paper: dict[str, float] | None = None  # the paper's figures, if they were asked for and exist
    label: str = ""  # the method's name in tables; it marks sampled answers
    # set if the paper's figures do not compare with greedy decoding of the model; a key of the report's `notes`
    paper_mark: str = ""
    # the figures that the model's authors print, if the paper's were asked for
    published: dict[str, float] | None = None
    p: float | None = None  # p value of McNemar's test against the first method; None if they were not compared
    pictures: int = FEW  # their number; below FEW, tables show bounds instead of ±

    def text(self, figure: Figure | float, spec: str) -> str:
        """Return a figure with ±, or with its bounds if pictures are few."""
        few = self.pictures < FEW
        return figure.bounds(spec) if few and isinstance(figure, Figure) else f"{figure:{spec}}"

    @property
    def printed(self) -> dict[str, dict[str, float]]:
        """Published figures: `paper` with its mark, and those of the model's authors."""
        found = {} if self.paper is None else {", ".join(filter(None, ["paper", self.paper_mark])): self.paper}
        return found | ({} if self.published is None else {AUTHORS: self.published})


@dataclass(frozen=True)
class EvalReport(Report):
    """The measured figures, and the settings that decided them."""

    schema = "sira.eval/1"

    benchmark: str
    stand_ins: dict[str, str]  # by part, why its figures differ from those of a published script
    facts: dict[str, Any]  # the rule, language data and their versions, files
    settings: dict[str, dict[str, Any]]  # of each method, as far as known
    not_run: dict[str, str]  # methods whose answers are taken from another one, because they cannot differ
    paper: str  # the model whose figures in the paper are shown for comparison, if any
    rows: tuple[MethodRow, ...]
    tests: tuple[McNemarTest, ...]
    failures: tuple[FailedAnswer, ...]
    notes: dict[str, str] = field(default_factory=dict)  # explanations of the marks in the rows, and sources
    intervals: str = INTERVALS  # how they were made

    @classmethod
    def of(cls, benchmark: Benchmark, answers: Sequence[Answers], paper: str = "") -> EvalReport:
        """Make the report of some answers."""
        rows: list[MethodRow] = []
        tests: list[McNemarTest] = []
        for part in benchmark.parts:
            given = [one for one in answers if part.name in one.texts]
            tallies = {one.name: benchmark.score(part, one.texts[part.name]) for one in given}
            everything = benchmark.score(part, {ask.id: "" for ask in part.asks})
            pictures = {ask.id: ask.picture for ask in part.asks}
            first, labels = answers[0].name, {one.name: label(one.name, one.settings) for one in given}
            groups: dict[str, MethodFigures] = {}
            for group in part.groups:
                counted = common({name: tallies[name][group] for name in tallies}, pictures)
                compared = groups[group] = MethodFigures.of(
                    counted,
                    functools.partial(benchmark.figures, group),
                    benchmark.denominators(group),
                    functools.partial(benchmark.smooth, group),
                )
                pairs = compare_pairs(group, counted, compared.estimates)
                p = {pair.second: pair.p for pair in pairs if pair.first == first}
                tests += pairs
                rows += [
                    MethodRow(
                        part=part.name,
                        group=group,
                        method=name,
                        answered=len(counted[name].right),
                        failed=len(everything[group].right) - len(counted[name].right),
                        counts=counted[name].total(),
                        figures=compared.figures(name),
                        differences=compared.differences(name, first),
                        label=labels[name],
                        p=p.get(name),
                        pictures=len(compared.pictures),
                        **printed(paper, benchmark.name, group, name),
                    )
                    for name in compared.estimates
                ]
            for name, over in benchmark.means(part).items():
                if len(over) > 1:
                    own = [row for row in rows if row.part == part.name and row.group in over]
                    rows += _means(name, own, MethodFigures.mean([groups[group] for group in over]), first)
        marks = {row.paper_mark for row in rows} | {AUTHORS for row in rows if row.published}
        return cls(
            benchmark=benchmark.name,
            stand_ins=benchmark.stand_ins(),
            facts=benchmark.facts(),
            settings={one.name: one.settings for one in answers},
            not_run={one.name: one.taken_from for one in answers if one.taken_from},
            paper=paper,
            notes={mark: text for mark, text in results()["notes"].items() if mark in marks},
            rows=tuple(rows),
            tests=tuple(tests),
            failures=tuple(failure for one in answers for failure in one.failures),
        )

    @property
    def first(self) -> str:
        """The method that others are compared with."""
        return next(iter(self.settings))

    @property
    def labels(self) -> dict[str, str]:
        """The methods' names in tables."""
        return {name: name for name in self.settings} | {row.method: row.label for row in self.rows}

    def digits(self, figure: str) -> str:
        """Return the format of a figure, with as many decimals as in the paper: `.1f`."""
        return f".{decimals(self.benchmark, figure)}f"

    def how(self) -> list[str]:
        """Explain in sentences how intervals and p values are made, and the marks in labels and of the paper's rows."""
        few = any(row.pictures < FEW for row in self.rows)
        bounds = f"; (low..high): its bounds, below {FEW} pictures" if few else ""
        said = [f"in percent but for words and length, ± half a 95 % interval over {self.intervals}{bounds}"]
        if self.tests:
            which = f"on which answers only one of {self.labels[self.first]} and the method is right"
            said.append(f"p: McNemar's exact test, {which}, taken as independent")
        sampled = [name for name, settings in self.settings.items() if settings.get("temperature")]
        if sampled:
            said.append("T: answers are sampled at this temperature; greedy decoding with it is called sampling")
        return said + [f"{mark}: {text}" for mark, text in self.notes.items()]

    def remarks(self) -> list[str]:
        """Return the lines below the tables: `how`, and other facts that decide the figures."""
        said, labels = self.how(), self.labels
        several = {row.method: row.counts["captions"] / row.answered for row in self.rows if "captions" in row.counts}
        said += [
            f"{labels[name]}: {count:g} captions per image, all counted; p is for the first"
            for name, count in several.items()
            if count > 1
        ]
        said += [
            f"{name}: not run, because without sampling its answers equal those of {other}"
            for name, other in self.not_run.items()
        ]
        said += [f"in the paper: {self.paper}{self._not_in_the_paper()}"] if self.paper else []
        facts = ", ".join(f"{name}: {value}" for name, value in self.facts.items() if isinstance(value, str))
        return [*said, facts] if facts else said

    def _not_in_the_paper(self) -> str:
        """Return a remark on methods and groups without figures in the paper."""
        groups = paper_groups(self.paper, self.benchmark)
        known = {name for names in groups.values() for name in names} | {row.method for row in self.rows if row.paper}
        there = {*groups, MEAN} | {row.group for row in self.rows if row.paper}
        without = dict.fromkeys(row.method for row in self.rows if row.method not in known)
        others = dict.fromkeys(row.group for row in self.rows if row.group not in there)
        said = f"; no figures for {', '.join(without)}" if without else ""
        if groups and others:
            said += f"; no figures for {', '.join(others)}, only for {', '.join(groups)}"
            said += ": give `lengths=` N" if self.benchmark == "chair" else ""
        return said

    def to_json(self) -> str:
        """Return one JSON object, `sira.eval/1`."""
        rows = [
            {k: v for k, v in asdict(row).items() if k not in ONLY_SHOWN and (v or k not in IF_PRINTED)}
            for row in self.rows
        ]
        return self.as_json({"official": not self.stand_ins}, notes=self.notes or None, rows=rows)


def p_text(p: float | None) -> str:
    """Return a p value for people; nothing for None."""
    return "" if p is None else f"{p:.3f}" if p >= 0.001 else "<0.001"


def _means(group: str, rows: Sequence[MethodRow], compared: MethodFigures, first: str) -> list[MethodRow]:
    """Return the rows of a mean over groups."""
    return [
        MethodRow(
            part=rows[-1].part,
            group=group,
            method=name,
            answered=sum(row.answered for row in rows if row.method == name),
            failed=sum(row.failed for row in rows if row.method == name),
            counts={},
            figures=compared.figures(name),
            differences=compared.differences(name, first),
            label=next(row.label for row in rows if row.method == name),
            pictures=len(compared.pictures),
        )
        for name in compared.estimates
    ]
