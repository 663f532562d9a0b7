"""The values of K and alpha."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from sira_cli.core.config import check_range
from sira_cli.errors import SettingsError

ALPHAS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
VALUES = 6  # number of values of K, unless they are given


class Cell(NamedTuple):
    """A setting; K = 0 stands for greedy."""

    k: int
    alpha: float

    @property
    def name(self) -> str:
        """Its name in reports and messages."""
        return f"K = {self.k}, alpha = {self.alpha:g}" if self.k else "greedy"


GREEDY = Cell(0, 0.0)


@dataclass(frozen=True)
class Grid:
    """Every K with every alpha, both ascending."""

    ks: tuple[int, ...]
    alphas: tuple[float, ...]

    def cells(self) -> list[Cell]:
        """Return all settings, greedy first."""
        return [GREEDY, *(Cell(k, alpha) for k in self.ks for alpha in self.alphas)]


def parse_ks(text: str) -> tuple[int, ...]:
    """Read values of K: `1,2,4`, `1-7`, or both."""
    values: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= low <= high:
            raise SettingsError(f"`k=` {text!r}: expected all, or numbers and ranges such as 1,2,4 or 1-7")
        values |= set(range(low, high + 1))
    return tuple(sorted(values))


def parse_alphas(text: str) -> tuple[float, ...]:
    """Read values of alpha: `0.5,1`. 0 is left out: it is greedy, which is always measured."""
    try:
        values = {float(part) for part in text.split(",")}
    except ValueError:
        raise SettingsError(f"`alpha=` {text!r}: expected numbers such as 0.5,1") from None
    for value in values:
        check_range("alpha", value, 0.0)
    if values == {0.0}:
        raise SettingsError("`alpha=` 0 is greedy, which is always measured: give one above 0")
    return tuple(sorted(values - {0.0}))


def spread(layers: int, largest: int) -> tuple[int, ...]:
    """Return VALUES values of K from early to late forks, L/2 among them."""
    return tuple(sorted({max(1, min(number * layers // VALUES, largest)) for number in range(1, VALUES + 1)}))
