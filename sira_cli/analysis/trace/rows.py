"""From the logits of one decoding step to the numbers of a token line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sira_cli.core.forward_pass import VIEWS, Step
from sira_cli.core.rules import kl_divergence
from sira_cli.models.vocabulary import Vocabulary


class StepRows:
    """The three views of one step of one picture; `step` holds logits `[1, V]`."""

    def __init__(self, step: Step, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._logits = torch.cat([step.full, step.cf, step.contrast])  # [3, V]
        self._logprobs = self._logits.log_softmax(dim=-1)

    @property
    def logits(self) -> Tensor:
        """float32 `[3, V]`, in the order of `VIEWS`."""
        return self._logits

    def rows(self, tokens: Sequence[int]) -> list[dict[str, Any]]:
        """Describe each token in all views: logit, logprob, rank (1 + number of larger logits)."""
        ids = torch.tensor(list(tokens), device=self._logits.device)
        logits, logprobs = self._logits[:, ids], self._logprobs[:, ids]  # [3, n]
        ranks = 1 + torch.stack([(self._logits > logit[:, None]).sum(dim=1) for logit in logits.T], dim=1)
        columns = zip(logits.T.tolist(), logprobs.T.tolist(), ranks.T.tolist(), strict=True)
        return [
            self._vocabulary.describe(token)
            | {
                view: {"logit": _finite(logit), "logprob": _finite(logprob), "rank": rank}
                for view, logit, logprob, rank in zip(VIEWS, *column, strict=True)
            }
            for token, column in zip(tokens, columns, strict=True)
        ]

    def top(self, count: int) -> list[int]:
        """Return the union of each view's `count` best tokens, by contrast logit."""
        best = torch.unique(self._logits.topk(min(count, self._logits.shape[1])).indices)
        ordered: list[int] = best[self._logits[2, best].argsort(descending=True, stable=True)].tolist()
        return ordered

    def delta(self, token: int) -> float:
        """Return z_full - z_cf of a token."""
        full, cf, _ = self._logits[:, token].tolist()
        return _finite(full) - _finite(cf)

    def kl(self) -> float:
        """Return KL(full || cf) in nats."""
        return float(kl_divergence(self._logprobs[0], self._logprobs[1]))


def _finite(value: float) -> float:
    """Replace the infinite logit of a suppressed token by the most negative float32: JSON has no infinity."""
    return max(value, torch.finfo(torch.float32).min)
