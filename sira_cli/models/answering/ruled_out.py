"""Tokens that may not be picked, next to a method's own cut-off."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sira_cli.core.rules import newest_cut_off, plausible


def without(scores: Tensor, ruled_out: Tensor) -> Tensor:
    """Return scores `[B, V]` with -inf at tokens that are ruled out (bool `[B, V]`).

    If a method's cut-off leaves no other token, it is applied to the other tokens alone.
    """
    left = scores.masked_fill(ruled_out, -math.inf)
    if (cut_off := newest_cut_off()) is not None:
        uncut, z, beta = cut_off
        count = len(scores)
        uncut, z = (each[:count].to(scores.device).masked_fill(ruled_out, -math.inf) for each in (uncut, z))
        nothing_left = (left == -math.inf).all(dim=-1, keepdim=True)  # [B, 1]
        left = torch.where(nothing_left, plausible(uncut, z, beta), left)
    return left


def uncut(scores: Tensor) -> Tensor:
    """Return a method's scores `[B, V]` before its cut-off; the same ones without a cut-off."""
    cut_off = newest_cut_off()
    return scores if cut_off is None else cut_off[0][: len(scores)].to(scores.device)
