"""Counts by picture, the figures of their sums, 95 % intervals over pictures, and paired tests.

Answers about one picture are alike, so pictures are the units. A share has Wilson's interval for an effective number of
answers (Kish 1965): the number of independent answers that would scatter like these pictures. The scatter of few wrong
answers is uncertain, so one prior answer is added that scatters as if all answers about a picture were equal; if all
answers are right, the effective number is the number of pictures. A paired difference is the share of gains less the
share of losses, and their intervals make one (MOVER: Newcombe 1998; Zou and Donner 2008).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Counts = dict[str, float]
Denominators = Mapping[str, Sequence[str]]  # by figure, the counts that add up to its denominator
Figures = Callable[[Mapping[str, float]], dict[str, float]]  # from sums of counts to figures

Z = 1.959963984540054  # 97.5 % of the normal distribution lies below
STEP = 1e-4  # of a count, for central differences
PRIOR = 1.0  # answers
PRIOR_CHANGES = 0.15  # among the gains, and among the losses; both were chosen by simulations


@dataclass
class Tally:
    """One method's answers in one group, counted."""

    counts: dict[str, Counts] = field(default_factory=dict)  # by picture; every picture has the same keys
    right: dict[str, bool] = field(default_factory=dict)  # by ask: `Counted.right`, for paired tests

    def add(self, picture: str, ask: str, right: bool, counts: Mapping[str, float]) -> None:
        """Add the counts of an answer to those of its picture."""
        self.right[ask] = right
        row = self.counts.setdefault(picture, dict.fromkeys(counts, 0))
        for name, count in counts.items():
            row[name] += count

    def total(self) -> Counts:
        """Return sums over all pictures."""
        rows = list(self.counts.values())
        return {name: sum(row[name] for row in rows) for name in next(iter(rows), {})}


def common(tallies: Mapping[str, Tally], pictures: Mapping[str, str]) -> dict[str, Tally]:
    """Leave out pictures that failed under any method, except methods without any answers."""
    answered = {name: tally for name, tally in tallies.items() if tally.right}
    asked = set[str]().union(*(tally.right for tally in answered.values()))
    failed = set[str]()
    for tally in answered.values():
        failed.update(pictures[ask] for ask in asked - tally.right.keys())
    left = {}
    for name, tally in answered.items():
        left[name] = Tally()
        for picture, counts in tally.counts.items():
            if picture not in failed:
                left[name].counts[picture] = counts
        for ask, right in tally.right.items():
            if pictures[ask] not in failed:
                left[name].right[ask] = right
    return left


def ratio(part: float, whole: float) -> float:
    """Return the quotient; 0 if `whole` is 0."""
    return part / whole if whole else 0.0


def percent(part: float, whole: float) -> float:
    """Return the quotient in percent; 0 if `whole` is 0."""
    return 100 * ratio(part, whole)


# Intervals.


@dataclass(frozen=True)
class Figure:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half the interval's width, as printed after ±."""
        return (self.high - self.low) / 2

    def __format__(self, spec: str) -> str:
        """Format as `12.3 ±1.2`; `+` shows the sign of a positive value, `.2f` gives both numbers two decimals."""
        number = spec if spec.endswith("f") else f"{spec}.1f"
        return f"{self.value:{number}} ±{self.half:{number.removeprefix('+')}}"

    def bounds(self, spec: str) -> str:
        """Format as `12.3 (8.1..19.0)`; ± would hide how uneven an interval over few pictures is."""
        plain = spec.removeprefix("+")
        return f"{self.value:{spec}} ({self.low:{plain}}..{self.high:{plain}})"


@dataclass(frozen=True)
class Share:
    """The denominator of a share."""

    answers: float  # the denominator: answers, mentions, captions
    weight: np.ndarray  # `[N]`, each picture's part of it; adds up to 1, or to 0 without any answers

    @classmethod
    def of(cls, sizes: np.ndarray) -> Share:
        """Return the denominator that is the sum of a size of each picture, `[N]`."""
        answers = float(sizes.sum())
        return cls(answers, sizes / answers if answers else sizes)

    def effective(self, part: float, influence: np.ndarray, prior: float) -> float:
        """Return the effective number of independent answers for a share from 0 to 1; at least one."""
        pictures = int(np.count_nonzero(self.weight))
        if pictures < 2:
            return 1.0
        variance = pictures / (pictures - 1) * float(influence @ influence)
        informed = part * (1 - part) * self.answers + prior
        return informed / (variance * self.answers + prior * float(self.weight @ self.weight))


@dataclass(frozen=True)
class Estimate:
    """A figure of N pictures, from which intervals follow."""

    value: float  # a share is in percent
    influence: np.ndarray  # `[N]`, how much each picture moves it; adds up to 0, its squares to the variance
    share: Share | None = None  # None for a figure that is not a share, such as a mean length

    def figure(self) -> Figure:
        """Return the value with its interval, which has no width without answers."""
        if self.share is None:
            return _mean_figure(self.value, self.influence)
        if not self.share.answers:
            return Figure(self.value, self.value, self.value)
        part = min(max(self.value / 100, 0.0), 1.0)
        low, high = wilson(part, self.share.effective(part, self.influence / 100, PRIOR))
        return Figure(self.value, 100 * low, 100 * high)

    def minus(self, other: Estimate) -> Figure:
        """Return the difference, with its interval, to the same figure of other answers about the same pictures."""
        value = self.value - other.value
        influence = self.influence - other.influence
        if self.share is None or other.share is None:
            return _mean_figure(value, influence)
        if not (self.share.answers and other.share.answers):
            return Figure(value, value, value)
        answers = (self.share.answers + other.share.answers) / 2
        share = Share(answers, (self.share.weight + other.share.weight) / 2)
        added = (influence + value * share.weight) / 100  # what each picture adds to the difference
        gains = _Changes.of(np.maximum(added, 0), share)
        losses = _Changes.of(np.maximum(-added, 0), share)
        scatter = math.sqrt((gains.influence @ gains.influence) * (losses.influence @ losses.influence))
        alike = float(gains.influence @ losses.influence) / scatter if scatter else 0.0  # their correlation
        below = _distance(gains.part - gains.low, losses.high - losses.part, alike)
        above = _distance(gains.high - gains.part, losses.part - losses.low, alike)
        return Figure(value, value - 100 * below, value + 100 * above)


def wilson(share: float, trials: float) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of a share, both from 0 to 1; it has a width at 0 and 1."""
    squared = Z**2 / trials
    middle = (share + squared / 2) / (1 + squared)
    half = Z * math.sqrt(share * (1 - share) / trials + squared / (4 * trials)) / (1 + squared)
    return (middle - half if share > 0 else 0.0), (middle + half if share < 1 else 1.0)


def student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, from 3 on by its expansion (Abramowitz and Stegun 26.7.5)."""
    if freedom < 3:
        return (12.706205, 4.302653)[freedom - 1]
    quantile = Z
    for power, part in enumerate((2.372271, 2.822499, 2.555850, 1.589534), start=1):
        quantile += part / freedom**power
    return quantile


def _mean_figure(value: float, influence: np.ndarray) -> Figure:
    """Return a figure that is not a share, with Student's interval; with one picture it has no width."""
    pictures = len(influence)
    if pictures < 2:
        return Figure(value, value, value)
    half = student(pictures - 1) * math.sqrt(pictures / (pictures - 1) * float(influence @ influence))
    return Figure(value, value - half, value + half)


@dataclass(frozen=True)
class _Changes:
    """The share of gains, or of losses, between two methods, with its interval."""

    part: float
    low: float
    high: float
    influence: np.ndarray  # `[N]`

    @classmethod
    def of(cls, added: np.ndarray, share: Share) -> _Changes:
        """Return the share of what each picture adds to it, `[N]`."""
        total = float(added.sum())
        influence = added - total * share.weight
        part = min(total, 1.0)
        low, high = wilson(part, share.effective(part, influence, PRIOR_CHANGES))
        return cls(part, low, high, influence)


def _distance(one: float, other: float, alike: float) -> float:
    """Return the distance from a difference to an end of its interval, from those of two correlated shares."""
    return math.sqrt(max(one**2 + other**2 - 2 * alike * one * other, 0.0))


# Figures of sums of counts, by the delta method.


def estimates(
    names: Sequence[str],
    counts: np.ndarray,
    figures: Figures,
    denominators: Denominators,
    smooth: Figures | None = None,
) -> dict[str, Estimate]:
    """Return the figures of N pictures from their counts `[N, names]`; slopes are those of `smooth`, if given."""
    total = dict(zip(names, counts.sum(axis=0).tolist(), strict=True))
    influence = counts @ _slopes(total, smooth or figures)  # [N, figures]
    influence -= influence.mean(axis=0)
    by_name = {}
    for number, (name, value) in enumerate(figures(total).items()):
        share = None
        if name in denominators:
            columns = [names.index(count) for count in denominators[name]]
            share = Share.of(counts[:, columns].sum(axis=1))
        by_name[name] = Estimate(float(value), influence[:, number], share)
    return by_name


def _slopes(total: Mapping[str, float], figures: Figures) -> np.ndarray:
    """Return each figure's derivative by each count, `[names, figures]`; 0 for a count that no picture has."""
    slopes = np.zeros((len(total), len(figures(total))))
    for row, (name, count) in zip(slopes, total.items(), strict=True):
        if count:
            more = figures({**total, name: count * (1 + STEP)})
            fewer = figures({**total, name: count * (1 - STEP)})
            change = np.subtract([*more.values()], [*fewer.values()])
            row[:] = change / (2 * STEP * count)
    return slopes


@dataclass(frozen=True)
class MethodFigures:
    """The figures of methods in one group: a split, a length, a dimension."""

    pictures: list[str]  # names of N pictures, sorted: the same for all methods
    estimates: dict[str, dict[str, Estimate]]  # by method and name

    @classmethod
    def of(
        cls,
        tallies: Mapping[str, Tally],
        figures: Figures,
        denominators: Denominators | None = None,
        smooth: Figures | None = None,
    ) -> MethodFigures:
        """Compare methods that answered about the same pictures; those without answers are left out."""
        pictures = sorted(set[str]().union(*(tally.counts for tally in tallies.values())))
        compared = {}
        for method, tally in tallies.items():
            if tally.counts:
                names = list(tally.counts[pictures[0]])
                counts = np.zeros((len(pictures), len(names)))
                for row, picture in zip(counts, pictures, strict=True):
                    row[:] = [tally.counts[picture][name] for name in names]
                compared[method] = estimates(names, counts, figures, denominators or {}, smooth)
        return cls(pictures, compared)

    @classmethod
    def mean(cls, groups: Sequence[MethodFigures]) -> MethodFigures:
        """Return means over groups for methods that are in all groups; a picture may be in several."""
        pictures = sorted(set[str]().union(*(group.pictures for group in groups)))
        places = [np.searchsorted(pictures, group.pictures) for group in groups]
        means: dict[str, dict[str, Estimate]] = {}
        for method, first in groups[0].estimates.items():
            if all(method in group.estimates for group in groups):
                means[method] = {}
                for name in first:
                    figures = [group.estimates[method][name] for group in groups]
                    means[method][name] = _mean(figures, places, len(pictures))
        return cls(pictures, means)

    def figures(self, method: str) -> dict[str, Figure]:
        """Return a method's figures with their intervals."""
        return {name: estimate.figure() for name, estimate in self.estimates[method].items()}

    def differences(self, method: str, first: str) -> dict[str, Figure]:
        """Return a method's figures minus the first method's, paired; empty for the first, or if it is missing."""
        if method == first or first not in self.estimates:
            return {}
        others = self.estimates[first]
        return {name: estimate.minus(others[name]) for name, estimate in self.estimates[method].items()}


def _mean(figures: Sequence[Estimate], places: Sequence[np.ndarray], size: int) -> Estimate:
    """Return the mean of a figure of several groups, each of which has its pictures at some places among `size`."""
    influence = np.zeros((len(figures), size))
    weight = np.zeros((len(figures), size))
    shares = []
    for row, (figure, place) in enumerate(zip(figures, places, strict=True)):
        influence[row, place] = figure.influence
        if figure.share is not None:
            weight[row, place] = figure.share.weight
            shares.append(figure.share)
    share = None
    if len(shares) == len(figures):
        share = Share(sum(share.answers for share in shares), weight.mean(axis=0))
    value = float(np.mean([figure.value for figure in figures]))
    return Estimate(value, influence.mean(axis=0), share)


# Tests.


@dataclass(frozen=True)
class McNemarTest:
    """McNemar's exact test of two methods, over answers that only one has right, which count as independent."""

    group: str
    first: str
    second: str
    only_first: int
    only_second: int
    p: float


def compare_pairs(group: str, tallies: Mapping[str, Tally], names: Iterable[str]) -> list[McNemarTest]:
    """Compare all pairs of the named methods, which have answered the same asks."""
    tests = []
    for first, second in itertools.combinations(names, 2):
        only_first = 0
        only_second = 0
        for ask, right in tallies[first].right.items():
            other = tallies[second].right[ask]
            only_first += right and not other
            only_second += other and not right
        tests.append(McNemarTest(group, first, second, only_first, only_second, mcnemar(only_first, only_second)))
    return tests


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p value: the chance that random assignment splits the discordant answers as unequally."""
    discordant = only_first + only_second
    tail = term = 1  # binomial coefficients, each from the one before
    for count in range(min(only_first, only_second)):
        term = term * (discordant - count) // (count + 1)
        tail += term
    share: float = 2 * tail / 2**discordant
    return min(1.0, share)
