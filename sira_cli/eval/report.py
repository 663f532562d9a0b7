"""The figures of methods side by side: with intervals, differences to the first method, and paired tests."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sira_cli._version import __version__
from sira_cli.eval.answers.answers import Answers, Failure
from sira_cli.eval.base import Benchmark, Counts, Part, Tally
from sira_cli.eval.paper import paper_row
from sira_cli.eval.stats.bootstrap import Figure, interval
from sira_cli.eval.stats.paired import mcnemar, resample

MEAN = "mean"
LOWER_IS_BETTER = frozenset({"FPR", "CHAIRs", "CHAIRi", "CHAIR", "Hal", "Cog"})
NO_DIRECTION = frozenset({"yes", "neither", "words", "length"})


@dataclass(frozen=True)
class Row:
    """One method in one group.

    Attributes:
        part, group: a split, a length, a dimension; `mean` is the mean over a part's groups.
        answered: how many asks count.
        failed: how many do not, because their pictures failed, under this method or another: methods are compared on
            the same pictures.
        counts: sums over pictures that figures are ratios of; none for a mean.
        figures: in percent but for `words` and `length`, with 95 % bootstrap intervals over pictures.
        differences: of the figures to the first method's, in the same draws of pictures; none for the first method,
            or where that has no answers.
        paper: the figures that the paper gives, if it was asked for them and has any.
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


@dataclass(frozen=True)
class Comparison:
    """McNemar's exact test of two methods: on which answers only one of them is right."""

    group: str
    first: str
    second: str
    only_first: int
    only_second: int
    p: float


@dataclass(frozen=True)
class EvalReport:
    """What was measured, and what decided it.

    Attributes:
        benchmark: its name.
        stand_ins: by part, what makes its figures others than those of a published script.
        facts: the rule, language data and their versions, files.
        settings: of each method, as far as it is known; the first is what the others are compared with.
        not_run: methods whose answers are another's, from which they cannot differ.
        paper: the model whose figures in the paper are beside, if any are.
    """

    benchmark: str
    stand_ins: dict[str, str]
    facts: dict[str, Any]
    settings: dict[str, dict[str, Any]]
    not_run: dict[str, str]
    paper: str
    rows: tuple[Row, ...]
    tests: tuple[Comparison, ...]
    failures: tuple[Failure, ...]

    @classmethod
    def of(
        cls,
        benchmark: Benchmark,
        answers: Sequence[Answers],
        *,
        not_run: Mapping[str, str] | None = None,
        paper: str = "",
    ) -> EvalReport:
        """From answers, the first method's first.

        Args:
            benchmark: with its ground truth.
            answers: of each method.
            not_run: see the class.
            paper: a model of the paper, whose figures are put beside.
        """
        rows: list[Row] = []
        tests: list[Comparison] = []
        for part in benchmark.parts:
            given = [one for one in answers if part.name in one.texts]
            tallies = {one.name: benchmark.score(part, one.texts[part.name]) for one in given}
            sizes = _sizes(benchmark, part)
            pictures = {ask.id: ask.picture for ask in part.asks}
            scored = [
                _Group(benchmark, group, _common({name: tallies[name][group] for name in tallies}, pictures))
                for group in part.groups
            ]
            first = answers[0].name
            for group in scored:
                rows += group.rows(part.name, sizes[group.name], first, paper)
                tests += group.tests()
            if benchmark.averaged and len(scored) > 1:
                rows += _means([row for row in rows if row.part == part.name], scored, first)
        return cls(
            benchmark=benchmark.name,
            stand_ins=benchmark.stand_ins(),
            facts=benchmark.facts(),
            settings={one.name: one.settings for one in answers},
            not_run=dict(not_run or {}),
            paper=paper,
            rows=tuple(rows),
            tests=tuple(tests),
            failures=tuple(failure for one in answers for failure in one.failures),
        )

    def to_json(self) -> str:
        """One JSON object, `sira.eval/1`."""
        record = {"schema": "sira.eval/1", "official": not self.stand_ins, **asdict(self), "sira_version": __version__}
        return json.dumps(record, ensure_ascii=False, allow_nan=False)


def _common(tallies: Mapping[str, Tally], pictures: Mapping[str, str]) -> dict[str, Tally]:
    """Without pictures that failed under one of the methods, but for methods that have no answers at all."""
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


class _Group:
    """The tallies of all methods in one group, over the same pictures."""

    def __init__(self, benchmark: Benchmark, name: str, tallies: Mapping[str, Tally]) -> None:
        self.name = name
        self.tallies = tallies
        self._benchmark = benchmark.name
        self._figures = functools.partial(benchmark.figures, name)
        self._pictures = sorted({picture for tally in tallies.values() for picture in tally.counts})

    @functools.cached_property
    def exact(self) -> dict[str, dict[str, float]]:
        """Of each method that has answers."""
        return {name: self._figures(tally.total()) for name, tally in self.tallies.items() if tally.counts}

    @functools.cached_property
    def drawn(self) -> dict[str, dict[str, np.ndarray]]:
        """The same of resampled pictures."""
        return {
            name: resample([self.tallies[name].counts[picture] for picture in self._pictures], self._figures)
            for name in self.exact
        }

    def rows(self, part: str, size: int, first: str, paper: str) -> list[Row]:
        """A row a method."""
        return [
            Row(
                part=part,
                group=self.name,
                method=name,
                answered=len(self.tallies[name].right),
                failed=size - len(self.tallies[name].right),
                counts=self.tallies[name].total(),
                figures={key: interval(value, self.drawn[name][key]) for key, value in exact.items()},
                differences=_differences(self.exact, self.drawn, name, first),
                paper=paper_row(paper, self._benchmark, self.name, name) if paper else None,
            )
            for name, exact in self.exact.items()
        ]

    def tests(self) -> list[Comparison]:
        """Of all pairs of methods."""
        tests = []
        for first, second in itertools.combinations(self.exact, 2):
            one, other = self.tallies[first].right, self.tallies[second].right
            only_first = sum(one[ask] and not other[ask] for ask in one)
            only_second = sum(other[ask] and not one[ask] for ask in one)
            p = mcnemar(only_first, only_second)
            tests.append(Comparison(self.name, first, second, only_first, only_second, p))
        return tests


def _means(rows: Sequence[Row], groups: Sequence[_Group], first: str) -> list[Row]:
    """Means of the groups' figures; a draw takes the same pictures in all groups that share them."""
    names = [name for name in groups[0].exact if all(name in group.exact for group in groups)]
    exact = {
        name: {key: float(np.mean([group.exact[name][key] for group in groups])) for key in groups[0].exact[name]}
        for name in names
    }
    drawn = {
        name: {key: np.mean([group.drawn[name][key] for group in groups], axis=0) for key in exact[name]}
        for name in names
    }
    return [
        Row(
            part=rows[-1].part,
            group=MEAN,
            method=name,
            answered=sum(row.answered for row in rows if row.method == name),
            failed=sum(row.failed for row in rows if row.method == name),
            counts={},
            figures={key: interval(value, drawn[name][key]) for key, value in exact[name].items()},
            differences=_differences(exact, drawn, name, first),
        )
        for name in names
    ]


def _differences(
    exact: Mapping[str, Mapping[str, float]],
    drawn: Mapping[str, Mapping[str, np.ndarray]],
    name: str,
    first: str,
) -> dict[str, Figure]:
    """Of a method's figures to those of the first."""
    if name == first or first not in exact:
        return {}
    return {
        key: interval(value - exact[first][key], drawn[name][key] - drawn[first][key])
        for key, value in exact[name].items()
    }


def _sizes(benchmark: Benchmark, part: Part) -> dict[str, int]:
    """How many asks a group has: all that can be answered."""
    everything = benchmark.score(part, {ask.id: "" for ask in part.asks})
    return {group: len(tally.right) for group, tally in everything.items()}
