"""`m3id`: the image's part in each token, amplified as the text grows (Favero et al. 2024, arXiv:2403.14003)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sira_cli.core.rules import plausible
from sira_cli.methods.settings import setting
from sira_cli.methods.text_only import WithoutImage

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 80.0  # limit of decay * t: float32 cannot hold e^88


@dataclass(frozen=True)
class M3id(WithoutImage):
    """l + ((1 - g_t) / g_t) (l - l'), g_t = exp(-decay t), then APC; log-softmaxes l, and l' without the image.

    Its authors published no code. This is the rule of AvisC's code: t = 1 at the first token, and log-softmaxes.
    Other ports begin with t = 0, which leaves the first token unchanged, or use raw logits.
    """

    name = "m3id"
    decay: float = setting(0.02, "growth of the contrast from token to token", low=0)
    beta: float = setting(0.1, "plausibility cut-off", low=0, high=1, above_low=True)

    def rule(self, z: Tensor, z_contrast: Tensor, step: int) -> Tensor:
        """Apply the rule, with (1 - g) / g = exp(decay t) - 1."""
        strength = math.expm1(min(self.decay * step, LARGEST))
        full = z.log_softmax(dim=-1)
        contrast = z_contrast.log_softmax(dim=-1)
        return plausible(full + strength * (full - contrast), z, self.beta)
