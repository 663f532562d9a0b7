"""`resdec`: Residual Decoding, earlier steps' logits mixed in by confidence (Chen et al. 2026, arXiv:2602.01047).

Its code is not published, and its text was read in a summary, which has the equations. Open there, and chosen here: the
candidates are the `pool` likeliest tokens of this step, and all distributions are over them; earlier steps are all
steps of the text; the stable phase begins at the two neighbours that differ least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sira_cli.core.rules import plausible
from sira_cli.methods.logits_only import AfterSira, LogitsOnly
from sira_cli.methods.settings import setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ResDec(LogitsOnly):
    """(1 - w) z_t + w sum_i c_i z_i / sum_i c_i over i from the stable phase to t - 1, then APC.

    c_i is minus the mean of log p_i over the candidates: large where few of them have all the probability.
    """

    name = "resdec"
    weight: float = setting(0.5, "weight of earlier logits (the paper's alpha)", low=0, high=1)
    pool: int = setting(128, "tokens over which steps are compared (paper: 64 to 512)", low=2)
    beta: float = setting(0.1, "plausibility cut-off", low=0, high=1, above_low=True)

    def rule(self, z: Tensor, earlier: Sequence[Tensor], step: int) -> Tensor:
        """Mix, then cut off."""
        import torch

        if not earlier:
            return plausible(z, z, self.beta)
        past = torch.stack(tuple(earlier))  # [T, B, V]
        pool = z.topk(min(self.pool, z.shape[-1])).indices  # [B, P]
        log_p = past.gather(-1, pool.expand(len(past), *pool.shape)).log_softmax(-1)  # [T, B, P]
        confidence = -log_p.mean(-1)  # [T, B]
        if len(past) > 1:
            start = divergence(log_p[:-1], log_p[1:]).argmin(0)  # [B]
            before = torch.arange(len(past), device=z.device)[:, None] < start  # [T, B]
            confidence = confidence.masked_fill(before, 0)
        weights = confidence / confidence.sum(0)  # [T, B]
        mixed = torch.lerp(z, torch.einsum("tb,tbv->bv", weights, past), self.weight)
        return plausible(mixed, z, self.beta)


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of distributions: log probabilities `[..., P]` -> `[...]`, in nats."""
    log_m = log_p.logaddexp(log_q) - math.log(2)  # finite where both probabilities are too small for a float
    terms = log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)
    return terms.sum(-1) / 2


@dataclass(frozen=True)
class SiraResDec(AfterSira, ResDec):
    """`resdec`'s rule after SIRA's contrast."""

    name = "sira+resdec"
