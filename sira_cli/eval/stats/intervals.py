"""Figures and their 95 % intervals over pictures: of shares, of means, and of paired differences.

Answers about one picture are alike, so pictures are the units. A share has Wilson's interval for an effective number of
answers (Kish 1965): the number of independent answers that would scatter like these pictures. The scatter of few wrong
answers is uncertain, so one prior answer is added that scatters as if all answers about a picture were equal; if all
answers are right, the effective number is the number of pictures. A paired difference is the share of gains less the
share of losses, and their intervals make one (MOVER: Newcombe 1998; Zou and Donner 2008). `tools/coverage.py`
measures how often intervals hold the true value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sira_cli.eval.stats.wilson import Z, wilson

PRIOR = 1.0  # answers
PRIOR_CHANGES = 0.15  # among the gains, and among the losses; both were chosen by simulations (`tools/coverage.py`)


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


@dataclass(frozen=True)
class Share:
    """The denominator of a share.

    Attributes:
        answers: the denominator: answers, mentions, captions.
        weight: `[N]`, each picture's part of it; adds up to 1, or to 0 without any answers.
    """

    answers: float
    weight: np.ndarray


@dataclass(frozen=True)
class Estimate:
    """A figure of N pictures, from which intervals follow.

    Attributes:
        value: a share is in percent.
        influence: `[N]`, how much each picture moves the value, to first order; adds up to 0. Its squares add up to the
            variance.
        share: None for a figure that is not a share, such as a mean length.
    """

    value: float
    influence: np.ndarray
    share: Share | None = None

    def figure(self) -> Figure:
        """Return the value with its interval, which has no width without answers."""
        if self.share is None:
            return _mean(self.value, self.influence)
        if not self.share.answers:
            return Figure(self.value, self.value, self.value)
        part = min(max(self.value / 100, 0.0), 1.0)
        low, high = wilson(part, _effective(part, self.influence / 100, self.share, PRIOR))
        return Figure(self.value, 100 * low, 100 * high)

    def minus(self, other: Estimate) -> Figure:
        """Return the difference, with its interval, to the same figure of other answers about the same pictures."""
        value, influence = self.value - other.value, self.influence - other.influence
        if self.share is None or other.share is None:
            return _mean(value, influence)
        if not (self.share.answers and other.share.answers):
            return Figure(value, value, value)
        share = Share((self.share.answers + other.share.answers) / 2, (self.share.weight + other.share.weight) / 2)
        added = (influence + value * share.weight) / 100  # what each picture adds to the difference
        (gain, gain_low, gain_high, gained), (loss, loss_low, loss_high, lost) = (
            _one_way(np.maximum(sign * added, 0), share) for sign in (1, -1)
        )
        scatter = math.sqrt((gained @ gained) * (lost @ lost))
        alike = float(gained @ lost) / scatter if scatter else 0.0  # their correlation
        below = _hypotenuse(gain - gain_low, loss_high - loss, alike)
        above = _hypotenuse(gain_high - gain, loss - loss_low, alike)
        return Figure(value, value - 100 * below, value + 100 * above)


def mean(estimates: list[Estimate]) -> Estimate:
    """Return the mean of figures from different answers about the same N pictures."""
    shares = [each.share for each in estimates if each.share is not None]
    share = None
    if len(shares) == len(estimates):
        share = Share(sum(each.answers for each in shares), _average([each.weight for each in shares]))
    value = float(np.mean([each.value for each in estimates]))
    return Estimate(value, _average([each.influence for each in estimates]), share)


def student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, from 3 on by its expansion (Abramowitz and Stegun 26.7.5)."""
    if freedom < 3:
        return (12.706205, 4.302653)[freedom - 1]
    quantile = Z
    for power, part in enumerate((2.372271, 2.822499, 2.555850, 1.589534), start=1):
        quantile += part / freedom**power
    return quantile


def _average(rows: list[np.ndarray]) -> np.ndarray:
    average: np.ndarray = np.mean(rows, axis=0)
    return average


def _mean(value: float, influence: np.ndarray) -> Figure:
    """Return a figure that is not a share, with Student's interval; with one picture it has no width."""
    pictures = len(influence)
    if pictures < 2:
        return Figure(value, value, value)
    half = student(pictures - 1) * math.sqrt(pictures / (pictures - 1) * float(influence @ influence))
    return Figure(value, value - half, value + half)


def _effective(part: float, influence: np.ndarray, share: Share, prior: float) -> float:
    """Return the effective number of independent answers for a share from 0 to 1; at least one."""
    pictures = int(np.count_nonzero(share.weight))
    if pictures < 2:
        return 1.0
    variance = pictures / (pictures - 1) * float(influence @ influence)
    informed = part * (1 - part) * share.answers + prior
    return informed / (variance * share.answers + prior * float(share.weight @ share.weight))


def _one_way(added: np.ndarray, share: Share) -> tuple[float, float, float, np.ndarray]:
    """Return the share of gains, or of losses, with the ends of its interval and its influence."""
    total = float(added.sum())
    influence = added - total * share.weight
    part = min(total, 1.0)
    low, high = wilson(part, _effective(part, influence, share, PRIOR_CHANGES))
    return part, low, high, influence


def _hypotenuse(one: float, other: float, alike: float) -> float:
    return math.sqrt(max(one**2 + other**2 - 2 * alike * one * other, 0.0))
