"""The loop guard: ends texts that repeat themselves again and again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import StoppingCriteria

from sira_cli.models.answering.texts import sentence_ends

# A text loops if a piece comes COPIES times in a row, and the copies have TOKENS tokens together. Among 10,000 captions
# of the bundled model, which all ended by themselves, some repeat a sentence three times, and one a word 22 times.
COPIES = 4
TOKENS = 32
LONGEST = 128  # tokens of a piece
RETRY_NGRAM = 4  # no_repeat_ngram_size of a second try
RETRIED = f"repeated itself: decoded again with no_repeat_ngram_size {RETRY_NGRAM}"


@dataclass(frozen=True)
class Loop:
    """The place of a loop in a text.

    Attributes:
        first: tokens up to the end of the first copy.
        end: tokens up to the point where the loop was certain.
    """

    first: int
    end: int


class LoopFinder:
    """Follows a text token by token, and finds a loop as soon as it has enough copies."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        # For each length of a piece: number of latest tokens that equal those one piece before.
        self._runs = [0] * (LONGEST + 1)

    def add(self, token: int) -> Loop | None:
        """Take the next token; return the loop that it completes, if any."""
        tokens, runs = self._tokens, self._runs
        found = None
        for length in range(1, min(LONGEST, len(tokens)) + 1):
            if tokens[-length] != token:
                runs[length] = 0
                continue
            runs[length] += 1
            copied = runs[length]
            if found is None and copied >= (COPIES - 1) * length and copied + length >= TOKENS:
                found = Loop(len(tokens) + 1 - copied, len(tokens) + 1)
        tokens.append(token)
        return found


def find_loop(tokens: Iterable[int]) -> Loop | None:
    """Return the first loop of a text; None if it has none."""
    finder = LoopFinder()
    return next((loop for token in tokens if (loop := finder.add(token)) is not None), None)


def first_copy(text: str, beginning: str) -> str:
    """Return a looping text up to the end of the sentence in which its first copy ends.

    Args:
        text: the whole text.
        beginning: the text up to the end of the first copy, which may be inside a sentence.
    """
    return text[: next((end for end in sentence_ends(text) if end >= len(beginning)), len(beginning))]


class LoopGuard(StoppingCriteria):
    """Ends looping texts of a batch of B; the others go on."""

    def __init__(self, before: Sequence[Sequence[int]]) -> None:
        """Guard texts whose first tokens, `before`, `generate` got with the prompts."""
        self._finders = [LoopFinder() for _ in before]
        for finder, tokens in zip(self._finders, before, strict=True):
            for token in tokens:
                finder.add(token)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: Any) -> torch.Tensor:
        """Called by `generate` after each token, `input_ids [B, S]`; return `[B]`, whether each text ends."""
        newest = input_ids[:, -1].tolist()
        ended = [finder.add(token) is not None for finder, token in zip(self._finders, newest, strict=True)]
        return torch.tensor(ended, device=input_ids.device)
