"""Guided texts that go on from one of the tokens decoded before, as if decoded in one go.

the first tokens     given: the method computes them like its own, but picks no others
... most of them     not computed again if the method's cache is enough: it is cut back to them
the rest             picked by the method, as the guide allows
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

from sira_cli.look.guide import Guide, GuideMask, last_sentence
from sira_cli.models.model import LoadedModel
from sira_cli.models.progress import Start, Trail

TRIES = 16  # times that a text may begin to name what its guide forbids, before it ends

Texts = Callable[[Tensor], list[list[int]]]  # from all `input_ids [B, S]` to the tokens of the texts


@dataclass
class Continuation:
    """A text that goes on under a guide, after its first tokens; `row`: its row in the batch."""

    row: int
    guide: Guide
    begun: list[int]


class Decoded:
    """B prompts and their texts, each of which can go on from any of its tokens."""

    def __init__(self, lvlm: LoadedModel, inputs: Any, seeds: Sequence[int], *, task: str, trail: Trail) -> None:
        self._lvlm, self._inputs, self._seeds, self._task = lvlm, inputs, seeds, task
        self._trails = dict.fromkeys(range(len(inputs["input_ids"])), trail)

    def go_on(self, texts: Sequence[Continuation]) -> list[list[int]]:
        """Return the tokens of texts that follow their guides; where no way is left, a text ends.

        ... There is a dog on     a text that certainly names a forbidden object ends (`Watch`)
        ... There is a | dog      the token that began the name may no longer follow these tokens
        ... There is a cat ...    decoding goes on from there
        """
        done: dict[int, list[int]] = {}
        starts = {text.row: text.begun for text in texts}
        for number in range(TRIES + 1):
            todo = [text for text in texts if text.row not in done]
            if not todo:
                break
            for text in todo:
                text.guide.restart()
            for text, (tokens, ended) in zip(todo, self._decode(todo, starts), strict=True):
                plain = text.guide.text(tokens)
                span = text.guide.first(plain, ended=ended)
                if span is None:
                    done[text.row] = tokens
                    continue
                name = _reach(text.guide, tokens, span[0] + 1, 1)
                while name > 0 and not text.guide.ban(tokens[:name]):
                    name -= 1  # the method's cut-off left no other token
                if number == TRIES or name == 0:  # it ends after its last whole sentence
                    whole = _reach(text.guide, tokens, last_sentence(plain[: span[0]]))
                    done[text.row] = [*tokens[:whole], *self._lvlm.ends.ids[:1]]
                starts[text.row] = tokens[: max(name - 1, 0)]
        return [done[text.row] for text in texts]

    def _decode(self, texts: Sequence[Continuation], starts: dict[int, list[int]]) -> list[tuple[list[int], bool]]:
        """Return the tokens of each text, and whether it has ended."""
        new: dict[int, tuple[list[int], bool]] = {}
        for trail in {id(trail): trail for trail in (self._trails[text.row] for text in texts)}.values():
            guides = {text.row: text.guide for text in texts if self._trails[text.row] is trail}
            rows = list(guides)
            back = trail.back(self._inputs, rows, [starts[row] for row in rows])
            if back is None:  # all rows, from the prompts on
                rows = list(range(len(self._inputs["input_ids"])))
                back = self._inputs, Start([starts[row] if row in guides else [] for row in rows])
            decoded = self._generate(*back, rows, [guides.get(row) for row in rows])
            new |= {row: one for row, one in zip(rows, decoded, strict=True) if row in guides}
        return [new[text.row] for text in texts]

    def _generate(
        self, inputs: Any, start: Start, rows: Sequence[int], guides: Sequence[Guide | None]
    ) -> list[tuple[list[int], bool]]:
        """Decode some rows; those without a guide are idle."""
        lvlm, prompt = self._lvlm, inputs["input_ids"].shape[1]
        before = [list(tokens[: start.in_inputs]) for tokens in start.tokens]

        def texts(input_ids: Tensor) -> list[list[int]]:
            return [[*first, *ids] for first, ids in zip(before, input_ids[:, prompt:].tolist(), strict=True)]

        watch, trail = Watch(guides, texts), Trail(rows)
        processors = (
            GuideMask(guides, texts, [len(tokens) for tokens in start.tokens]),
            GivenTokens([tokens[start.in_inputs :] for tokens in start.tokens], prompt),
        )
        output = lvlm.generate(
            inputs,
            seeds=[self._seeds[row] for row in rows],
            task=self._task,
            start=Start(start.tokens, start.in_inputs, start.cache, processors, (watch,)),
            trail=trail,
        )
        tokens = [[*first, *row] for first, row in zip(before, output.tolist(), strict=True)]
        trail.end(tokens)
        self._trails |= {row: trail for row, guide in zip(rows, guides, strict=True) if guide is not None}
        return [
            (row[: watch.lengths[place]], False) if place in watch.lengths else (lvlm.ends.until_end(row), True)
            for place, row in enumerate(tokens)
        ]


class Watch(StoppingCriteria):
    """Ends texts of a batch that certainly say what their guides forbid, and idle ones; the others go on.

    A longer word that begins with a name is not one: without "cat" a text may name cattle, without "light" a traffic
    light and a light bulb. So a name is certain only after the next word.
    """

    def __init__(self, guides: Sequence[Guide | None], texts: Texts) -> None:
        self._guides, self._texts = guides, texts
        self.lengths: dict[int, int] = {}  # in tokens, of the texts that it has ended, by number

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Called by `generate` after each token, `input_ids [B, S]`; return `[B]`, whether each text ends."""
        for row, (guide, tokens) in enumerate(zip(self._guides, self._texts(input_ids), strict=True)):
            if row not in self.lengths and (guide is None or guide.first(guide.text(tokens), ended=False) is not None):
                self.lengths[row] = len(tokens)
        return torch.tensor([row in self.lengths for row in range(len(input_ids))], device=input_ids.device)


class GivenTokens(LogitsProcessor):
    """Makes B texts begin with given tokens."""

    def __init__(self, texts: Sequence[Sequence[int]], prompt: int) -> None:
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


def _reach(guide: Guide, tokens: Sequence[int], end: int, first: int = 0) -> int:
    """Return the number of tokens until a text reaches `end` characters; at least `first`."""
    counts = range(first, len(tokens))
    return next((n for n in counts if len(guide.text(tokens[:n]).rstrip("\ufffd")) >= end), len(tokens))
