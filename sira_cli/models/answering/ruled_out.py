"""Tokens that may not be picked, next to a method's own cut-off."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sira_cli.core.rules import cut_off, newest_cut_off


def without(scores: Tensor, ruled_out: Tensor) -> Tensor:
    """Return scores `[B, V]` with -inf at tokens that are ruled out (bool `[B, V]`).

    If a method's cut-off leaves no other token, it is applied to the other tokens alone.
    """
    left = scores.masked_fill(ruled_out, -math.inf)
    if (own := newest_cut_off()) is not None:
        uncut, z, beta = own
        count = len(scores)
        uncut, z = (each[:count].to(scores.device).masked_fill(ruled_out, -math.inf) for each in (uncut, z))
        nothing_left = (left == -math.inf).all(dim=-1, keepdim=True)  # [B, 1]
        left = torch.where(nothing_left, cut_off(uncut, z, beta), left)
    return left


def plain(scores: Tensor) -> Tensor:
    """Return the full stream's logits `[B, V]` that a method's cut-off goes by; its scores without a cut-off."""
    own = newest_cut_off()
    return scores if own is None else own[1][: len(scores)].to(scores.device)


def uncut(scores: Tensor) -> Tensor:
    """Return a method's scores `[B, V]` before its cut-off; the same ones without a cut-off."""
    own = newest_cut_off()
    return scores if own is None else own[0][: len(scores)].to(scores.device)
