"""How decoders combine the logits z of the full and z' of the contrast stream, `[..., V]` in float32."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

RULED_OUT = -1e30  # smaller than the logit of any token that may be picked


def contrast(z: Tensor, z_contrast: Tensor, alpha: float) -> Tensor:
    """Return (1 + alpha) z - alpha z' (paper, Eq. 4).

    A token that a model rules out by the smallest float (Chameleon) stays ruled out: with alpha > 1 both products would
    be infinite, and their difference NaN.
    """
    return (1 + alpha) * z.clamp(min=RULED_OUT) - alpha * z_contrast.clamp(min=RULED_OUT)


def plausible(scores: Tensor, z: Tensor, beta: float) -> Tensor:
    """Set scores to -inf where z is below max z + ln beta (APC; Li et al. 2023, arXiv:2210.15097)."""
    cut = z.max(dim=-1, keepdim=True).values + math.log(beta)  # [..., 1]
    return scores.masked_fill(z < cut, -math.inf)


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(p || q) in nats: log probabilities `[..., V]` -> float64 `[...]`. Terms with p = 0 count 0."""
    import torch

    log_p, log_q = log_p.double(), log_q.double()
    terms = torch.where(log_p.isneginf(), 0.0, log_p.exp() * (log_p - log_q))  # [..., V]
    return terms.sum(dim=-1).clamp(min=0)  # rounding can push the sum below 0
