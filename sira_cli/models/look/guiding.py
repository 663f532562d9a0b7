"""Captions that are decoded after a second look at the objects that their picture may show.

captions     There is a dog and a cup. / There is a dog and a cat. / ...     of the same picture (`candidates`)
questions    dog: 0.99, cat: 0.95, cup: 0.12                                 one pass over the picture's rows
the text     There is a dog on the left and a cat in the middle.             the dog and the cat, once, no cup (`guide`)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sira_cli.language.things import Thing
from sira_cli.models.answering.answer import Answer
from sira_cli.models.answering.answers import AnsweringModel
from sira_cli.models.answering.starts import Trail
from sira_cli.models.look.candidates import captions
from sira_cli.models.look.claims import Claim, removed_of
from sira_cli.models.look.continuing import Continuation, Decoded
from sira_cli.models.look.guide import Guide, GuideRules
from sira_cli.models.look.second_look import PictureLook, SecondLook
from sira_cli.models.look.verify import Verify

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown


@dataclass(frozen=True)
class _Candidates:
    """The objects that a picture may show.

    Attributes:
        draft: the method's own caption.
        drafted: heads of the objects that it names.
        claims: all that were asked about.
        doubted: those that are not supported.
    """

    draft: str
    drafted: frozenset[str]
    claims: Sequence[Claim]
    doubted: Sequence[Claim]


class GuidedCaptions:
    """Captions that name supported objects only, with a loaded model and its method."""

    def __init__(self, lvlm: AnsweringModel, verify: Verify) -> None:
        """Prepare to caption."""
        lvlm = copy.copy(lvlm)
        if lvlm.sira.beta is None:
            lvlm.sira = replace(lvlm.sira, beta=lvlm.preset.guide.cut_off)
        self.look = SecondLook(lvlm, verify)
        self._lvlm, self._threshold = lvlm, verify.threshold(lvlm.preset)
        limit = lvlm.preset.generation.max_new_tokens
        self._rules = GuideRules(lvlm.parser, self.look.finder.words, lvlm.ends.ids, limit)

    def answers(
        self, images: Sequence[Shown], inputs: Any, settings: dict[str, Any], *, seeds: Sequence[int], task: str
    ) -> list[Answer]:
        """Return guided captions, with the objects that were asked about."""
        trail = Trail(range(len(images)))
        drafts = captions(self._lvlm, inputs, seeds, task=task, trail=trail)
        looks = self.look.at(images, inputs, trail)
        asked = [self._asked(at, texts) for at, texts in zip(looks, drafts.texts, strict=True)]
        texts = [self._begun(row, drafts.tokens[row], candidates) for row, candidates in enumerate(asked)]
        todo = [text for text in texts if text.begun != drafts.tokens[text.row]]
        decoded = Decoded(self._lvlm, inputs, seeds, task=task, trail=drafts.trail or trail)
        tokens = [*drafts.tokens]
        for text, changed in zip(todo, decoded.go_on(todo), strict=True):
            tokens[text.row] = changed
        lengths = zip(*self._lvlm.lengths(inputs), strict=True)
        answers = [self._lvlm.answer_of(row, *counts) for row, counts in zip(tokens, lengths, strict=True)]
        return [self._answer(*each, settings) for each in zip(answers, asked, looks, strict=True)]

    def _asked(self, at: PictureLook, texts: Sequence[str]) -> _Candidates:
        """Ask about each object that some captions of a picture name."""
        words, found = self._rules.words, dict[str, Thing]()
        for text in texts:
            for thing in words.things(text):
                found.setdefault(thing.name, replace(thing, spans=()))
        claims = at.check("", list(found.values())).objects
        drafted = frozenset(thing.group for thing in words.things(texts[0]))
        return _Candidates(texts[0], drafted, claims, [claim for claim in claims if claim.support < self._threshold])

    def _begun(self, row: int, draft: list[int], candidates: _Candidates) -> Continuation:
        """Return the text that goes on where its guide departs from the draft: until then, both are the same."""
        group, doubted = self._rules.words.group, frozenset(claim.thing for claim in candidates.doubted)
        supported = frozenset(group(claim.thing) for claim in candidates.claims if claim.thing not in doubted)
        guide = Guide(self._rules, supported, doubted)
        begun = draft[: guide.agrees(draft)]
        if begun == draft and guide.first(guide.text(draft), ended=True) is not None:
            begun = draft[:-1]  # a name of several tokens
        return Continuation(row, guide, begun)

    def _answer(self, answer: Answer, candidates: _Candidates, at: PictureLook, settings: dict[str, Any]) -> Answer:
        """Return a caption in its final form, with the claims about its picture."""
        preset, words = self._lvlm.preset, self._rules.words
        finished = preset.text.finished(answer)
        first = preset.text.finished(replace(answer, text=candidates.draft)).text
        check = at.check(finished.text)
        named = {claim.thing for claim in check.objects}
        removed = {thing.name for thing in words.things(candidates.draft)} - named
        answer = replace(
            check.added_to(finished, settings),
            candidates=removed_of(candidates.claims),
            added=sorted(name for name in named if words.group(name) not in candidates.drafted),
            forbidden=sorted(claim.thing for claim in candidates.doubted),
        )
        if finished.text == first:
            return answer
        return replace(
            answer, draft=first, removed=[claim.removed() for claim in candidates.doubted if claim.thing in removed]
        )
