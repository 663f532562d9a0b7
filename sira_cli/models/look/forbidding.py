"""Keep texts from naming objects in any spelling: the text counts, not its tokens.

    ... There is a dog on     `Watch` reads along: a text that certainly names a forbidden object ends
    ... There is a | dog      `Bans`: the token that began the name may no longer follow these tokens
    ... There is a cat ...    decoding goes on from there
    ... There is an |         had "an" been said for the umbrella only? Then "There is" goes on another way

Names are those that the second look recognises (`language.things`): also plurals and synonyms of the group, in any
case. A longer word that begins with a name is not one: without "cat" a text may name cattle, without "light" a traffic
light and a light bulb. So a name is certain only after the next word.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

from sira_cli.language.things import Words
from sira_cli.models.inputs.vocabulary import Vocabulary
from sira_cli.models.look.sentences import repeated_sentences

# A name is certain after a character not used inside compounds, or a complete word.
_CERTAIN = re.compile(r"[^\w\s-]|[\s-]+(?:[^\w\s-]|\w[\w-]*[^\w-])")

MOST = 0.2  # share of what may follow a token: with more of it banned, the token loses that share
NEARLY_ALL = 0.9  # with so much of it banned, it loses all: hardly anything that is left fits it ("an bananas")
LEAST_CHANGE = 0.1  # of a share, for decoding to go back once more


def certain(text: str, end: int) -> bool:
    """Return whether a name that ends here cannot become a longer word or a compound."""
    return _CERTAIN.match(text, end) is not None


class TextRule(Protocol):
    """What a text may not say."""

    def first(self, words: Words, text: str, start: int, *, ended: bool) -> tuple[int, int] | None:
        """Return start and end of the first part of a text that cannot stay, or None; as `Forbidden.first`."""
        ...


@dataclass(frozen=True)
class Forbidden:
    """Objects that a text may not name, and other claims that it may not make.

    Attributes:
        groups: their `Thing.head`: of an object, the head of its synonyms in the list.
        but: `Thing.key` of those that are allowed anyway: of objects, their names.
    """

    groups: frozenset[str]
    but: frozenset[str] = frozenset()

    def first(self, words: Words, text: str, start: int, *, ended: bool) -> tuple[int, int] | None:
        """Return start and end of the first certain mention of one, or of a sentence said twice; or None.

        Args:
            words: the names of objects.
            text: the text so far.
            start: mentions that end before it do not count.
            ended: whether the text is complete.
        """
        spans = [
            span
            for thing in words.things(text)
            if thing.head in self.groups and thing.key not in self.but
            for span in thing.spans
            if span[1] > start and (ended or certain(text, span[1]))
        ]
        if ended:
            spans += repeated_sentences(text, start)
        return min(spans, default=None)


@dataclass
class Bans:
    """Tokens of one text that lead to forbidden names, each with the share of its probability that does.

    A banned token leads there with all of it. An article before a name may have been chosen for that name alone: if
    much of what may follow it is banned, it loses that share itself, and the text goes on from before it. So no "an"
    is left to a car, and no sentence to nothing.

    Attributes:
        first: number of first tokens that stay: those before the sentence with the last ban.
        back: number of tokens of the text to go back to, if an earlier one lost most of its probability.
    """

    first: int = 0
    back: int | None = None
    _after: dict[tuple[int, ...], dict[int, float]] = field(default_factory=dict)

    def add(self, tokens: Sequence[int]) -> bool:
        """Forbid the last of these tokens after the others; return whether it was allowed until now."""
        *before, last = tokens
        shares = self._after.setdefault(tuple(before), {})
        new = shares.get(last, 0.0) < 1
        shares[last] = 1.0
        return new

    def after(self, tokens: Sequence[int]) -> dict[int, float]:
        """Return the tokens that lose probability after these, with the share that each loses."""
        return self._after.get(tuple(tokens), {})

    def settle(self) -> None:
        """Take no more probability from earlier tokens."""
        self.first = sys.maxsize

    def pass_on(self, tokens: Sequence[int], lost: float) -> None:
        """Take from the last of these tokens the share of the probability after it that is lost."""
        if len(tokens) <= self.first or lost <= MOST:
            return
        *before, last = tokens
        lost = 1.0 if lost > NEARLY_ALL else lost
        shares = self._after.setdefault(tuple(before), {})
        if lost > shares.get(last, 0.0) + LEAST_CHANGE:
            shares[last] = lost
            self.back = min(len(before), len(tokens) if self.back is None else self.back)


class Avoid(LogitsProcessor):
    """Follows the bans of B texts, unless a method's cut-off leaves no other token."""

    def __init__(self, bans: Sequence[Bans], prompt: int, before: Sequence[Sequence[int]]) -> None:
        """Follow bans.

        Args:
            bans: one per text.
            prompt: rows of the inputs of `generate`.
            before: tokens of each text among them.
        """
        self._bans, self._prompt, self._before = bans, prompt, before

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return `scores [B, V]`, lower at tokens of the bans, -inf at banned ones; `input_ids [B, S]`: all tokens."""
        texts = [
            [*before, *ids] for before, ids in zip(self._before, input_ids[:, self._prompt :].tolist(), strict=True)
        ]
        rows = [bans.after(text) for bans, text in zip(self._bans, texts, strict=True)]
        if not any(rows):
            return scores
        left = torch.ones_like(scores)
        for row, shares in enumerate(rows):
            for token, share in shares.items():
                left[row, token] = 1 - share
        lost = (scores.softmax(dim=-1) * (1 - left)).sum(dim=-1).tolist()  # [B]
        for row, shares in enumerate(rows):
            if shares:
                self._bans[row].pass_on(texts[row], lost[row])
        allowed = scores + left.log()
        nothing_left = (allowed == -torch.inf).all(dim=-1, keepdim=True)  # [B, 1]
        return torch.where(nothing_left, scores, allowed)


class Watch(StoppingCriteria):
    """Ends texts of a batch that certainly name a forbidden object, and idle ones; the others go on.

    Attributes:
        lengths: lengths in tokens of the texts that it has ended, by number.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        words: Words,
        forbidden: Sequence[TextRule | None],
        prompt: int,
        kept: Sequence[Sequence[int]],
        before: Sequence[Sequence[int]],
        bans: Sequence[Bans],
    ) -> None:
        """Watch texts.

        Args:
            vocabulary, words: the tokenizer, and the names of objects.
            forbidden: one per text; None: the text is idle.
            prompt, before, bans: as for `Avoid`.
            kept: the first tokens of each text, which are not searched.
        """
        self._vocabulary, self._words, self._forbidden = vocabulary, words, forbidden
        self._prompt, self._before, self._bans = prompt, before, bans
        self._kept = [len(tokens) for tokens in kept]
        self._starts = [len(vocabulary.text(tokens)) for tokens in kept]
        self.lengths: dict[int, int] = {}

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Called by `generate` after each token, `input_ids [B, S]`; return `[B]`, whether each text ends."""
        new = input_ids[:, self._prompt :].tolist()
        texts = [[*before, *ids] for before, ids in zip(self._before, new, strict=True)]
        ended = [row in self.lengths or self._ends(row, tokens) for row, tokens in enumerate(texts)]
        for row, tokens in enumerate(texts):
            if ended[row]:
                self.lengths.setdefault(row, len(tokens))
        return torch.tensor(ended, device=input_ids.device)

    def _ends(self, row: int, tokens: list[int]) -> bool:
        forbidden = self._forbidden[row]
        if forbidden is None or self._bans[row].back is not None:
            return True
        if len(tokens) <= self._kept[row]:
            return False
        text = self._vocabulary.text(tokens)
        return forbidden.first(self._words, text, self._starts[row], ended=False) is not None


class GivenTokens(LogitsProcessor):
    """Makes B texts begin with given tokens."""

    def __init__(self, texts: Sequence[Sequence[int]], prompt: int) -> None:
        """Give tokens.

        Args:
            texts: the first tokens of each text after the inputs of `generate`.
            prompt: rows of these inputs.
        """
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
