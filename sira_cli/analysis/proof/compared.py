"""SIRA's greedy decoding of one prompt, compared with the slow reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sira_cli.core import reference
from sira_cli.core.forward_pass import Step
from sira_cli.core.rules import RULED_OUT

TOLERANCE = 1e-4  # of the largest logit, in float32
ROUNDINGS = 4  # of it, in the precision of the weights


@dataclass(frozen=True)
class Compared:
    """The result of a comparison.

    Attributes:
        tokens: compared, one after the other on SIRA's own text.
        equal_tokens: whether the reference picks the same one each time, or another whose logit is as large up to the
            limit.
        worst_full, worst_cf: largest difference of logits in the two streams.
        limit: largest difference allowed, by the precision and the size of the logits.
        gap: largest difference between the two streams: with nothing there, nothing was compared.
    """

    tokens: int
    equal_tokens: bool
    worst_full: float
    worst_cf: float
    limit: float
    gap: float

    @property
    def exact(self) -> bool:
        """Whether SIRA decodes as in Algorithm 1, up to rounding."""
        return self.equal_tokens and max(self.worst_full, self.worst_cf) <= self.limit < self.gap


def compare(
    prompt: reference.Prompt, k: int, alpha: float, tokens: Sequence[int], steps: Sequence[Step], dtype: torch.dtype
) -> Compared:
    """Compare SIRA's decoding with the reference on the same text.

    Args:
        prompt: the model and its inputs.
        k, alpha: of SIRA.
        tokens: that it has picked, T.
        steps: the logits that they were picked from, T.
        dtype: the precision of the weights.
    """
    slow = reference.decode(prompt, k, alpha, len(steps), follow=tokens)
    full, cf = torch.cat([step.full for step in steps]), torch.cat([step.cf for step in steps])  # [T, V]
    shown = torch.stack([slow.full, slow.cf])
    shown = shown[shown > RULED_OUT]
    limit = max(TOLERANCE, ROUNDINGS * torch.finfo(dtype).eps) * float(shown.abs().max())
    same = all(
        token == picked or _tied(one, other, token, picked, alpha, limit)
        for token, picked, one, other in zip(tokens, slow.tokens, slow.full, slow.cf, strict=False)
    )
    return Compared(
        len(steps),
        same,
        float((full - slow.full).abs().max()),
        float((cf - slow.cf).abs().max()),
        limit,
        float((slow.full - slow.cf).abs().max()),
    )


def _tied(full: Tensor, cf: Tensor, one: int, other: int, alpha: float, limit: float) -> bool:
    """Return whether rounding alone may decide between two tokens: logits `[V]` of both streams."""
    contrast: Any = (1 + alpha) * full - alpha * cf
    return abs(float(contrast[one] - contrast[other])) <= 2 * (1 + 2 * alpha) * limit
