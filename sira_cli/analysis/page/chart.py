"""Δ and KL along the text: bars as SVG paths, one path per colour, however long the text is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sira_cli.analysis.trace.read import Token, Trace

LEAST_STEPS = 24  # a short text has no bars as wide as a hand
HEIGHT = 100  # height of a chart's view box


@dataclass(frozen=True)
class Scale:
    """The common axes of all charts of a page, so that they can be compared.

    Attributes:
        colour: the |Δ| at which a token has the strongest colour.
        low, high: Δ, around 0.
        kl: KL, from 0.
    """

    colour: float
    low: float
    high: float
    kl: float

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> Scale:
        """Fit the scales to traces.

        Colours saturate at the 95th percentile of the values, but not below 1. The axes hold every value.
        """
        tokens = [token for trace in traces for token in trace.tokens]
        sizes = sorted(abs(token.delta) for token in tokens if not token.special)
        return cls(
            colour=_round_up(max([1.0, *sizes[: math.ceil(0.95 * len(sizes))]])),
            low=min([0.0, *(token.delta for token in tokens)]),
            high=max([0.0, *(token.delta for token in tokens)]),
            kl=max([0.0, *(token.kl for token in tokens)]),
        )

    def level(self, delta: float) -> int:
        """Return the colour of a token, -4 to 4."""
        size = min(4, int(4 * abs(delta) / self.colour + 0.5))
        return size if delta >= 0 else -size


@dataclass(frozen=True)
class Chart:
    """The paths of a trace's charts in a view box `steps` wide and `HEIGHT` high. `zero` is where Δ is 0."""

    steps: int
    zero: float
    above: str
    below: str
    kl: str

    @classmethod
    def of(cls, tokens: Sequence[Token], scale: Scale) -> Chart:
        """Draw bars on the page's axes."""
        span = scale.high - scale.low or 1.0

        def height(delta: float) -> float:
            return HEIGHT * (scale.high - delta) / span

        zero = round(height(0.0), 2)
        return cls(
            steps=max(LEAST_STEPS, len(tokens)),
            zero=zero,
            above=_bars(tokens, zero, lambda token: height(max(token.delta, 0.0))),
            below=_bars(tokens, zero, lambda token: height(min(token.delta, 0.0))),
            kl=_bars(tokens, HEIGHT, lambda token: HEIGHT * (1 - token.kl / (scale.kl or 1.0))),
        )


def _bars(tokens: Sequence[Token], base: float, top: Callable[[Token], float]) -> str:
    ends = [(token.step, round(top(token), 2)) for token in tokens]
    return "".join(f"M{step}.1 {base:g}V{end:g}h.8V{base:g}z" for step, end in ends if end != base)


def _round_up(value: float) -> float:
    """Round up to a number that is easy to read."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value)
