"""Texts that are decoded until they follow their guides; each goes on from one of its tokens as if decoded in one go.

The first tokens are given: the method computes them like its own, but picks no others. Most are not computed again if
the method's cache is enough: it is cut back to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from sira_cli.look.guide import Guide
from sira_cli.look.mask import GivenTokens, GuideMask, Watch
from sira_cli.look.sentences import last_sentence
from sira_cli.models.model import LoadedModel
from sira_cli.models.progress import Start, Trail

Tokens = list[int]
Guides = Mapping[int, Guide]  # by row of the batch
TRIES = 16  # times that a text may begin to name what its guide forbids, before it ends


class _Text(NamedTuple):
    """The tokens of a text; `ended`: it ended by itself, its guide did not stop it."""

    tokens: Tokens
    ended: bool


class Redecoder:
    """B prompts and their texts, each of which can go on from any of its tokens.

    Args:
        lvlm: the model with its method.
        inputs: of the prompts, on the model's device.
        seeds: one per prompt.
        task: `caption` or `ask`.
        trail: what the method has computed for the texts so far.
    """

    def __init__(
        self,
        lvlm: LoadedModel,
        inputs: Any,
        seeds: Sequence[int],
        *,
        task: str,
        trail: Trail,
    ) -> None:
        self._lvlm = lvlm
        self._inputs = inputs
        self._seeds = seeds
        self._task = task
        self._trails = dict.fromkeys(range(len(inputs["input_ids"])), trail)

    def decode(self, guides: Guides, begun: Mapping[int, Tokens]) -> dict[int, Tokens]:
        """Return the tokens of texts that follow their guides; where no way is left, a text ends.

        ... There is a dog on     a text that certainly names a forbidden object ends (`Watch`)
        ... There is a | dog      the token that began the name may no longer follow these tokens
        ... There is a cat ...    decoding goes on from there

        Args:
            guides: of the texts to decode, by row.
            begun: the first tokens of each, by row.
        """
        done: dict[int, Tokens] = {}
        starts = dict(begun)
        for attempt in range(TRIES + 1):
            waiting = {row: guide for row, guide in guides.items() if row not in done}
            for row, guide in waiting.items():
                guide.begin_again(starts[row])
            for row, (tokens, ended) in self._decoded(waiting, starts).items():
                guide = guides[row]
                fault = guide.first_forbidden(tokens, ended=ended)
                if fault is None:
                    done[row] = self._without_repetition(guide, tokens)
                    continue
                length = _banned(guide, tokens, fault)
                if attempt == TRIES or length == 0:
                    done[row] = self._until_sentence(guide, tokens, fault)
                else:
                    starts[row] = tokens[: length - 1]
        return done

    def _without_repetition(self, guide: Guide, tokens: Tokens) -> Tokens:
        """Return a text, or the part of it before it only repeats itself."""
        end = guide.repeats(tokens)
        return tokens if end is None else self._cut(guide, tokens, end)

    def _until_sentence(self, guide: Guide, tokens: Tokens, fault: int) -> Tokens:
        """Return a text up to its last whole sentence before a fault."""
        before = guide.text_of(tokens)[:fault]
        return self._cut(guide, tokens, last_sentence(before))

    def _cut(self, guide: Guide, tokens: Tokens, end: int) -> Tokens:
        """Return the tokens of a text's first `end` characters, and one that ends it."""
        length = _reach(guide, tokens, end)
        return [*tokens[:length], *self._lvlm.ends.ids[:1]]

    def _decoded(self, guides: Guides, starts: Mapping[int, Tokens]) -> dict[int, _Text]:
        """Decode each text once, those of a trail together."""
        decoded: dict[int, _Text] = {}
        trails = {id(self._trails[row]): self._trails[row] for row in guides}
        for trail in trails.values():
            group = {row: guide for row, guide in guides.items() if self._trails[row] is trail}
            decoded |= self._decoded_together(trail, group, starts)
        return decoded

    def _decoded_together(self, trail: Trail, guides: Guides, starts: Mapping[int, Tokens]) -> dict[int, _Text]:
        """Decode texts of one trail once, and keep the new trail."""
        lvlm = self._lvlm
        rows = list(guides)
        back = trail.back(self._inputs, rows, [starts[row] for row in rows])
        if back is None:  # all rows, from the prompts on; those without a guide are idle
            rows = list(self._trails)
            back = self._inputs, Start([starts[row] if row in guides else [] for row in rows])
        inputs, start = back
        prompt = inputs["input_ids"].shape[1]
        in_prompt = [list(tokens[: start.in_inputs]) for tokens in start.tokens]
        guide_of_row = [guides.get(row) for row in rows]

        def so_far(input_ids: Tensor) -> list[Tokens]:
            new = input_ids[:, prompt:].tolist()
            return [first + rest for first, rest in zip(in_prompt, new, strict=True)]

        watch = Watch(guide_of_row, so_far)
        mask = GuideMask(guide_of_row, so_far, [len(tokens) for tokens in start.tokens])
        given = GivenTokens([tokens[start.in_inputs :] for tokens in start.tokens], prompt)
        new_trail = Trail(rows)
        output = lvlm.generate(
            inputs,
            seeds=[self._seeds[row] for row in rows],
            task=self._task,
            start=replace(start, processors=(mask, given), stopping=(watch,)),
            trail=new_trail,
        )
        texts = [first + rest for first, rest in zip(in_prompt, output.tolist(), strict=True)]
        new_trail.end(texts)
        decoded = {}
        for number, row in enumerate(rows):
            if row not in guides:
                continue
            self._trails[row] = new_trail
            if number in watch.lengths:
                decoded[row] = _Text(texts[number][: watch.lengths[number]], ended=False)
            else:
                decoded[row] = _Text(lvlm.ends.until_end(texts[number]), ended=True)
        return decoded


def _banned(guide: Guide, tokens: Tokens, fault: int) -> int:
    """Ban the token that begins a fault, or the newest before it that is not banned yet; return the tokens up to it.

    It is banned already if the method's cut-off left no other token; 0: all are banned.
    """
    length = _reach(guide, tokens, fault + 1, 1)
    while length > 0 and not guide.ban(tokens[:length]):
        length -= 1
    return length


def _reach(guide: Guide, tokens: Tokens, end: int, first: int = 0) -> int:
    """Return the number of tokens until a text reaches `end` characters; at least `first`."""
    for count in range(first, len(tokens)):
        if len(guide.text_of(tokens[:count]).rstrip("\ufffd")) >= end:
            return count
    return len(tokens)
