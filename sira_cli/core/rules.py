"""How decoders combine the logits z of the full and z' of the contrast stream, `[..., V]` in float32."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

RULED_OUT = -1e30  # smaller than the logit of any token that may be picked


_cut_offs = local()  # `kept`: the `CutOff` of this thread's latest `plausible` call; absent: it is not kept


class CutOff(NamedTuple):
    """The arguments of `plausible`."""

    scores: Tensor  # [..., V]
    z: Tensor  # [..., V]
    beta: float


def contrast(z: Tensor, z_contrast: Tensor, alpha: float) -> Tensor:
    """Return (1 + alpha) z - alpha z' (paper, Eq. 4).

    A token that a model rules out by the smallest float (Chameleon) stays ruled out: with alpha > 1 both products would
    be infinite, and their difference NaN.
    """
    return (1 + alpha) * z.clamp(min=RULED_OUT) - alpha * z_contrast.clamp(min=RULED_OUT)


def plausible(scores: Tensor, z: Tensor, beta: float) -> Tensor:
    """Set scores to -inf where z is below max z + ln beta (APC; Li et al. 2023, arXiv:2210.15097)."""
    if hasattr(_cut_offs, "kept"):
        _cut_offs.kept = CutOff(scores, z, beta)
    return cut_off(scores, z, beta)


def cut_off(scores: Tensor, z: Tensor, beta: float) -> Tensor:
    """Return the same as `plausible`, which is not kept as the method's own."""
    cut = z.max(dim=-1, keepdim=True).values + math.log(beta)  # [..., 1]
    return scores.masked_fill(z < cut, -math.inf)


@contextmanager
def cut_offs_kept() -> Iterator[None]:
    """Keep the arguments of the newest `plausible` inside this context."""
    _cut_offs.kept = None
    try:
        yield
    finally:
        del _cut_offs.kept


def newest_cut_off() -> CutOff | None:
    """Return the arguments of the newest `plausible`; None without one, or outside `cut_offs_kept`."""
    return getattr(_cut_offs, "kept", None)


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(p || q) in nats: log probabilities `[..., V]` -> float64 `[...]` on the CPU; p = 0 counts 0."""
    import torch

    log_p = log_p.cpu().double()  # Apple's GPUs have no float64
    log_q = log_q.cpu().double()
    terms = torch.where(log_p.isneginf(), 0.0, log_p.exp() * (log_p - log_q))  # [..., V]
    return terms.sum(dim=-1).clamp(min=0)  # rounding can push the sum below 0
