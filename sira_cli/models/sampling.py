"""What is done to a method's logits before a token is picked: sampling, penalties, tokens that are ruled out.

A row's random numbers depend on the run's seed, the picture and the prompt alone: a text is the same alone, in a batch,
under Ray and after a resume, and two pictures, or two questions about one, have independent draws.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.generation.logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from sira_cli.core.rules import cut_off, newest_cut_off
from sira_cli.models.preset import Generation

if TYPE_CHECKING:
    from sira_cli.models.schema import FollowingText

_BITS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
_COLDEST = 1e-6  # below it, float32 overflows; only the best token is left long before


def derived_seed(seed: int, *of: str) -> int:
    """Return a seed of 63 bits that depends on `of`, such as a picture's hash and a prompt."""
    digest = hashlib.sha256(json.dumps([seed, *of]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class RowSampler(LogitsProcessor):
    """Leaves one token per row, drawn from the row's distribution with its next uniform number."""

    def __init__(self, seeds: Sequence[int], drawn: int = 0) -> None:
        """Begin texts of B rows with these seeds; the first `drawn` numbers of each are skipped."""
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        for _ in range(drawn):
            self._uniform()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores `[B, V]`, -inf except at the picked tokens, by inverting each row's cumulative sum."""
        return pick(scores, self._uniform())

    def _uniform(self) -> Tensor:
        """Return the next number of each row, `[B, 1]`."""
        numbers = [torch.rand((1,), generator=generator, dtype=torch.float64) for generator in self._generators]
        return torch.stack(numbers)


def pick(scores: Tensor, uniform: Tensor) -> Tensor:
    """Return scores `[B, V]`, -inf except at the tokens that numbers `[B, 1]` from 0 to 1 draw."""
    exact = torch.float64 if scores.device.type in ("cpu", "cuda") else torch.float32  # others may lack float64
    sums = scores.softmax(dim=-1, dtype=exact).cumsum(dim=-1)  # [B, V]
    total = sums[:, -1:]
    drawn = uniform.to(scores.device, exact) * total  # [B, 1]
    drawn = drawn.minimum(total.nextafter(torch.zeros_like(total)))  # rounding must not pass the last token
    picked = torch.searchsorted(sums, drawn, right=True)  # [B, 1]: the first token whose sum is larger
    return torch.full_like(scores, -torch.inf).scatter(1, picked, 0.0)


def sampler(seeds: Sequence[int], settings: Generation, drawn: int = 0) -> LogitsProcessorList:
    """Return processors that sample B rows with these seeds; `drawn` as `RowSampler`."""
    return LogitsProcessorList([*warpers(settings), RowSampler(seeds, drawn)])


def warpers(settings: Generation) -> LogitsProcessorList:
    """Return the processors of the distribution that tokens are drawn from, in the order of transformers."""
    processors = LogitsProcessorList([TemperatureLogitsWarper(max(settings.temperature, _COLDEST))])
    if settings.top_k:
        processors.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1:
        processors.append(TopPLogitsWarper(settings.top_p))
    if settings.min_p:
        processors.append(MinPLogitsWarper(settings.min_p))
    return processors


def processors_of(generation: Generation, attention_mask: torch.Tensor) -> LogitsProcessorList:
    """Return the processors for these settings, which count the prompt's tokens as in transformers, but no padding."""
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
        self._penalty = penalty
        self._padding = padding[:, None]

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        """Return `scores [B, V]` with those of all tokens in `input_ids [B, S]` made smaller."""
        columns = torch.arange(input_ids.shape[1], device=input_ids.device)
        counted = columns >= self._padding.to(input_ids.device)  # [B, S]
        seen = torch.zeros_like(scores).scatter_add(1, input_ids, counted.to(scores.dtype)) > 0  # [B, V]
        smaller = torch.where(scores < 0, scores * self._penalty, scores / self._penalty)
        return torch.where(seen, smaller, scores)


class NoRepeatedNgrams(NoRepeatNGramLogitsProcessor):
    """Forbids tokens that would repeat an n-gram, unless a method's cut-off leaves no other token."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        """Return `scores [B, V]` with -inf at forbidden tokens; `input_ids [B, S]` are all tokens so far."""
        allowed = super().__call__(input_ids, scores)
        nothing_left = (allowed == -torch.inf).all(dim=-1, keepdim=True)  # [B, 1]
        return torch.where(nothing_left, scores, allowed)


def masked(texts: Sequence[FollowingText | None], scores: Tensor) -> Tensor:
    """Rule out the tokens that break each text's schema, as `without` does.

    Args:
        texts: B texts so far; None: without a schema.
        scores: `[B, V]`.
    """
    allowed = [None if text is None else text.allowed() for text in texts]
    if not any(allowed):
        return scores
    ruled_out = torch.zeros_like(scores, dtype=torch.bool)  # [B, V]
    size = scores.shape[1]
    for row, packed in enumerate(allowed):
        if packed is not None:
            numbers = torch.frombuffer(bytearray(packed), dtype=torch.uint8)  # [W], a bit per token
            bits = numbers[:, None].to(scores.device) & _BITS.to(scores.device)  # [W, 8]
            missing = max(0, size - bits.numel())
            ruled_out[row] = F.pad(bits.flatten() == 0, (0, missing), value=True)[:size]
    return without(scores, ruled_out)


class SchemaMask(LogitsProcessor):
    """Lets B texts of `generate` follow their schemas."""

    def __init__(self, texts: Sequence[FollowingText | None], prompt: int) -> None:
        """Begin the texts after `prompt` columns."""
        self._texts = texts
        self._read = prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return `scores [B, V]` with -inf at tokens that may not follow; `input_ids [B, S]` are all tokens so far."""
        for text, new in zip(self._texts, input_ids[:, self._read :].tolist(), strict=True):
            if text is not None:
                for token in new:
                    text.add(token)
        self._read = input_ids.shape[1]
        return masked(self._texts, scores)


def without(scores: Tensor, ruled_out: Tensor) -> Tensor:
    """Return scores `[B, V]` with -inf at tokens that are ruled out; a cut-off that leaves none is applied again."""
    left = scores.masked_fill(ruled_out, -math.inf)
    newest = newest_cut_off()
    if newest is None:
        return left
    before, z = uncut(scores)
    again = cut_off(before.masked_fill(ruled_out, -math.inf), z.masked_fill(ruled_out, -math.inf), newest.beta)
    nothing_left = (left == -math.inf).all(dim=-1, keepdim=True)  # [B, 1]
    return torch.where(nothing_left, again, left)


def uncut(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return a method's scores `[B, V]` before its cut-off, and the logits it goes by; without one, twice `scores`."""
    newest = newest_cut_off()
    if newest is None:
        return scores, scores
    rows = len(scores)
    return newest.scores[:rows].to(scores.device), newest.z[:rows].to(scores.device)
