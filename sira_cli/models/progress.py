"""Texts in progress: their starts, their trail for later starts, pieces of text, scores of words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria
from transformers.cache_utils import DynamicCache
from transformers.generation.streamers import BaseStreamer

from sira_cli.core.cache import cut_back
from sira_cli.core.families import position_state
from sira_cli.core.passes import followed
from sira_cli.core.rules import contrast
from sira_cli.core.streams import Step
from sira_cli.models.reasoning import Parsing, ReasoningParser
from sira_cli.models.texts import Answer


@dataclass(frozen=True)
class Start:
    """The beginning of B texts."""

    tokens: Sequence[Sequence[int]]  # the first tokens of each text, which then continues
    in_inputs: int = 0  # number of them that are already in the inputs of `generate`, after the prompts
    cache: DynamicCache | None = None  # of all but the last column of the inputs of `generate`; None: empty
    processors: Sequence[LogitsProcessor] = ()  # besides the settings'
    stopping: Sequence[StoppingCriteria] = ()  # besides the settings'
    new_tokens: int | None = None  # maximum of a text, the first ones included; None: from the settings


class Trail:
    """A method's computations to go back to: a cache of some rows of a batch, and the decoded tokens of each."""

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = list(rows)
        self.cache: DynamicCache | None = None
        self.texts: list[list[int]] = [[] for _ in rows]
        self._model: Any = None
        self._positions: list[tuple[Any, str, Any]] = []  # the model's state outside the cache

    def begin(self, model: Any, cache: DynamicCache | None) -> DynamicCache:
        """Return the cache for decoding to fill: that of its start, or a new one."""
        self._model = model
        self.cache = cache or DynamicCache(config=model.config.get_text_config(decoder=True))
        return self.cache

    def end(self, texts: list[list[int]]) -> None:
        """Keep the decoded tokens, and the model's state outside the cache."""
        self.texts = texts
        self._positions = []
        if self._model is not None:
            for module, name in position_state(self._model):
                self._positions.append((module, name, getattr(module, name)))

    def back(self, inputs: Any, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> tuple[Any, Start] | None:
        """Return inputs and a start that continue texts; None if the cache does not have their beginnings.

        Args:
            inputs: of all prompts of the batch.
            rows: the batch's rows whose texts are continued; one may come several times.
            tokens: the beginning of each of these texts.
        """
        places = [self.rows.index(row) for row in rows]
        for place, beginning in zip(places, tokens, strict=True):
            if self.texts[place][: len(beginning)] != list(beginning):
                return None
        if self.cache is None:
            return None
        shortest = min(map(len, tokens))
        ids: Tensor = inputs["input_ids"]
        index = torch.tensor(places, device=ids.device)
        cache = cut_back(self.cache, index, ids.shape[1] + shortest - 1)
        if cache is None:
            return None
        for module, name, value in self._positions:
            setattr(module, name, value[index] if isinstance(value, Tensor) else value)
        per_token = {name: value[list(rows)] for name, value in inputs.items() if value.shape == ids.shape}
        continued = followed(self._model, per_token, [beginning[:shortest] for beginning in tokens])
        return continued, Start(tokens, shortest, cache)


class NewTokens(BaseStreamer):
    """Passes on the new tokens of a step, once they are known."""

    def __init__(self, on_tokens: Callable[[list[int]], None]) -> None:
        self._on_tokens = on_tokens
        self._in_prompt = True

    def put(self, value: torch.Tensor) -> None:
        """Called by `generate` with the prompt, then with each token."""
        if not self._in_prompt:
            self._on_tokens(value.tolist())
        self._in_prompt = False

    def end(self) -> None:
        """Called by `generate` at the end."""


class TextPieces(NewTokens):
    """Passes on the certain part of a text (B = 1), without its reasoning."""

    def __init__(self, parsing: Parsing, on_text: Callable[[str], None]) -> None:
        super().__init__(lambda tokens: self._tell(tokens[:1], final=False))
        self._parsing = parsing
        self._on_text = on_text
        self._text = ""  # already passed on
        self._retracted = 0

    def end(self) -> None:
        """Called by `generate` at the end."""
        self._tell([], final=True)

    def _tell(self, tokens: list[int], *, final: bool) -> None:
        for token in tokens:
            self._parsing.add(token)
        parsed = self._parsing.parsed(final=final)
        if parsed.retracted > self._retracted:  # text already passed on cannot be taken back: the answer follows it
            self._text = ""
            self._retracted = parsed.retracted
        if len(parsed.text) > len(self._text):
            self._on_text(parsed.text[len(self._text) :])
            self._text = parsed.text


def token_scores(picked: Tensor, full: Tensor, cf: Tensor, alpha: Any) -> Tensor:
    """Return both scores of tokens, whichever method picked them: z_full - z_cf, and log p under the contrast `[B, 2]`.

    Args:
        picked: their ids `[B, 1]`.
        full, cf: the logits of both streams `[B, V]`.
        alpha: the strength of the contrast, a number or `[B, 1]`.
    """
    delta = (full.gather(1, picked) - cf.gather(1, picked)).nan_to_num()
    logprob = contrast(full, cf, alpha).log_softmax(dim=-1).gather(1, picked)
    return torch.cat([delta, logprob], dim=1)


class WordScores:
    """The words of B running texts, with two scores each.

    `delta` is the sum of z_full - z_cf over a word's tokens: how much late access to the image raises its logits.
    `grounding` is the probability of the word under the contrast, the product over its tokens; synonyms also lower it.
    """

    def __init__(self, parser: ReasoningParser, alpha: float, *, skip_thought: bool = False) -> None:
        self._parser = parser
        self._alpha = alpha
        self._skip_thought = skip_thought
        self._tokens: list[Sequence[int]] = []  # of B texts at each step, as the others
        self._deltas: list[list[float]] = []
        self._logprobs: list[list[float]] = []

    def add(self, tokens: Sequence[int], step: Step) -> None:
        """Take the next token of each text, and the logits `[B, V]` from which it was picked."""
        picked = torch.tensor(list(tokens), device=step.full.device)[:, None]
        self.add_scores(tokens, token_scores(picked, step.full, step.cf, self._alpha).tolist())

    def add_scores(self, tokens: Sequence[int], scores: Sequence[Sequence[float]]) -> None:
        """Take the next token of each text, with its `token_scores`."""
        self._tokens.append(tokens)
        self._deltas.append([delta for delta, _ in scores])
        self._logprobs.append([logprob for _, logprob in scores])

    def added_to(self, row: int, answer: Answer) -> Answer:
        """Return the answer of one text with the scores of its words."""
        words = self.words(row, answer.output_tokens)
        return replace(answer, words=[word for word in words if word["end"] <= len(answer.text)])

    def words(self, row: int, length: int) -> list[dict[str, Any]]:
        """Return the words of one text of `length` tokens, without its reasoning."""
        tokens = [step[row] for step in self._tokens[:length]]
        words = []
        for word in self._parser.words(tokens, skip_thought=self._skip_thought):
            steps = slice(word.first, word.last)
            scored = {
                "word": word.text,
                "start": word.start,
                "end": word.end,
                "steps": [word.first, word.last],
                "delta": sum(step[row] for step in self._deltas[steps]),
                "grounding": math.exp(sum(step[row] for step in self._logprobs[steps])),
            }
            words.append(scored)
        return words
