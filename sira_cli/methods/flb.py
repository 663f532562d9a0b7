"""`flb`: First Logit Boosting, the first token's logits added to every later one (Ha et al. 2026, arXiv:2604.00455)."""

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
class Flb(LogitsOnly):
    """z_t + gamma (1 - exp(-growth t)) z_0, then APC; t = 0 at the first new token, as in its authors' code."""

    name = "flb"
    first_steps = 1
    gamma: float = setting(0.3, "largest weight of the first token's logits", low=0)
    growth: float = setting(0.05, "growth of that weight from token to token", low=0)
    beta: float = setting(0.1, "plausibility cut-off", low=0, high=1, above_low=True)

    def rule(self, z: Tensor, earlier: Sequence[Tensor], step: int) -> Tensor:
        """Add, then cut off."""
        weight = self.gamma * (1 - math.exp(-self.growth * step))
        return plausible(z + weight * (earlier[0] if earlier else z), z, self.beta)


@dataclass(frozen=True)
class SiraFlb(AfterSira, Flb):
    """`flb`'s rule after SIRA's contrast."""

    name = "sira+flb"
