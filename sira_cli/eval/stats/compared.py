"""Figures of several methods over the same pictures, with intervals and paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sira_cli.eval.stats.influence import Figures, estimates
from sira_cli.eval.stats.intervals import Estimate, Figure, Share, mean
from sira_cli.eval.stats.tally import Denominators, Tally


@dataclass(frozen=True)
class MethodFigures:
    """The figures of methods in one group: a split, a length, a dimension.

    Attributes:
        pictures: names of N pictures, sorted: the same for all methods.
        estimates: by method and name.
    """

    pictures: list[str]
    estimates: dict[str, dict[str, Estimate]]

    @classmethod
    def of(
        cls,
        tallies: Mapping[str, Tally],
        figures: Figures,
        denominators: Denominators | None = None,
        smooth: Figures | None = None,
    ) -> MethodFigures:
        """Compare methods that answered about the same pictures; those without answers are left out."""
        given = {name: tally for name, tally in tallies.items() if tally.counts}
        pictures = sorted({picture for tally in given.values() for picture in tally.counts})
        found = {}
        for name, tally in given.items():
            names = list(tally.counts[pictures[0]])
            rows = np.array([[tally.counts[picture][of] for of in names] for picture in pictures], dtype=float)
            found[name] = estimates(names, rows, figures, denominators or {}, smooth)
        return cls(pictures, found)

    @classmethod
    def mean(cls, groups: Sequence[MethodFigures]) -> MethodFigures:
        """Return means over groups for methods that are in all groups; a picture may be in several."""
        names = [name for name in groups[0].estimates if all(name in group.estimates for group in groups)]
        pictures = sorted({picture for group in groups for picture in group.pictures})
        places = [np.searchsorted(pictures, group.pictures) for group in groups]
        return cls(
            pictures,
            {
                name: {
                    key: mean(
                        [
                            _among(len(pictures), place, group.estimates[name][key])
                            for group, place in zip(groups, places, strict=True)
                        ]
                    )
                    for key in groups[0].estimates[name]
                }
                for name in names
            },
        )

    def figures(self, name: str) -> dict[str, Figure]:
        """Return a method's figures with their intervals."""
        return {key: estimate.figure() for key, estimate in self.estimates[name].items()}

    def differences(self, name: str, first: str) -> dict[str, Figure]:
        """Return a method's figures minus the first method's, paired; empty for the first, or if it is missing."""
        if name == first or first not in self.estimates:
            return {}
        others = self.estimates[first]
        return {key: estimate.minus(others[key]) for key, estimate in self.estimates[name].items()}


def _among(size: int, places: np.ndarray, estimate: Estimate) -> Estimate:
    """Extend an estimate to `size` pictures; its own are at the given places."""

    def spread(values: np.ndarray) -> np.ndarray:
        wide = np.zeros(size)
        wide[places] = values
        return wide

    share = estimate.share
    return replace(
        estimate,
        influence=spread(estimate.influence),
        share=share and Share(share.answers, spread(share.weight)),
    )
