"""Whether two methods differ on the same questions: McNemar's exact test."""

from __future__ import annotations


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p value: how likely chance alone splits the discordant answers at least as unequally.

    Args:
        only_first: answers that only the first method has right.
        only_second: answers that only the second has right.
    """
    discordant = only_first + only_second
    tail = term = 1  # binomial coefficients, each from the one before
    for count in range(min(only_first, only_second)):
        term = term * (discordant - count) // (count + 1)
        tail += term
    share: float = 2 * tail / 2**discordant
    return min(1.0, share)
