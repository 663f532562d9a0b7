"""Tokens that may not come next in a text: those that began what its guide forbids.

    ... There is a dog on     a text that certainly names a forbidden object ends (`continuing.Watch`)
    ... There is a | dog      `Bans`: the token that began the name may no longer follow these tokens
    ... There is a cat ...    decoding goes on from there

Names are those that the second look recognises (`language.things`): also plurals and synonyms of the group, in any
case. A longer word that begins with a name is not one: without "cat" a text may name cattle, without "light" a traffic
light and a light bulb. So a name is certain only after the next word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor

from sira_cli.models.inputs.vocabulary import Vocabulary

# A name is certain after a character not used inside compounds, or a complete word.
_CERTAIN = re.compile(r"[^\w\s-]|[\s-]+(?:[^\w\s-]|\w[\w-]*[^\w-])")


def certain(text: str, end: int) -> bool:
    """Return whether a name that ends here cannot become a longer word or a compound."""
    return _CERTAIN.match(text, end) is not None


class Bans:
    """Tokens of one text that may not follow the tokens before them."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], set[int]] = {}

    def add(self, tokens: Sequence[int]) -> bool:
        """Forbid the last of these tokens after the others; return whether it was allowed until now."""
        *before, last = tokens
        banned = self._after.setdefault(tuple(before), set())
        new = last not in banned
        banned.add(last)
        return new

    def after(self, tokens: Sequence[int]) -> set[int]:
        """Return the tokens that may not follow these."""
        return self._after.get(tuple(tokens), set())


class Avoid(LogitsProcessor):
    """Follows the bans of B texts, unless a method's cut-off leaves no other token."""

    def __init__(self, bans: Sequence[Bans], prompt: int, before: Sequence[Sequence[int]]) -> None:
        """Follow bans."""
        self._bans, self._prompt, self._before = bans, prompt, before

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return `scores [B, V]`, -inf at banned tokens; `input_ids [B, S]` are all so far."""
        texts = [
            [*before, *ids] for before, ids in zip(self._before, input_ids[:, self._prompt :].tolist(), strict=True)
        ]
        rows = [sorted(bans.after(text)) for bans, text in zip(self._bans, texts, strict=True)]
        if not any(rows):
            return scores
        allowed = scores.clone()
        for row, tokens in enumerate(rows):
            allowed[row, tokens] = -torch.inf
        nothing_left = (allowed == -torch.inf).all(dim=-1, keepdim=True)  # [B, 1]
        return torch.where(nothing_left, scores, allowed)


class GivenTokens(LogitsProcessor):
    """Makes B texts begin with given tokens."""

    def __init__(self, texts: Sequence[Sequence[int]], prompt: int) -> None:
        """Give tokens."""
        self._texts, self._prompt = texts, prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return `scores [B, V]`, -inf except at the given token, if one is given."""
        step = input_ids.shape[1] - self._prompt
        rows = [row for row, text in enumerate(self._texts) if step < len(text)]
        if not rows:
            return scores
        forced = scores.clone()
        forced[rows] = -torch.inf
        forced[rows, [self._texts[row][step] for row in rows]] = 0.0
        return forced


def reach(vocabulary: Vocabulary, tokens: Sequence[int], end: int, first: int = 0) -> int:
    """Return the number of tokens until a text reaches `end` characters; at least `first`."""
    counts = range(first, len(tokens))
    return next((n for n in counts if len(vocabulary.text(tokens[:n]).rstrip("\ufffd")) >= end), len(tokens))
