"""KL and drift over K, the K of the rule, how sure it is, and the record of it all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from sira_cli._version import __version__
from sira_cli.analysis.calibration.which_k import SHARE, Divergences, choose_k
from sira_cli.analysis.drift.profiles import Estimate, FailedFile
from sira_cli.core.config import SiraConfig
from sira_cli.eval.stats.bootstrap import draws
from sira_cli.models.lvlm import Lvlm

RULE = f"the least K whose KL(full || CF) is at least {SHARE:.0%} of the largest over all K"


@dataclass(frozen=True)
class KRow:
    """What was measured for one K, means over pictures."""

    k: int
    kl: Estimate
    drift: Estimate


@dataclass(frozen=True)
class KReport:
    """What was measured, and the settings that decided it.

    Attributes:
        layers: L.
        pictures, tokens: how many were measured, and the tokens of their captions.
        k: that of the rule.
        half: the paper's K = L/2.
        agreement: share of resamples of the pictures in which the rule gives the same K.
        rows: K = 1, 2, ...
    """

    preset: str
    model: str
    revision: str
    quantization: str | None
    dtype: str
    prompt: str
    max_new_tokens: int
    layers: int
    pictures: int
    tokens: int
    failures: tuple[FailedFile, ...]
    rule: str
    k: int
    half: int
    agreement: float
    rows: tuple[KRow, ...]

    @classmethod
    def of(cls, lvlm: Lvlm, measured: Sequence[Divergences], failures: Sequence[FailedFile] = ()) -> KReport:
        """Make the report of what `measure_divergence` found on at least one picture.

        Raises:
            SiraError: no K changes anything.
        """
        kl, drift = (np.array([getattr(each, name) for each in measured]) for name in ("kl", "drift"))  # [N, K]
        k = choose_k(kl.mean(axis=0).tolist())
        return cls(
            preset=lvlm.preset.name,
            model=lvlm.preset.model,
            revision=lvlm.revision,
            quantization=lvlm.quantization,
            dtype=lvlm.dtype,
            prompt=lvlm.preset.prompts.caption,
            max_new_tokens=lvlm.preset.generation.max_new_tokens,
            layers=lvlm.layers,
            pictures=len(measured),
            tokens=sum(each.tokens for each in measured),
            failures=tuple(failures),
            rule=RULE,
            k=k,
            half=SiraConfig().layers_after_fork(lvlm.layers),
            agreement=agreement(kl),
            rows=tuple(
                KRow(number, Estimate.of(kl[:, number - 1]), Estimate.of(drift[:, number - 1]))
                for number in range(1, kl.shape[1] + 1)
            ),
        )

    def to_json(self) -> str:
        """Return one JSON object, `sira.which_k/1`."""
        record = {"schema": "sira.which_k/1", **asdict(self), "sira_version": __version__}
        return json.dumps(record, ensure_ascii=False, allow_nan=False)


def agreement(kl: np.ndarray) -> float:
    """Return in which share of resamples of the pictures, `[N, K]`, the rule gives the same K as for all of them."""
    chosen = choose_k(kl.mean(axis=0).tolist())
    again = draws(len(kl)) @ kl  # [resamples, K], sums
    reached = again >= SHARE * again.max(axis=1, keepdims=True)
    return float((1 + reached.argmax(axis=1) == chosen).mean())
