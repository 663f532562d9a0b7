"""SIRA's greedy decoding of one prompt, compared with the slow reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sira_cli.core import reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.forward_pass import Step
from sira_cli.core.rules import RULED_OUT

TOLERANCE = 1e-4  # of the largest logit, in float32
ROUNDINGS = 4  # of it, in the precision of the weights


@dataclass(frozen=True)
class Compared:
    """The result of a comparison.

    Attributes:
        tokens: number of tokens compared, on SIRA's own text.
        equal_tokens: whether the reference always picks the same token, or one whose logit is equal within the limit.
        worst_full, worst_cf: largest difference of logits in the two streams.
        limit: largest difference allowed, by the precision and the size of the logits.
        gap: largest difference between the two streams.
    """

    tokens: int
    equal_tokens: bool
    worst_full: float
    worst_cf: float
    limit: float
    gap: float

    @property
    def verdict(self) -> str:
        """`exact`: as Algorithm 1, up to rounding; `not exact`; or `not proven`: nothing was compared.

        Nothing is compared if logits are not finite, or both streams are equal: late layers do not read the image.
        """
        if not all(map(math.isfinite, (self.worst_full, self.worst_cf, self.limit, self.gap))):
            return "not proven"
        if not self.equal_tokens or max(self.worst_full, self.worst_cf) > self.limit:
            return "not exact"
        return "exact" if self.gap > self.limit else "not proven"


def compare(
    prompt: reference.Prompt,
    config: SiraConfig,
    tokens: Sequence[int],
    steps: Sequence[Step],
    dtype: torch.dtype,
) -> Compared:
    """Compare SIRA's decoding with the reference on the same text."""
    assert config.k is not None
    slow = reference.decode(prompt, config.k, config.alpha, len(steps), follow=tokens, beta=config.beta)
    full, cf = torch.cat([step.full for step in steps]), torch.cat([step.cf for step in steps])  # [T, V]
    shown = torch.stack([slow.full, slow.cf])
    shown = shown[shown > RULED_OUT]
    largest = float(shown.abs().max()) if len(shown) else math.nan
    limit = max(TOLERANCE, ROUNDINGS * torch.finfo(dtype).eps) * largest
    same = all(
        token == picked or _tied(one, other, token, picked, config, limit)
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


def _tied(full: Tensor, cf: Tensor, one: int, other: int, config: SiraConfig, limit: float) -> bool:
    """Return whether rounding alone may decide between two tokens, by both streams' logits `[V]`."""
    if config.beta is not None:
        cut = float(full.max()) + math.log(config.beta)
        if float(full[one]) < cut - 2 * limit:
            return False
        if other != int(full.argmax()) and abs(float(full[other]) - cut) <= 2 * limit:
            return True  # rounding decides whether it is cut off
    contrast: Any = (1 + config.alpha) * full - config.alpha * cf
    return abs(float(contrast[one] - contrast[other])) <= 2 * (1 + 2 * config.alpha) * limit
