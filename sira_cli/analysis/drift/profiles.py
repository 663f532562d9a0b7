"""Drift and KL over pictures: the numbers of the paper's Figure 4, with standard errors, and their record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sira_cli.analysis.drift.measure import REFERENCES, Divergence
from sira_cli.analysis.provenance import Provenance
from sira_cli.pictures.perturb import Perturbations
from sira_cli.run.lvlm import Lvlm


@dataclass(frozen=True)
class Estimate:
    """A mean over pictures, and its standard error (None if there is only one picture)."""

    mean: float
    stderr: float | None

    @classmethod
    def of(cls, values: np.ndarray) -> Estimate:
        """Make an estimate of `[N]`, a value per picture, N >= 1."""
        count = len(values)
        return cls(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else None)


@dataclass(frozen=True)
class Profile:
    """One reference, over pictures.

    Attributes:
        drift: `[L]`, after each decoder layer (Figure 4a).
        early: mean drift of h^1..h^b, which the two streams of SIRA share (Figure 4c).
        late: mean drift of h^(b+1)..h^L (Figure 4c).
        kl: of the next token, in nats (Figure 4b).
    """

    drift: tuple[Estimate, ...]
    early: Estimate
    late: Estimate
    kl: Estimate

    @classmethod
    def of(cls, pictures: Sequence[Divergence], boundary: int) -> Profile:
        """Make a profile of at least one picture; `boundary` is b."""
        drift = np.array([picture.drift for picture in pictures])  # [N, L]
        return cls(
            drift=tuple(map(Estimate.of, drift.T)),
            early=Estimate.of(drift[:, :boundary].mean(axis=1)),
            late=Estimate.of(drift[:, boundary:].mean(axis=1)),
            kl=Estimate.of(np.array([picture.kl for picture in pictures])),
        )


@dataclass(frozen=True)
class FailedFile:
    """A picture that could not be measured, and why."""

    file_name: str
    error: str


@dataclass(frozen=True)
class DriftReport(Provenance):
    """The measurements, and the settings that decided them.

    Attributes:
        prompt: the prompt about every picture.
        k, layers, boundary: K, L and b = L - K.
        pictures: number of measured ones, without failures.
        references: a profile for each of `REFERENCES`.
    """

    schema = "sira.drift/1"

    prompt: str
    k: int
    layers: int
    boundary: int
    perturbations: Perturbations
    pictures: int
    failures: tuple[FailedFile, ...]
    references: dict[str, Profile]

    @classmethod
    def of(
        cls,
        lvlm: Lvlm,
        prompt: str,
        perturbations: Perturbations,
        measured: Sequence[dict[str, Divergence]],
        failures: Sequence[FailedFile] = (),
    ) -> DriftReport:
        """Make the report from the results of `measure_drift` for at least one picture."""
        boundary = lvlm.layers - lvlm.k
        return cls(
            **cls.fields_of(lvlm),
            prompt=prompt,
            k=lvlm.k,
            layers=lvlm.layers,
            boundary=boundary,
            perturbations=perturbations,
            pictures=len(measured),
            failures=tuple(failures),
            references={name: Profile.of([picture[name] for picture in measured], boundary) for name in REFERENCES},
        )
