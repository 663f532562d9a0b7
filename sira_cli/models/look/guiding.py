"""Captions that are decoded after a second look at the objects that their picture may show.

captions     There is a dog and a cup. / There is a dog and a cat. / ...     of the same picture (`candidates`)
questions    dog: 0.99, cat: 0.95, cup: 0.12                                 one pass over the picture's rows
the text     There is a dog on the left and a cat in the middle.             the dog and the cat, once, no cup (`guide`)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sira_cli.data.records.record import Answer
from sira_cli.language.things import Thing
from sira_cli.models.answering.answers import AnsweringModel
from sira_cli.models.answering.starts import Trail
from sira_cli.models.look.candidates import captions
from sira_cli.models.look.claims import Claim
from sira_cli.models.look.continuing import Continuation, Decoded
from sira_cli.models.look.guide import Guide, GuideRules
from sira_cli.models.look.second_look import PictureLook, SecondLook
from sira_cli.models.look.verify import Verify

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown


class GuidedCaptions:
    """Captions that name supported objects only, with a loaded model and its method."""

    def __init__(self, lvlm: AnsweringModel, verify: Verify) -> None:
        """Prepare to caption.

        Args:
            lvlm: the model.
            verify: the threshold and the words.

        Raises:
            UnsupportedModelError: the tokenizer has no token for yes or no.
        """
        if lvlm.preset.generation.on_loop == "retry":  # a second try would not be guided
            lvlm = copy.copy(lvlm)
            lvlm.preset = lvlm.preset.with_settings(on_loop="trim")
        self.look = SecondLook(lvlm, verify)
        self._lvlm, self._threshold = lvlm, verify.threshold(lvlm.preset)
        finder, limit = self.look.words, lvlm.preset.generation.max_new_tokens
        self._rules = GuideRules(lvlm.parser, finder.objects, finder.wording, lvlm.ends.ids, limit)

    def answers(
        self, images: Sequence[Shown], inputs: Any, settings: dict[str, Any], *, seeds: Sequence[int], task: str
    ) -> list[Answer]:
        """Return guided captions, with the objects that were asked about.

        Args:
            images: B pictures or groups, RGB.
            inputs: from `prepare` for their prompts, on the model's device.
            settings: from `Verify.settings`, for their records.
            seeds, task: as for `generate`.
        """
        trail = Trail(range(len(images)))
        drafts = captions(self._lvlm, inputs, seeds, task=task, trail=trail)
        looks = self.look.at(images, inputs, trail)
        asked = [self._asked(at, texts) for at, texts in zip(looks, drafts, strict=True)]
        texts = [Continuation(row, [], self._guide(claims)) for row, claims in enumerate(asked)]
        decoded = Decoded(self._lvlm, inputs, seeds, words=self._rules.words, task=task, trail=trail)
        lengths = zip(*self._lvlm.lengths(inputs), strict=True)
        return [
            self._answer(self._lvlm.answer_of(tokens, *counts), draft, claims, at, settings)
            for tokens, counts, (draft, *_), claims, at in zip(
                decoded.go_on(texts), lengths, drafts, asked, looks, strict=True
            )
        ]

    def _asked(self, at: PictureLook, texts: Sequence[str]) -> list[Claim]:
        """Ask about each object that some captions of a picture name."""
        found: dict[str, Thing] = {}
        for text in texts:
            for thing in self._rules.words.things(text):
                found.setdefault(thing.key, replace(thing, spans=()))
        return list(at.check("", list(found.values())).objects)

    def _guide(self, claims: Sequence[Claim]) -> Guide:
        group = self._rules.words.group
        supported = frozenset(group(claim.thing) for claim in claims if claim.support >= self._threshold)
        return Guide(
            self._rules, supported, frozenset(claim.thing for claim in claims if claim.support < self._threshold)
        )

    def _answer(
        self, answer: Answer, draft: str, claims: Sequence[Claim], at: PictureLook, settings: dict[str, Any]
    ) -> Answer:
        """Return a caption in its final form, with the claims about its picture."""
        preset, group = self._lvlm.preset, self._rules.words.group
        finished = preset.text.finished(answer)
        first = preset.text.finished(replace(answer, text=draft)).text
        check = at.check(finished.text)
        drafted = {thing.group for thing in self._rules.words.things(draft)}
        named = {claim.thing for claim in check.objects}
        doubted = [claim for claim in claims if claim.support < self._threshold]
        removed = [
            claim.removed()
            for claim in doubted
            if claim.thing in {thing.name for thing in self._rules.words.things(draft)} - named
        ]
        answer = replace(
            check.added_to(finished, settings),
            candidates=[claim.removed() for claim in sorted(claims, key=lambda claim: -claim.support)],
            added=sorted(name for name in named if group(name) not in drafted),
            forbidden=sorted(claim.thing for claim in doubted),
        )
        return answer if finished.text == first else replace(answer, draft=first, removed=removed)
