"""Parts of `generate` for guided texts: the mask of their next tokens, their early end, and their first tokens."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

from sira_cli.look.guide import Guide
from sira_cli.look.reading import Choice
from sira_cli.models.sampling import uncut, without

PLAUSIBLE = 0.05  # share of the likeliest token's probability below which the model would not have picked a token
CLEAR = 0.2  # probability among the tokens that are left, below which a text that would end does end
ENDS = 0.5  # probability of its end above which the model would end a text

Texts = Callable[[Tensor], list[list[int]]]  # from all `input_ids [B, S]` to the tokens of the texts


@dataclass
class _Row:
    """A guided text of a batch before its next token; `would_end`: the model would end it here."""

    number: int
    guide: Guide
    tokens: list[int]
    choice: Choice
    banned: AbstractSet[int]
    would_end: bool = False


class _Outlook(NamedTuple):
    """The token that a text goes on with unless its guide steps in, and the full stream's view of it.

    Attributes:
        token: the best token that is left.
        implausible: whether the model would not have picked it on its own.
        unclear: whether it is unlikely even among the tokens that are left.
        preferred: the full stream's best token that is left, which a contrast may rank lower.
    """

    token: int
    implausible: bool
    unclear: bool
    preferred: int


class GuideMask(LogitsProcessor):
    """Follows the guides of B texts.

    Args:
        guides: of each text; one without a guide is idle.
        texts: returns the tokens of the texts so far.
        given: number of first tokens of each text that are given, before which its guide is not asked.
    """

    def __init__(self, guides: Sequence[Guide | None], texts: Texts, given: Sequence[int]) -> None:
        self._guides = guides
        self._texts = texts
        self._given = given

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return `scores [B, V]` with -inf at tokens that may not come next; `input_ids [B, S]` are all so far."""
        rows = self._rows(input_ids)
        before, z = uncut(scores)  # [B, V], the method's scores before its cut-off, and the full stream's logits
        full = z.float().softmax(dim=-1)  # [B, V]
        ruled_out = torch.zeros(scores.shape, dtype=torch.bool)
        within = torch.zeros_like(ruled_out)  # where a sentence has to begin: tokens that cannot begin one
        for row in rows:
            ruled_out[row.number, [*row.choice.ruled_out, *row.banned]] = True
            if row.choice.between:
                row.would_end = float(full[row.number, row.guide.rules.ends].sum()) > ENDS
            if row.would_end and row.choice.within_sentences:
                within[row.number, row.choice.within_sentences] = True
                row.guide.note_end(row.tokens)
        ruled_out = ruled_out.to(scores.device)
        left = without(scores, ruled_out | within.to(scores.device))
        rest = z.float().masked_fill(ruled_out, -torch.inf).softmax(dim=-1)  # [B, V], of the tokens that are left
        outlooks = _outlooks(left, full, rest)
        for row in rows:
            only = _decided(row, outlooks[row.number])
            if only is not None:
                left[row.number] = _only(before[row.number], only, row.banned)
        return left

    def _rows(self, input_ids: Tensor) -> list[_Row]:
        """Return the texts that their guides decide about, without given tokens and thoughts."""
        rows = []
        texts = self._texts(input_ids)
        for number, guide in enumerate(self._guides):
            tokens = texts[number]
            if guide is None or len(tokens) < self._given[number]:
                continue
            choice = guide.choice_after(tokens)
            if choice is not None:
                rows.append(_Row(number, guide, tokens, choice, guide.banned_after(tokens)))
        return rows


def _outlooks(left: Tensor, full: Tensor, rest: Tensor) -> list[_Outlook]:
    """Return the outlook of each text; the device is waited for as often as for one text.

    Args:
        left: scores of the tokens that are left, `[B, V]`.
        full: the full stream's probabilities, `[B, V]`.
        rest: the same among the tokens that are not ruled out, `[B, V]`.
    """
    token = left.argmax(dim=-1)  # [B]
    probability = full.gather(1, token[:, None])[:, 0]
    share = rest.gather(1, token[:, None])[:, 0]
    columns = (token, probability, full.amax(dim=-1), share, rest.argmax(dim=-1))
    outlooks = []
    for best, chance, likeliest, left_chance, preferred in zip(*(column.tolist() for column in columns), strict=True):
        outlooks.append(_Outlook(best, chance < PLAUSIBLE * likeliest, left_chance < CLEAR, preferred))
    return outlooks


def _decided(row: _Row, outlook: _Outlook) -> Sequence[int] | None:
    """Return the only tokens of which one may come next; None: any that is left. A text that is stuck is cut."""
    choice = row.choice
    names_object = choice.introduces and outlook.token in choice.wanted
    stuck = outlook.implausible and not names_object
    # The full stream would name a supported object here, and the contrast picks another word.
    drawn_away = choice.introduces and not names_object and outlook.preferred in choice.wanted
    if choice.wanted and (choice.only or drawn_away or (stuck and choice.only_if_stuck)):
        return choice.wanted
    if (row.would_end and outlook.unclear) or (stuck and choice.between and row.banned):
        return row.guide.rules.ends
    if stuck and (choice.introduces or row.banned):
        row.guide.cut_back(row.tokens, choice)
    return None


def _only(scores: Tensor, tokens: Sequence[int], banned: Container[int]) -> Tensor:
    """Return scores `[V]` with -inf everywhere but at some tokens, of which banned ones leave unless all are."""
    index = [token for token in tokens if token not in banned] or list(tokens)
    left = torch.full_like(scores, -torch.inf)
    left[index] = scores[index]
    return left


class Watch(StoppingCriteria):
    """Ends texts of a batch that certainly say what their guides forbid, and idle ones; the others go on.

    Attributes:
        lengths: number of tokens of the texts that it has ended, by the text's number.
    """

    def __init__(self, guides: Sequence[Guide | None], texts: Texts) -> None:
        self._guides = guides
        self._texts = texts
        self.lengths: dict[int, int] = {}

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Return whether each text ends, `[B]`; `input_ids [B, S]` are all tokens so far."""
        texts = self._texts(input_ids)
        for number, guide in enumerate(self._guides):
            if number in self.lengths:
                continue
            tokens = texts[number]
            if guide is None or guide.must_be_cut(tokens):
                self.lengths[number] = len(tokens)
        ended = [number in self.lengths for number in range(len(input_ids))]
        return torch.tensor(ended, device=input_ids.device)


class GivenTokens(LogitsProcessor):
    """Makes B texts begin with given tokens, after a prompt of `prompt` tokens."""

    def __init__(self, texts: Sequence[Sequence[int]], prompt: int) -> None:
        self._texts = texts
        self._prompt = prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return `scores [B, V]`, -inf except at the given token, if one is given."""
        step = input_ids.shape[1] - self._prompt
        rows = [row for row, text in enumerate(self._texts) if step < len(text)]
        if not rows:
            return scores
        tokens = [self._texts[row][step] for row in rows]
        forced = scores.clone()
        forced[rows] = -torch.inf
        forced[rows, tokens] = 0.0
        return forced
