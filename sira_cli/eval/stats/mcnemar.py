"""McNemar's exact test: whether two methods differ on the same questions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sira_cli.eval.stats.tally import Tally


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


def compare_pairs(group: str, tallies: Mapping[str, Tally], names: Iterable[str]) -> list[McNemarTest]:
    """Compare all pairs of the named methods, which have answered the same asks."""
    tests = []
    for first, second in itertools.combinations(names, 2):
        one, other = tallies[first].right, tallies[second].right
        only_first = sum(one[ask] and not other[ask] for ask in one)
        only_second = sum(other[ask] and not one[ask] for ask in one)
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
