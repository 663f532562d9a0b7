"""Starts of decoding other than an empty text, and the trail of a decoding for later starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria
from transformers.cache_utils import DynamicCache

from sira_cli.core.cache import cut_back
from sira_cli.core.forcing import followed
from sira_cli.core.positions import position_state


@dataclass(frozen=True)
class Start:
    """The beginning of B texts.

    Attributes:
        tokens: the first tokens of each text, which then continues.
        in_inputs: number of them that are already in the inputs of `generate`, after the prompts.
        cache: keys and values of all but the last column of the inputs of `generate`; None: empty.
        processors, stopping: logits processors and stopping criteria, besides the settings.
        new_tokens: maximum tokens of a text, the first ones included; None: from the settings.
    """

    tokens: Sequence[Sequence[int]]
    in_inputs: int = 0
    cache: DynamicCache | None = None
    processors: Sequence[LogitsProcessor] = ()
    stopping: Sequence[StoppingCriteria] = ()
    new_tokens: int | None = None

    @classmethod
    def at_nothing(cls, rows: int) -> Start:
        """Return the start of `rows` empty texts."""
        return cls([[]] * rows)


class Trail:
    """A method's computations for prompts and their texts, to go back to.

    Attributes:
        cache: reusable keys and values, or None.
        rows: the rows of the batch's prompts that it contains.
        texts: the decoded tokens of each.
    """

    def __init__(self, rows: Sequence[int]) -> None:
        """Begin an empty trail of some rows."""
        self.rows = list(rows)
        self.cache: DynamicCache | None = None
        self.texts: list[list[int]] = [[] for _ in rows]
        self._model: Any = None

    def begin(self, model: Any, cache: DynamicCache | None) -> DynamicCache:
        """Return the cache for decoding to fill: that of its start, or a new one."""
        self._model = model
        self.cache = cache or DynamicCache(config=model.config.get_text_config(decoder=True))
        return self.cache

    def end(self, texts: list[list[int]]) -> None:
        """Keep the decoded tokens, and the model's state outside the cache."""
        self.texts = texts
        state = () if self._model is None else position_state(self._model)
        self._positions = [(module, name, getattr(module, name)) for module, name in state]

    def back(self, inputs: Any, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> tuple[Any, Start] | None:
        """Return inputs and a start that continue texts after given tokens; None if the cache does not have them."""
        places = [self.rows.index(row) for row in rows]
        if self.cache is None or any(
            self.texts[place][: len(kept)] != list(kept) for place, kept in zip(places, tokens, strict=True)
        ):
            return None
        shortest = min(map(len, tokens))
        ids: Tensor = inputs["input_ids"]
        index = torch.tensor(places, device=ids.device)
        cache = cut_back(self.cache, index, ids.shape[1] + shortest - 1)
        if cache is None:
            return None
        for module, name, value in self._positions:
            setattr(module, name, value[index] if isinstance(value, Tensor) else value)
        own = {name: value[list(rows)] for name, value in inputs.items() if value.shape == ids.shape}
        return followed(self._model, own, [kept[:shortest] for kept in tokens]), Start(tokens, shortest, cache)
