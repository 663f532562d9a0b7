"""Figures of several methods over the same pictures, with intervals and paired differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sira_cli.eval.stats.bootstrap import Figure, interval, resample
from sira_cli.eval.stats.tally import Counts, Denominators, Tally
from sira_cli.eval.stats.wilson import wilson


@dataclass(frozen=True)
class MethodFigures:
    """The figures of methods in one group: a split, a length, a dimension.

    Attributes:
        exact: by method and name.
        drawn: the same of resampled pictures, `[RESAMPLES]` each; a draw takes the same pictures for all methods.
        informed: by method and name, how many pictures have something in the figure's denominator; none for figures
            whose denominators are not known.
    """

    exact: dict[str, dict[str, float]]
    drawn: dict[str, dict[str, np.ndarray]]
    informed: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tallies: Mapping[str, Tally],
        figures: Callable[[Mapping[str, float]], dict[str, float]],
        denominators: Denominators | None = None,
    ) -> MethodFigures:
        """Compare methods that answered about the same pictures; those without answers are left out.

        Args:
            tallies: by method.
            figures: makes figures from sums of counts.
            denominators: of the figures that are shares in percent.
        """
        given = {name: tally for name, tally in tallies.items() if tally.counts}
        pictures = sorted({picture for tally in given.values() for picture in tally.counts})
        rows: dict[str, list[Counts]] = {
            name: [tally.counts[picture] for picture in pictures] for name, tally in given.items()
        }
        return cls(
            {name: figures(tally.total()) for name, tally in given.items()},
            {name: resample(counts, figures) for name, counts in rows.items()},
            {
                name: {
                    figure: sum(any(row[count] for count in of) for row in counts)
                    for figure, of in (denominators or {}).items()
                }
                for name, counts in rows.items()
            },
        )

    @classmethod
    def mean(cls, groups: Sequence[MethodFigures]) -> MethodFigures:
        """Return means over groups, of the methods that are in all; groups of the same pictures share their draws."""
        names = [name for name in groups[0].exact if all(name in group.exact for group in groups)]
        exact = _means([group.exact for group in groups], names)
        return cls(
            {name: {key: float(value) for key, value in row.items()} for name, row in exact.items()},
            _means([group.drawn for group in groups], names),
            {
                name: {key: min(group.informed[name][key] for group in groups) for key in groups[0].informed[name]}
                for name in names
            },
        )

    def figures(self, name: str) -> dict[str, Figure]:
        """Return a method's figures with their intervals.

        Where all pictures agree on 0 or 100 %, so do all draws, and the interval is Wilson's: as if each picture were
        one trial, which is on the safe side where several answers are about one picture.
        """
        found = {key: interval(value, self.drawn[name][key]) for key, value in self.exact[name].items()}
        for key, pictures in self.informed.get(name, {}).items():
            figure = found[key]
            if pictures and figure.value in (0, 100) and figure.low == figure.high == figure.value:
                low, high = wilson(figure.value / 100, pictures)
                found[key] = Figure(figure.value, 100 * low, 100 * high)
        return found

    def differences(self, name: str, first: str) -> dict[str, Figure]:
        """Return a method's figures less those of the first, on the same draws; empty for the first, or without it."""
        if name == first or first not in self.exact:
            return {}
        return {
            key: interval(value - self.exact[first][key], self.drawn[name][key] - self.drawn[first][key])
            for key, value in self.exact[name].items()
        }


def _means(groups: Sequence[Mapping[str, Mapping[str, Any]]], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the mean over groups of everything, by method and name."""
    return {
        name: {key: np.mean([group[name][key] for group in groups], axis=0) for key in groups[0][name]}
        for name in names
    }
