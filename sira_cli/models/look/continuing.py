"""Guided texts that go on from one of the tokens decoded before, as if decoded in one go.

the first tokens     given: the method computes them like its own, but picks no others
... most of them     not computed again if the method's cache is enough: it is cut back to them
the rest             picked by the method, as the guide allows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from sira_cli.models.answering.answers import AnsweringModel
from sira_cli.models.answering.starts import Start, Trail
from sira_cli.models.inputs.vocabulary import Vocabulary
from sira_cli.models.look.forbidding import Avoid, Bans, GivenTokens, reach
from sira_cli.models.look.guide import Guide, GuideMask

TRIES = 16  # times that a text may begin to name what its guide forbids, before it ends


@dataclass
class Continuation:
    """A text that goes on under a guide.

    Attributes:
        row: its row in the batch.
        guide: what the text may name, and has to.
        begun: its first tokens.
        bans: tokens that would name what it may not, with the tokens before.
    """

    row: int
    guide: Guide
    begun: list[int]
    bans: Bans = field(default_factory=Bans)


class Decoded:
    """B prompts and their texts, each of which can go on from any of its tokens."""

    def __init__(self, lvlm: AnsweringModel, inputs: Any, seeds: Sequence[int], *, task: str, trail: Trail) -> None:
        """Take decoded texts."""
        self._lvlm, self._inputs, self._seeds, self._task = lvlm, inputs, seeds, task
        self._trails = dict.fromkeys(range(len(inputs["input_ids"])), trail)

    def go_on(self, texts: Sequence[Continuation]) -> list[list[int]]:
        """Return the tokens of texts that follow their guides; where no way is left, a text ends."""
        found: dict[int, list[int]] = {}
        starts = {text.row: text.begun for text in texts}
        for number in range(TRIES + 1):
            todo = [text for text in texts if text.row not in found]
            if not todo:
                break
            for text in todo:
                text.guide.restart()
            for text, (tokens, ended) in zip(todo, self._decode(todo, starts), strict=True):
                plain = self._lvlm.vocabulary.text(tokens)
                span = text.guide.first(plain, ended=ended)
                if span is None:
                    found[text.row] = tokens
                    continue
                name = reach(self._lvlm.vocabulary, tokens, span[0] + 1, 1)
                while name > 0 and not text.bans.add(tokens[:name]):
                    name -= 1  # the method's cut-off left no other token
                if number == TRIES or name == 0:
                    found[text.row] = self._ended_before(text.guide, tokens, plain[: span[0]])
                starts[text.row] = tokens[: max(name - 1, 0)]
        return [found[text.row] for text in texts]

    def _ended_before(self, guide: Guide, tokens: list[int], before: str) -> list[int]:
        """Return the tokens of a text, ended after its last whole sentence before something that cannot stay."""
        return [*tokens[: reach(self._lvlm.vocabulary, tokens, guide.until(before))], *self._lvlm.ends.ids[:1]]

    def _decode(self, texts: Sequence[Continuation], starts: dict[int, list[int]]) -> list[tuple[list[int], bool]]:
        """Return the tokens of each text, and whether it has ended."""
        found: dict[int, tuple[list[int], bool]] = {}
        for trail in {id(trail): trail for trail in (self._trails[text.row] for text in texts)}.values():
            own = {text.row: text for text in texts if self._trails[text.row] is trail}
            rows = list(own)
            back = trail.back(self._inputs, rows, [starts[row] for row in rows])
            if back is None:  # all rows, from the prompts on
                rows = list(range(len(self._inputs["input_ids"])))
                back = self._inputs, Start([starts[row] if row in own else [] for row in rows])
            inputs, start = back
            new = self._generate(inputs, rows, start, own)
            found |= {row: new[place] for place, row in enumerate(rows) if row in own}
        return [found[text.row] for text in texts]

    def _generate(
        self, inputs: Any, rows: Sequence[int], start: Start, texts: dict[int, Continuation]
    ) -> list[tuple[list[int], bool]]:
        """Decode some rows; rows without a text in `texts` are idle."""
        lvlm, prompt = self._lvlm, inputs["input_ids"].shape[1]
        before = [list(tokens[: start.in_inputs]) for tokens in start.tokens]
        bans = [texts[row].bans if row in texts else Bans() for row in rows]
        guides = [texts[row].guide if row in texts else None for row in rows]
        watch = Watch(lvlm.vocabulary, guides, prompt, before)
        given = GivenTokens([tokens[start.in_inputs :] for tokens in start.tokens], prompt)
        firsts = [len(tokens) for tokens in start.tokens]
        processors = (GuideMask(guides, bans, prompt, before, firsts), Avoid(bans, prompt, before), given)
        trail = Trail(rows)
        output = lvlm.generate(
            inputs,
            seeds=[self._seeds[row] for row in rows],
            task=self._task,
            start=Start(start.tokens, start.in_inputs, start.cache, processors, (watch,)),
            trail=trail,
        )
        tokens = [[*first, *row] for first, row in zip(before, output.tolist(), strict=True)]
        trail.end(tokens)
        self._trails |= {row: trail for row in rows if row in texts}
        return [
            (row[: watch.lengths[place]], False) if place in watch.lengths else (lvlm.ends.until_end(row), True)
            for place, row in enumerate(tokens)
        ]


class Watch(StoppingCriteria):
    """Ends texts of a batch that certainly say what their guides forbid, and idle ones; the others go on.

    Attributes:
        lengths: lengths in tokens of the texts that it has ended, by number.
    """

    def __init__(
        self, vocabulary: Vocabulary, guides: Sequence[Guide | None], prompt: int, before: Sequence[Sequence[int]]
    ) -> None:
        """Watch texts."""
        self._vocabulary, self._guides, self._prompt, self._before = vocabulary, guides, prompt, before
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
        guide = self._guides[row]
        return guide is None or guide.first(self._vocabulary.text(tokens), ended=False) is not None
