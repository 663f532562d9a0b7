"""The figures of methods side by side, with intervals, differences to the first method, and paired tests."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sira_cli._version import __version__
from sira_cli.eval.answers.texts import Answers, FailedAnswer
from sira_cli.eval.base import Benchmark, Part
from sira_cli.eval.paper import AUTHORS, notes, paper_mark, paper_row, published_row
from sira_cli.eval.settings import label
from sira_cli.eval.stats.bootstrap import RESAMPLES, SEED, Figure
from sira_cli.eval.stats.compared import MethodFigures
from sira_cli.eval.stats.mcnemar import mcnemar
from sira_cli.eval.stats.tally import Counts, Tally

LOWER_IS_BETTER = frozenset(
    {"FPR", "CHAIRs", "CHAIRi", "CHAIR", "Hal", "Cog", "hallucination", "wrong", "inconsistent"}
)
NO_DIRECTION = frozenset({"yes", "neither", "unclear", "words", "length", "yes diff", "FP ratio", "LH", "VI", "mixed"})


@dataclass(frozen=True)
class MethodRow:
    """One method in one group.

    Attributes:
        part, group: a split, a length, a dimension; or a mean over groups, see `Benchmark.means`.
        answered: number of asks that count.
        failed: number of the others, whose pictures failed under this method or another: methods are compared on
            the same pictures.
        counts: sums over pictures, of which figures are ratios; empty for a mean.
        figures: in percent but for `words`, `length` and `rating`, with 95 % bootstrap intervals over pictures.
        differences: of the figures to those of the first method, on the same draws of pictures; empty for the first
            method, or where it has no answers.
        paper: the figures that the paper gives, if it was asked for them and has any.
        paper_mark: set if these do not compare with greedy decoding of the model; a key of the report's `notes`.
        published: the figures that the model's authors print, if the paper's were asked for.
        label: the method's name in tables; it marks sampled answers.
    """

    part: str
    group: str
    method: str
    answered: int
    failed: int
    counts: Counts
    figures: dict[str, Figure]
    differences: dict[str, Figure]
    paper: dict[str, float] | None = None
    label: str = ""
    paper_mark: str = ""
    published: dict[str, float] | None = None

    @property
    def printed(self) -> dict[str, dict[str, float]]:
        """The figures that others print: `paper` with its mark, and those of the model's authors."""
        found = {} if self.paper is None else {", ".join(filter(None, ["paper", self.paper_mark])): self.paper}
        return found | ({} if self.published is None else {AUTHORS: self.published})


@dataclass(frozen=True)
class McNemarTest:
    """McNemar's exact test of two methods, over answers that only one of them has right.

    Answers count as independent, even those about the same picture.
    """

    group: str
    first: str
    second: str
    only_first: int
    only_second: int
    p: float


@dataclass(frozen=True)
class EvalReport:
    """The measured figures, and the settings that decided them.

    Attributes:
        benchmark: its name.
        stand_ins: by part, why its figures differ from those of a published script.
        facts: the rule, language data and their versions, files.
        settings: of each method, as far as they are known; the others are compared with the first method.
        not_run: methods whose answers are taken from another one, because they cannot differ.
        paper: the model whose figures in the paper are shown for comparison, if any.
        notes: of marks in the rows: why these figures of the paper do not compare, and sources.
        bootstrap: how intervals were made.
    """

    benchmark: str
    stand_ins: dict[str, str]
    facts: dict[str, Any]
    settings: dict[str, dict[str, Any]]
    not_run: dict[str, str]
    paper: str
    rows: tuple[MethodRow, ...]
    tests: tuple[McNemarTest, ...]
    failures: tuple[FailedAnswer, ...]
    notes: dict[str, str] = field(default_factory=dict)
    bootstrap: dict[str, Any] = field(default_factory=lambda: {"draws": RESAMPLES, "of": "pictures", "seed": SEED})

    @classmethod
    def of(
        cls,
        benchmark: Benchmark,
        answers: Sequence[Answers],
        *,
        not_run: Mapping[str, str] | None = None,
        paper: str = "",
    ) -> EvalReport:
        """Make the report of some answers.

        Args:
            benchmark: with its ground truth.
            answers: of each method, the first method's first.
            not_run, paper: as in the class.
        """
        rows: list[MethodRow] = []
        tests: list[McNemarTest] = []
        for part in benchmark.parts:
            given = [one for one in answers if part.name in one.texts]
            tallies = {one.name: benchmark.score(part, one.texts[part.name]) for one in given}
            sizes = _sizes(benchmark, part)
            pictures = {ask.id: ask.picture for ask in part.asks}
            first, labels = answers[0].name, {one.name: label(one.name, one.settings) for one in given}
            groups: dict[str, MethodFigures] = {}
            for group in part.groups:
                common = _common({name: tallies[name][group] for name in tallies}, pictures)
                compared = MethodFigures.of(
                    common, functools.partial(benchmark.figures, group), benchmark.denominators(group)
                )
                rows += [
                    replace(row, label=labels[row.method])
                    for row in _rows(benchmark.name, part.name, group, common, compared, sizes[group], first, paper)
                ]
                tests += _tests(group, common, compared.exact)
                groups[group] = compared
            for name, over in benchmark.means(part).items():
                if len(over) > 1:
                    own = [row for row in rows if row.part == part.name and row.group in over]
                    rows += _means(name, own, MethodFigures.mean([groups[group] for group in over]), first)
        return cls(
            benchmark=benchmark.name,
            stand_ins=benchmark.stand_ins(),
            facts=benchmark.facts(),
            settings={one.name: one.settings for one in answers},
            not_run=dict(not_run or {}),
            paper=paper,
            notes=_notes(rows),
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
        return {name: name for name in self.settings} | {row.method: row.label or row.method for row in self.rows}

    def p(self, row: MethodRow) -> float | None:
        """Return the p value of a row's method against the first one; None where they were not compared."""
        pair = (row.group, self.first, row.method)
        return next((test.p for test in self.tests if (test.group, test.first, test.second) == pair), None)

    def how(self) -> list[str]:
        """Explain in sentences how intervals and p values are made, and the marks in labels and of the paper's rows."""
        draws, of, seed = (self.bootstrap[name] for name in ("draws", "of", "seed"))
        rated = any("rating" in row.figures for row in self.rows)
        half = f"in percent but for words{', length and rating' if rated else ' and length'}, ± half a 95 % interval"
        said = [f"{half}: {draws:,} bootstrap draws of {of} (seed {seed}), Wilson's where all agree on 0 or 100"]
        if len(self.settings) > 1:
            which = f"on which answers only one of {self.labels[self.first]} and the method is right"
            said.append(f"p: McNemar's exact test, {which}, taken as independent")
        sampled = [name for name, settings in self.settings.items() if settings.get("temperature")]
        if sampled:
            said.append("T: answers are sampled at this temperature; greedy decoding with it is called sampling")
        return said + [f"{mark}: {text}" for mark, text in self.notes.items()]

    def to_json(self) -> str:
        """Return one JSON object, `sira.eval/1`."""
        record = {"schema": "sira.eval/1", "official": not self.stand_ins, **asdict(self), "sira_version": __version__}
        for found, names in ((record, ["notes"]), *((row, ["paper_mark", "published"]) for row in record["rows"])):
            for name in names:  # of the paper's figures
                if not found[name]:
                    del found[name]
        return json.dumps(record, ensure_ascii=False, allow_nan=False)


def p_text(p: float | None) -> str:
    """Return a p value for people; nothing for None."""
    return "" if p is None else f"{p:.3f}" if p >= 0.001 else "<0.001"


def _notes(rows: Sequence[MethodRow]) -> dict[str, str]:
    """Return the notes of the marks in some rows."""
    marks = {row.paper_mark for row in rows} | ({AUTHORS} if any(row.published for row in rows) else set())
    return {mark: text for mark, text in notes().items() if mark in marks}


def _common(tallies: Mapping[str, Tally], pictures: Mapping[str, str]) -> dict[str, Tally]:
    """Leave out pictures that failed under any method; methods without any answers do not count here."""
    found = {name: tally for name, tally in tallies.items() if tally.right}
    asked = {ask for tally in found.values() for ask in tally.right}
    failed = {pictures[ask] for tally in found.values() for ask in asked - tally.right.keys()}
    return {
        name: Tally(
            {picture: counts for picture, counts in tally.counts.items() if picture not in failed},
            {ask: right for ask, right in tally.right.items() if pictures[ask] not in failed},
        )
        for name, tally in found.items()
    }


def _rows(
    benchmark: str,
    part: str,
    group: str,
    tallies: Mapping[str, Tally],
    compared: MethodFigures,
    size: int,
    first: str,
    paper: str,
) -> list[MethodRow]:
    """Return one row per method."""
    return [
        MethodRow(
            part=part,
            group=group,
            method=method,
            answered=len(tallies[method].right),
            failed=size - len(tallies[method].right),
            counts=tallies[method].total(),
            figures=compared.figures(method),
            differences=compared.differences(method, first),
            paper=paper_row(paper, benchmark, group, method) if paper else None,
            paper_mark=paper_mark(paper, benchmark, group, method) if paper else "",
            published=published_row(paper, benchmark, group, method) if paper else None,
        )
        for method in compared.exact
    ]


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
        )
        for name in compared.exact
    ]


def _tests(group: str, tallies: Mapping[str, Tally], names: Iterable[str]) -> list[McNemarTest]:
    """Compare all pairs of methods."""
    tests = []
    for first, second in itertools.combinations(names, 2):
        one, other = tallies[first].right, tallies[second].right
        only_first = sum(one[ask] and not other[ask] for ask in one)
        only_second = sum(other[ask] and not one[ask] for ask in one)
        tests.append(McNemarTest(group, first, second, only_first, only_second, mcnemar(only_first, only_second)))
    return tests


def _sizes(benchmark: Benchmark, part: Part) -> dict[str, int]:
    """Count the asks of each group: all that can be answered."""
    everything = benchmark.score(part, {ask.id: "" for ask in part.asks})
    return {group: len(tally.right) for group, tally in everything.items()}
