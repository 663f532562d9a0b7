"""Settings against repetition, as in transformers: processors of the method's logits."""

from __future__ import annotations

import torch
from transformers import LogitsProcessor, LogitsProcessorList, NoRepeatNGramLogitsProcessor

from sira_cli.models.loading.preset_parts import Generation


def processors_of(generation: Generation, attention_mask: torch.Tensor) -> LogitsProcessorList:
    """Return the processors for these settings; empty if they are off.

    `generate` applies them to the model's output, which is the contrast. They also count the prompt's tokens, as in
    transformers, but not its padding in a batch.
    """
    processors = LogitsProcessorList()
    if generation.repetition_penalty != 1:
        padding = (attention_mask == 0).sum(dim=1).repeat_interleave(generation.num_beams)
        processors.append(RepetitionPenalty(generation.repetition_penalty, padding))
    if generation.no_repeat_ngram_size:
        processors.append(NoRepeatedNgrams(generation.no_repeat_ngram_size))
    return processors


class RepetitionPenalty(LogitsProcessor):
    """That of transformers, which looks past padding from 5.23 on only."""

    def __init__(self, penalty: float, padding: torch.Tensor) -> None:
        self._penalty, self._padding = penalty, padding[:, None]

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        """Return `scores [B, V]` with those of all tokens in `input_ids [B, S]` made smaller."""
        here = torch.arange(input_ids.shape[1], device=input_ids.device) >= self._padding.to(input_ids.device)
        seen = torch.zeros_like(scores).scatter_add(1, input_ids, here.to(scores.dtype)) > 0
        return torch.where(seen, torch.where(scores < 0, scores * self._penalty, scores / self._penalty), scores)


class NoRepeatedNgrams(NoRepeatNGramLogitsProcessor):
    """Forbids tokens that would repeat an n-gram, unless a method's cut-off leaves no other token."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        """Return `scores [B, V]` with -inf at forbidden tokens; `input_ids [B, S]` are all tokens so far."""
        allowed = super().__call__(input_ids, scores)
        nothing_left = (allowed == -torch.inf).all(dim=-1, keepdim=True)  # [B, 1]
        return torch.where(nothing_left, scores, allowed)
