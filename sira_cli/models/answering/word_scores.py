"""Scores of how much the picture supports a word, from both streams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from sira_cli.core.forward_pass import Step
from sira_cli.core.rules import contrast
from sira_cli.models.answering.reasoning import ReasoningParser


class WordScores:
    """The words of B running texts, with two scores each.

    `delta` is the sum of z_full - z_cf over a word's tokens: how much late access to the image raises its logits.
    `grounding` is the probability of the word under the contrast, the product over its tokens: how likely it stays
    once the language prior is discounted. A low value means that the model is not sure that the picture shows this
    word rather than another; it is evidence, not proof, and synonyms also lower it.
    """

    def __init__(self, parser: ReasoningParser, alpha: float, *, at_once: bool = False) -> None:
        self._parser, self._alpha, self._at_once = parser, alpha, at_once
        self._tokens: list[list[int]] = []  # a list of B for each step
        self._deltas: list[list[float]] = []
        self._logprobs: list[list[float]] = []

    def add(self, tokens: Sequence[int], step: Step) -> None:
        """Take the next token of each text, and the logits `[B, V]` from which it was picked."""
        picked = torch.tensor(list(tokens), device=step.full.device)[:, None]
        z_cd = contrast(step.full, step.cf, self._alpha)  # for any method that picked the token
        delta = (step.full.gather(1, picked) - step.cf.gather(1, picked)).nan_to_num()
        logprob = z_cd.log_softmax(dim=-1).gather(1, picked)
        self._tokens.append(list(tokens))
        self._deltas.append(delta[:, 0].tolist())
        self._logprobs.append(logprob[:, 0].tolist())

    def words(self, row: int, length: int) -> list[dict[str, Any]]:
        """Return the words of one text of `length` tokens, without its reasoning."""
        found = self._parser.words([tokens[row] for tokens in self._tokens[:length]], at_once=self._at_once)
        return [
            {
                "word": word.text,
                "start": word.start,
                "end": word.end,
                "steps": [word.first, word.last],
                "delta": sum(deltas[row] for deltas in self._deltas[word.first : word.last]),
                "grounding": math.exp(sum(logprobs[row] for logprobs in self._logprobs[word.first : word.last])),
            }
            for word in found
        ]
