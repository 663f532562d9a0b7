"""Percentile bootstrap: figures of resampled pictures, and their 95 % intervals."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

RESAMPLES = 1_000


@dataclass(frozen=True)
class Figure:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    def __format__(self, sign: str) -> str:
        """`+` shows the sign of a positive value; what follows ± is half the interval's width."""
        return f"{self.value:{sign}.1f} ±{(self.high - self.low) / 2:.1f}"


@functools.lru_cache(maxsize=1)
def draws(size: int) -> np.ndarray:
    """How often each of `size` pictures is drawn, with replacement: `[RESAMPLES, size]`, the same at every call."""
    return np.random.default_rng(0).multinomial(size, np.full(size, 1 / size), RESAMPLES).astype(float)


def interval(value: float, drawn: np.ndarray) -> Figure:
    """A figure with its 95 % percentile interval, from the same figure of RESAMPLES draws."""
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Figure(float(value), float(low), float(high))
