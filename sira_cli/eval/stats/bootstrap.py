"""Percentile bootstrap over pictures: figures of resampled pictures, and their 95 % intervals."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sira_cli.eval.stats.tally import Counts

RESAMPLES = 1_000
SEED = 0


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


@functools.lru_cache(maxsize=1)
def draws(size: int) -> np.ndarray:
    """Return how often each of `size` pictures is drawn, with replacement: `[RESAMPLES, size]`, always the same."""
    return np.random.default_rng(SEED).multinomial(size, np.full(size, 1 / size), RESAMPLES).astype(float)


def interval(value: float, drawn: np.ndarray) -> Figure:
    """Return a figure with its 95 % percentile interval, from the same figure of RESAMPLES draws."""
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Figure(float(value), float(low), float(high))


def resample(
    rows: Sequence[Counts], figures: Callable[[Mapping[str, float]], dict[str, float]]
) -> dict[str, np.ndarray]:
    """Return each figure of resampled pictures, `[RESAMPLES]` each.

    Args:
        rows: counts of N pictures.
        figures: makes figures from sums of counts.
    """
    names = list(rows[0])
    counts = np.array([[row[name] for name in names] for row in rows], dtype=float)  # [N, counts]
    totals = (draws(len(rows)) @ counts).tolist()  # [RESAMPLES, counts]
    drawn = [figures(dict(zip(names, total, strict=True))) for total in totals]
    return {name: np.array([one[name] for one in drawn]) for name in drawn[0]}
