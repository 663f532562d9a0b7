"""Wilson's score interval of a share."""

from __future__ import annotations

import math

Z = 1.959963984540054  # 97.5 % of the normal distribution lies below


def wilson(share: float, trials: float) -> tuple[float, float]:
    """Return the 95 % interval of a share, both from 0 to 1; it has a width at 0 and 1."""
    squared = Z**2 / trials
    middle = (share + squared / 2) / (1 + squared)
    half = Z * math.sqrt(share * (1 - share) / trials + squared / (4 * trials)) / (1 + squared)
    return (middle - half if share > 0 else 0.0), (middle + half if share < 1 else 1.0)
