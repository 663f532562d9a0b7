"""A prompt's rows up to its last image row, computed once, and many texts that follow them.

    [ text ... image ]   one pass, into a cache               p rows
    [ tail 1         ]   each tail reads the same p rows,     one batch, a few rows each
    [ tail 2 ...     ]   at the positions that follow them

Text after the picture then costs a few rows instead of another prompt. That is exact if rows see only earlier rows, as
in every supported family except PaliGemma.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache

from sira_cli.core.arguments import CACHE
from sira_cli.core.cache import full_stream, repeat_text
from sira_cli.core.positions import position_state, positions_kept
from sira_cli.core.upstream import position_ids

# Families whose prompt rows see each other in both directions: text after the picture changes the picture's rows.
BIDIRECTIONAL = ("paligemma",)
AT_ONCE = 8  # tails that share a pass; each holds a copy of the prefix's keys and values


class ImagePrefix:
    """The first rows of one prompt, in their own cache.

    Attributes:
        length: p, number of rows.
    """

    @torch.no_grad()
    def __init__(
        self, model: Any, inputs: Mapping[str, Tensor], length: int, cache: DynamicCache | None = None
    ) -> None:
        """Compute the rows, unless they are given.

        Args:
            model: a Hugging Face LVLM.
            inputs: the processor's output for one picture and prompt, `input_ids [1, S]`, without padding, on the
                model's device.
            length: p, the number of first rows, all image rows included.
            cache: their keys and values, which are not changed; None: computed here.
        """
        ids = inputs["input_ids"]
        self.length = length
        self._model = model
        self._inputs = {
            name: value[:, :length] if value.shape == ids.shape else value for name, value in inputs.items()
        }
        self._position_state = position_state(model)
        self._cache = cache or DynamicCache(config=model.config.get_text_config(decoder=True))
        if cache is not None:
            return
        with positions_kept(self._position_state):
            positions = self._positions(0)
            more = {} if positions is None else {"position_ids": positions}
            model(**self._inputs, **more, **{CACHE: self._cache}, use_cache=True, logits_to_keep=1)

    @classmethod
    def of(
        cls, model: Any, inputs: Mapping[str, Tensor], image: Tensor, row: int, cache: Cache, place: int
    ) -> ImagePrefix | None:
        """Take the first rows of a prompt from the cache it was decoded with; None if the cache no longer has them.

        Args:
            model: as above.
            inputs: model inputs of B prompts, left-padded.
            image: `[B, S]` bool, P_img.
            row: number of the prompt.
            cache: filled by `generate`, with a fork or without.
            place: number of the prompt's text in the cache.
        """
        if model.config.model_type in BIDIRECTIONAL:
            return None
        ids = inputs["input_ids"]
        first = int(ids.shape[1] - inputs["attention_mask"][row].sum())
        last = int(image[row].nonzero().max()) + 1
        rows = full_stream(cache, place, first, last)
        if rows is None:
            return None
        own = {
            name: value[row : row + 1, first:] if value.shape == ids.shape else value[row : row + 1]
            for name, value in inputs.items()
            if len(value) == len(ids) and not value.is_floating_point()  # no samples: only positions are still needed
        }
        return cls(model, own, last - first, rows)

    @property
    def ids(self) -> Tensor:
        """The rows' tokens `[p]`."""
        return self._inputs["input_ids"][0]

    @torch.no_grad()
    def last_logits(self, tails: Sequence[Sequence[int]]) -> Tensor:
        """Return the logits after each tail, as if it followed the prefix alone: `[Q, V]` float32.

        Args:
            tails: Q lists of at least one token id each, without image tokens.
        """
        parts = [self._pass(tails[first : first + AT_ONCE]) for first in range(0, len(tails), AT_ONCE)]
        return torch.cat(parts)

    def _pass(self, tails: Sequence[Sequence[int]]) -> Tensor:
        device = self._inputs["input_ids"].device
        longest = max(map(len, tails))
        # Padded on the right: no row sees later rows.
        ids = torch.tensor([[*tail, *[0] * (longest - len(tail))] for tail in tails], device=device)  # [Q, T]
        ends = sorted({len(tail) - 1 for tail in tails})  # a list works with hidden states on any device
        cache = copy.deepcopy(self._cache)
        repeat_text(cache, len(tails))
        with positions_kept(self._position_state):
            positions = self._positions(longest)
            more = {}
            if positions is not None:
                own = positions[..., self.length :]
                more["position_ids"] = own.expand(*own.shape[:-2], len(tails), longest)
            logits = self._model(
                input_ids=ids, **more, **{CACHE: cache}, use_cache=True, logits_to_keep=ends
            ).logits  # [Q, number of different ends, V]
        found: Tensor = logits[list(range(len(tails))), [ends.index(len(tail) - 1) for tail in tails]].float()
        return found

    def _positions(self, more: int) -> Tensor | None:
        """Return the positions of the prefix and `more` rows after it, or None if the model takes no positions."""
        model = self._model
        if "position_ids" not in inspect.signature(model.forward).parameters:
            return None
        ids = self._inputs["input_ids"]
        grown = {
            name: torch.cat([value, value.new_full((1, more), int(name == "attention_mask"))], dim=1)
            if value.shape == ids.shape
            else value
            for name, value in self._inputs.items()
        }
        return position_ids(model, grown["input_ids"], grown)
