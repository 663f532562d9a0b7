"""Models that write what a test has planned: a real model under its method, whose logits a processor raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from sira_cli.models import model

MARGIN = 1000.0


def written(tokenizer, text: str) -> list[int]:
    """The tokens of a planned text, markers and end token written out in it."""
    return tokenizer.encode(text, add_special_tokens=False)


def script(monkeypatch: pytest.MonkeyPatch, plan: Callable[[int], Sequence[int]]) -> None:
    """Have every model write what `plan` returns for the number of tokens of its prompt, padding not counted."""
    real = model.processors_of

    def processors(generation, attention_mask):
        plans = [plan(length) for length in attention_mask.sum(dim=1).tolist()]

        def raised(input_ids: Tensor, scores: Tensor) -> Tensor:
            """Raise the logit of the planned token of each row; behind the plan, texts go on as the model has them."""
            step, scores = input_ids.shape[1] - attention_mask.shape[1], scores.clone()
            for row, planned in enumerate(plans):
                if step < len(planned):
                    scores[row, planned[step]] += MARGIN
            return scores

        found = real(generation, attention_mask)
        found.insert(0, raised)
        return found

    monkeypatch.setattr(model, "processors_of", processors)
    torch.manual_seed(0)
