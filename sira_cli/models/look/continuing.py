"""Texts decoded again from one of their tokens on, as if in one go.

the first tokens     given: the method computes them like its own, but picks no others
... most of them     not computed again if the method's cache is enough: it is cut back to them
the rest             picked by the method, without forbidden objects
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sira_cli.language.things import Words
from sira_cli.models.answering.answers import AnsweringModel
from sira_cli.models.answering.starts import Start, Trail
from sira_cli.models.look.forbidding import Avoid, Bans, Forbidden, GivenTokens, Watch, reach
from sira_cli.models.look.guide import Guide, GuideMask
from sira_cli.models.look.sentences import sentence_spans

BACKS = 48  # times that decoding goes back because a token lost its probability to bans, per try
TRIES = 16  # times that a text may begin to name a forbidden object, before it is allowed


@dataclass
class Continuation:
    """A text that continues after some of its tokens.

    Attributes:
        row: its row in the batch.
        kept: its first tokens, which stay.
        forbidden: objects that the rest may not name; a guide also says what it has to name.
        bans: tokens that would name forbidden objects, with the tokens before.
        begun: `kept` and tokens after it that stay if more than a forbidden name may follow them; empty: `kept`.
    """

    row: int
    kept: list[int]
    forbidden: Forbidden | Guide
    bans: Bans = field(default_factory=Bans)
    begun: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Take no probability from kept tokens."""
        self.bans.first = len(self.kept)


class Decoded:
    """B prompts and their texts, each of which can go on from any of its tokens."""

    def __init__(
        self,
        lvlm: AnsweringModel,
        inputs: Any,
        seeds: Sequence[int],
        *,
        words: Words,
        task: str = "caption",
        trail: Trail | None = None,
    ) -> None:
        """Take decoded texts.

        Args:
            lvlm: the model under its method.
            inputs: from `prepare` for the B prompts, on the model's device.
            seeds, task: as for `generate`.
            words: the names of objects.
            trail: the trail of decoding all of them.
        """
        self._lvlm, self._inputs, self._seeds, self._words, self._task = lvlm, inputs, seeds, words, task
        rows = range(len(inputs["input_ids"]))
        self._trails = dict.fromkeys(rows, trail or Trail(rows))

    def go_on(self, texts: Sequence[Continuation], new_tokens: int | None = None) -> list[list[int]]:
        """Return the tokens of texts, kept ones included, whose rest names no forbidden object.

        If the method has no other way to continue, after `TRIES` at the latest, a forbidden object is named anyway.

        Args:
            texts: some of the B.
            new_tokens: maximum tokens of a text, kept ones included; None: from the settings.
        """
        found: dict[int, list[int]] = {}
        starts = {text.row: list(text.begun or text.kept) for text in texts}
        free: set[int] = set()  # these may name anything
        for number in range(TRIES + 1):
            todo = [text for text in texts if text.row not in found]
            if not todo:
                break
            if number == TRIES:
                free |= {text.row for text in todo if not isinstance(text.forbidden, Guide)}
            for text in todo:
                if isinstance(text.forbidden, Guide):
                    text.forbidden.restart()
                    text.bans.settle()
            for text, (tokens, ended) in zip(todo, self._settled(todo, starts, free, new_tokens), strict=True):
                span = None
                if text.row not in free:
                    plain = self._lvlm.vocabulary.text(tokens)
                    length = len(self._lvlm.vocabulary.text(text.kept))
                    span = text.forbidden.first(self._words, plain, length, ended=ended)
                if span is None:
                    found[text.row] = tokens
                    continue
                sentence = max((first for first, _ in sentence_spans(plain) if first <= span[0]), default=0)
                text.bans.first = reach(self._lvlm.vocabulary, tokens, sentence + 1, len(text.kept) + 1) - 1
                name = reach(self._lvlm.vocabulary, tokens, span[0] + 1, len(text.kept) + 1)
                while name > len(text.kept) and not text.bans.add(tokens[:name]):
                    name -= 1  # the method's cut-off left no other token
                guide = text.forbidden
                if isinstance(guide, Guide) and (number == TRIES or name == len(text.kept)):
                    found[text.row] = self._ended_before(text, guide, tokens, plain[: span[0]])
                elif name == len(text.kept):
                    free.add(text.row)
                starts[text.row] = tokens[: max(name - 1, len(text.kept))]
        return [found[text.row] for text in texts]

    def _settled(
        self, texts: Sequence[Continuation], starts: dict[int, list[int]], free: set[int], new_tokens: int | None
    ) -> list[tuple[list[int], bool]]:
        """Decode, from earlier tokens on where these lost their probability to bans; return as `_decode`."""
        found: dict[int, tuple[list[int], bool]] = {}
        todo = list(texts)
        for number in range(BACKS + 1):
            if number == BACKS:
                for text in todo:
                    text.bans.settle()
            found |= zip((text.row for text in todo), self._decode(todo, starts, free, new_tokens), strict=True)
            todo = [text for text in todo if text.bans.back is not None]
            if not todo:
                break
            for text in todo:
                starts[text.row], text.bans.back = found[text.row][0][: text.bans.back], None
        return [found[text.row] for text in texts]

    def _ended_before(self, text: Continuation, guide: Guide, tokens: list[int], before: str) -> list[int]:
        """Return the tokens of a guided text, ended after its last whole sentence before something that cannot stay."""
        whole = reach(self._lvlm.vocabulary, tokens, guide.until(before), len(text.kept))
        return [*tokens[:whole], *self._lvlm.ends.ids[:1]]

    def _decode(
        self, texts: Sequence[Continuation], starts: dict[int, list[int]], free: set[int], new_tokens: int | None
    ) -> list[tuple[list[int], bool]]:
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
            new = self._generate(inputs, rows, start, own, free, new_tokens)
            found |= {row: new[place] for place, row in enumerate(rows) if row in own}
        return [found[text.row] for text in texts]

    def _generate(
        self,
        inputs: Any,
        rows: Sequence[int],
        start: Start,
        texts: dict[int, Continuation],
        free: set[int],
        new_tokens: int | None,
    ) -> list[tuple[list[int], bool]]:
        """Decode some rows; rows without a text in `texts` are idle."""
        lvlm, prompt = self._lvlm, inputs["input_ids"].shape[1]
        before = [list(tokens[: start.in_inputs]) for tokens in start.tokens]
        nothing = Forbidden(frozenset())
        bans = [texts[row].bans if row in texts and row not in free else Bans() for row in rows]
        watch = Watch(
            lvlm.vocabulary,
            self._words,
            [None if row not in texts else nothing if row in free else texts[row].forbidden for row in rows],
            prompt,
            [texts[row].kept if row in texts else [] for row in rows],
            before,
            bans,
        )
        given = GivenTokens([tokens[start.in_inputs :] for tokens in start.tokens], prompt)
        guides = [
            text.forbidden if text and isinstance(text.forbidden, Guide) else None for text in map(texts.get, rows)
        ]
        firsts = [len(tokens) for tokens in start.tokens]
        processors = (GuideMask(guides, bans, prompt, before, firsts), Avoid(bans, prompt, before), given)
        trail = Trail(rows)
        output = lvlm.generate(
            inputs,
            seeds=[self._seeds[row] for row in rows],
            task=self._task,
            start=Start(
                start.tokens, start.in_inputs, start.cache, processors[not any(guides) :], (watch,), new_tokens
            ),
            trail=trail,
        )
        tokens = [[*first, *row] for first, row in zip(before, output.tolist(), strict=True)]
        trail.end(tokens)
        self._trails |= {row: trail for row in rows if row in texts}
        return [
            (row[: watch.lengths[place]], False) if place in watch.lengths else (lvlm.ends.until_end(row), True)
            for place, row in enumerate(tokens)
        ]
