"""Captions that are decoded after a second look at the objects that their picture may show.

captions     There is a dog and a cup. / There is a dog and a cat. / ...     of the same picture
questions    dog: 0.99, cat: 0.95, cup: 0.12                                 one pass over the picture's rows
the text     There is a dog on the left and a cat in the middle.             the dog and the cat, once, no cup (`guide`)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sira_cli.look.claims import Claim, without_places
from sira_cli.look.guide import Guide, GuideRules
from sira_cli.look.redecoding import Redecoder
from sira_cli.look.second_look import PictureLook, SecondLook
from sira_cli.look.sentences import whole_sentences
from sira_cli.look.words import Thing
from sira_cli.models.model import LoadedModel
from sira_cli.models.progress import Trail
from sira_cli.models.several import several
from sira_cli.models.texts import Answer, sentence_ends

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown


@dataclass(frozen=True)
class _Caption:
    """A picture's caption before its guide changes it.

    Attributes:
        guide: what the caption may name.
        draft: the tokens of the method's own caption.
        begun: the first of them, which the guide lets stay.
        text: the text of the draft.
        claims: all objects that were asked about.
        doubted: those that are not supported.
    """

    guide: Guide
    draft: list[int]
    begun: list[int]
    text: str
    claims: Sequence[Claim]
    doubted: Sequence[Claim]


class GuidedCaptions:
    """Captions that name supported objects only, with a loaded model and its method."""

    def __init__(self, lvlm: LoadedModel, look: SecondLook, kind: str) -> None:
        """Prepare to guide by a second look of the same model; `kind` is the task's, `caption` or `ask`."""
        lvlm = copy.copy(lvlm)
        if lvlm.sira.beta is None:
            lvlm.sira = replace(lvlm.sira, beta=lvlm.preset.guide.cut_off)
        self._lvlm = lvlm
        self._look = look
        self._kind = kind
        limit = lvlm.preset.generation.max_new_tokens
        self._rules = GuideRules(lvlm.parser, look.finder.words, lvlm.ends.ids, limit)

    def answers(self, images: Sequence[Shown], inputs: Any, seeds: Sequence[int]) -> list[Answer]:
        """Return the guided captions of B pictures, with the objects that were asked about.

        Args:
            images: the pictures.
            inputs: of their prompts, on the model's device.
            seeds: one per picture.
        """
        lvlm = self._lvlm
        guide = lvlm.preset.guide
        trail = Trail(range(len(images)))
        drawn = several(
            lvlm,
            inputs,
            seeds,
            count=guide.captions,
            heat=guide.heat,
            task=self._kind,
            trail=trail,
            with_first=True,
        )
        looks = self._look.at(images, inputs, trail)
        captions = list(map(self._caption, drawn.tokens, looks))
        guides = {}
        begun = {}
        for row, caption in enumerate(captions):
            if caption.begun != caption.draft:
                guides[row] = caption.guide
                begun[row] = caption.begun
        redecoder = Redecoder(lvlm, inputs, seeds, task=self._kind, trail=drawn.trail)
        redecoded = redecoder.decode(guides, begun)
        answers = []
        for row, lengths in enumerate(zip(*lvlm.lengths(inputs), strict=True)):
            caption = captions[row]
            answer = lvlm.answer_of(redecoded.get(row, caption.draft), *lengths)
            if row in redecoded:
                answer = _without_rest(answer, caption.text)
            answers.append(self._finished(answer, caption, looks[row]))
        return answers

    def _caption(self, texts: Sequence[list[int]], look: PictureLook) -> _Caption:
        """Ask about each object that some captions of a picture name, and guide the first of them by the answers."""
        words = self._rules.words
        plain = [self._lvlm.answer_of(tokens).text for tokens in texts]
        things: dict[str, Thing] = {}
        for text in plain:
            for thing in words.things(text):
                things.setdefault(thing.name, replace(thing, spans=()))
        claims = look.check("", list(things.values())).objects
        threshold = self._look.settings["min_support"]
        doubted = []
        supported = set()
        for claim in claims:
            if claim.support < threshold:
                doubted.append(claim)
            else:
                supported.add(words.group(claim.thing))
        guide = Guide(self._rules, frozenset(supported), frozenset(claim.thing for claim in doubted))
        draft = texts[0]
        begun = draft[: guide.allowed_length(draft)]
        if begun == draft and guide.first_forbidden(draft, ended=True) is not None:
            begun = draft[:-1]  # a name of several tokens
        return _Caption(guide, draft, begun, plain[0], claims, doubted)

    def _finished(self, answer: Answer, caption: _Caption, look: PictureLook) -> Answer:
        """Return a caption in its final form, with the claims about its picture."""
        text_settings = self._lvlm.preset.text
        words = self._rules.words
        finished = text_settings.finished(answer)
        draft = text_settings.finished(replace(answer, text=caption.text)).text
        check = look.check(finished.text)
        named = {claim.thing for claim in check.objects}
        drafted = words.things(caption.text)
        groups = {thing.group for thing in drafted}
        answer = replace(
            check.added_to(finished, self._look.settings),
            candidates=without_places(sorted(caption.claims, key=lambda claim: -claim.support)),
            added=sorted(name for name in named if words.group(name) not in groups),
            forbidden=sorted(claim.thing for claim in caption.doubted),
        )
        if finished.text == draft:
            return answer
        removed = {thing.name for thing in drafted} - named
        doubted = [claim for claim in caption.doubted if claim.thing in removed]
        return replace(answer, draft=draft, removed=without_places(doubted))


def _without_rest(answer: Answer, draft: str) -> Answer:
    """Return a text without an unfinished sentence at its end.

    Where its guide leaves no way on, a model may end a text within a sentence. One whose draft ends no sentence writes
    without full stops.
    """
    if answer.finish_reason != "stop" or not sentence_ends(draft):
        return answer
    whole = whole_sentences(answer.text)
    return answer if whole == answer.text else replace(answer, text=whole, finish_reason="cut")
