"""Models that write what a test has planned: a real model under its method, whose logits a processor raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor

from sira_cli.models import model

MARGIN = 1000.0


def written(tokenizer, text: str) -> list[int]:
    """The tokens of a planned text, markers and end token written out in it."""
    return tokenizer.encode(text, add_special_tokens=False)


class Script(LogitsProcessor):
    """Raises the logit of the planned token of each row; behind the plan, texts go on as the model has them."""

    def __init__(self, prompt: int, plans: Sequence[Sequence[int]]) -> None:
        self.prompt, self.plans = prompt, plans

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step, scores = input_ids.shape[1] - self.prompt, scores.clone()
        for row, plan in enumerate(self.plans):
            if step < len(plan):
                scores[row, plan[step]] += MARGIN
        return scores


def script(monkeypatch: pytest.MonkeyPatch, plan: Callable[[int], Sequence[int]]) -> None:
    """Have every model write what `plan` returns for the number of tokens of its prompt, padding not counted."""
    real = model.processors_of

    def processors(generation, attention_mask):
        plans = [plan(length) for length in attention_mask.sum(dim=1).tolist()]
        found = real(generation, attention_mask)
        found.insert(0, Script(attention_mask.shape[1], plans))
        return found

    monkeypatch.setattr(model, "processors_of", processors)
    torch.manual_seed(0)
