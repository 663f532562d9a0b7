"""Captions that are decoded after a second look at the objects that their picture may show.

captions     There is a dog and a cup. / There is a dog and a cat. / ...     of the same picture
questions    dog: 0.99, cat: 0.95, cup: 0.12                                 one pass over the picture's rows
the text     There is a dog on the left and a cat in the middle.             the dog and the cat, once, no cup (`guide`)

A text goes on from one of its tokens as if decoded in one go. The first tokens are given: the method computes them like
its own, but picks no others. Most are not computed again if the method's cache is enough: it is cut back to them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

from sira_cli.look.claims import Claim, Verify, without_places
from sira_cli.look.guide import Guide, GuideMask, GuideRules, last_sentence, whole_sentences
from sira_cli.look.second_look import PictureLook, SecondLook
from sira_cli.look.words import Thing
from sira_cli.models.model import LoadedModel
from sira_cli.models.progress import Start, Trail
from sira_cli.models.several import several
from sira_cli.models.texts import Answer, sentence_ends

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

TRIES = 16  # times that a text may begin to name what its guide forbids, before it ends

Texts = Callable[[Tensor], list[list[int]]]  # from all `input_ids [B, S]` to the tokens of the texts


@dataclass(frozen=True)
class _Caption:
    """A picture's caption, which goes on under a guide after its first tokens (`begun`)."""

    row: int  # in the batch
    guide: Guide
    begun: list[int]
    draft: str  # the method's own caption
    claims: Sequence[Claim]  # all objects that were asked about
    doubted: Sequence[Claim]  # those that are not supported


class GuidedCaptions:
    """Captions that name supported objects only, with a loaded model and its method."""

    def __init__(self, lvlm: LoadedModel, verify: Verify) -> None:
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
        lvlm, trail = self._lvlm, Trail(range(len(images)))
        guide = lvlm.preset.guide
        drawn = several(
            lvlm,
            inputs,
            seeds,
            count=guide.captions,
            heat=guide.heat,
            task=task,
            trail=trail,
            with_first=True,
        )
        texts = [[lvlm.answer_of(row).text for row in rows] for rows in drawn.tokens]
        drafts = [rows[0] for rows in drawn.tokens]
        looks = self.look.at(images, inputs, trail)
        begun = [self._begun(row, look, texts[row], drafts[row]) for row, look in enumerate(looks)]
        todo = {each.row: each for each in begun if each.begun != drafts[each.row]}
        new = Decoded(lvlm, inputs, seeds, task=task, trail=drawn.trail).go_on(todo)
        answers = []
        for each, look, pictured, asked in zip(begun, looks, *lvlm.lengths(inputs), strict=True):
            answer = lvlm.answer_of(new.get(each.row, drafts[each.row]), pictured, asked)
            whole = whole_sentences(answer.text)
            # Where its guide leaves no way on, a model may end a text within a sentence. One whose draft ends no
            # sentence writes without full stops.
            cut = each.row in new and answer.finish_reason == "stop" and sentence_ends(each.draft)
            if cut and whole != answer.text:
                answer = replace(answer, text=whole, finish_reason="cut")
            answers.append(self._answer(answer, each, look, settings))
        return answers

    def _begun(self, row: int, look: PictureLook, texts: Sequence[str], draft: list[int]) -> _Caption:
        """Ask about each object that some captions of a picture name; return the part of the first that can stay."""
        words, things = self._rules.words, dict[str, Thing]()
        for text in texts:
            for thing in words.things(text):
                things.setdefault(thing.name, replace(thing, spans=()))
        claims = look.check("", list(things.values())).objects
        doubted = [claim for claim in claims if claim.support < self._threshold]
        names = frozenset(claim.thing for claim in doubted)
        supported = frozenset(words.group(claim.thing) for claim in claims if claim.thing not in names)
        guide = Guide(self._rules, supported, names)
        begun = draft[: guide.agrees(draft)]  # the guide departs from the draft there
        if begun == draft and guide.first(guide.text(draft), ended=True) is not None:
            begun = draft[:-1]  # a name of several tokens
        return _Caption(row, guide, begun, texts[0], claims, doubted)

    def _answer(self, answer: Answer, caption: _Caption, look: PictureLook, settings: dict[str, Any]) -> Answer:
        """Return a caption in its final form, with the claims about its picture."""
        text_settings, words = self._lvlm.preset.text, self._rules.words
        finished = text_settings.finished(answer)
        first = text_settings.finished(replace(answer, text=caption.draft)).text
        check, drafted = look.check(finished.text), words.things(caption.draft)
        named = {claim.thing for claim in check.objects}
        heads = {thing.group for thing in drafted}
        answer = replace(
            check.added_to(finished, settings),
            candidates=without_places(sorted(caption.claims, key=lambda claim: -claim.support)),
            added=sorted(name for name in named if words.group(name) not in heads),
            forbidden=sorted(claim.thing for claim in caption.doubted),
        )
        if finished.text == first:
            return answer
        removed = {thing.name for thing in drafted} - named
        return replace(
            answer, draft=first, removed=without_places(each for each in caption.doubted if each.thing in removed)
        )


class Decoded:
    """B prompts and their texts, each of which can go on from any of its tokens."""

    def __init__(self, lvlm: LoadedModel, inputs: Any, seeds: Sequence[int], *, task: str, trail: Trail) -> None:
        self._lvlm, self._inputs, self._seeds, self._task = lvlm, inputs, seeds, task
        self._trails = dict.fromkeys(range(len(inputs["input_ids"])), trail)

    def go_on(self, texts: dict[int, _Caption]) -> dict[int, list[int]]:
        """Return the tokens of texts that follow their guides, by row; where no way is left, a text ends.

        ... There is a dog on     a text that certainly names a forbidden object ends (`Watch`)
        ... There is a | dog      the token that began the name may no longer follow these tokens
        ... There is a cat ...    decoding goes on from there
        """
        done: dict[int, list[int]] = {}
        starts = {row: text.begun for row, text in texts.items()}
        for number in range(TRIES + 1):
            todo = {row: text.guide for row, text in texts.items() if row not in done}
            for guide in todo.values():
                guide.dead = None
            for row, (tokens, ended) in (self._decode(todo, starts) if todo else {}).items():
                guide = todo[row]
                plain = guide.text(tokens)
                span, repeats = guide.first(plain, ended=ended), guide.repeats(plain)
                if span is None and repeats is not None:
                    tokens = [*tokens[: _reach(guide, tokens, repeats)], *self._lvlm.ends.ids[:1]]
                if span is None:
                    done[row] = tokens
                    continue
                name = _reach(guide, tokens, span[0] + 1, 1)
                while name > 0 and not guide.ban(tokens[:name]):
                    name -= 1  # the method's cut-off left no other token
                if number == TRIES or name == 0:  # it ends after its last whole sentence
                    whole = _reach(guide, tokens, last_sentence(plain[: span[0]]))
                    done[row] = [*tokens[:whole], *self._lvlm.ends.ids[:1]]
                starts[row] = tokens[: max(name - 1, 0)]
        return done

    def _decode(self, guides: dict[int, Guide], starts: dict[int, list[int]]) -> dict[int, tuple[list[int], bool]]:
        new: dict[int, tuple[list[int], bool]] = {}
        for trail in {id(trail): trail for trail in (self._trails[row] for row in guides)}.values():
            rows = own = [row for row in guides if self._trails[row] is trail]
            back = trail.back(self._inputs, rows, [starts[row] for row in rows])
            if back is None:  # all rows, from the prompts on; the others are idle
                rows = list(range(len(self._inputs["input_ids"])))
                back = self._inputs, Start([starts[row] if row in own else [] for row in rows])
            decoded = self._generate(*back, rows, [guides[row] if row in own else None for row in rows])
            new |= {row: one for row, one in zip(rows, decoded, strict=True) if row in own}
        return {row: new[row] for row in guides}

    def _generate(
        self, inputs: Any, start: Start, rows: Sequence[int], guides: Sequence[Guide | None]
    ) -> list[tuple[list[int], bool]]:
        lvlm, prompt = self._lvlm, inputs["input_ids"].shape[1]
        before = [list(tokens[: start.in_inputs]) for tokens in start.tokens]

        def texts(input_ids: Tensor) -> list[list[int]]:
            return [[*first, *ids] for first, ids in zip(before, input_ids[:, prompt:].tolist(), strict=True)]

        watch, trail = Watch(guides, texts), Trail(rows)
        mask = GuideMask(guides, texts, [len(tokens) for tokens in start.tokens])
        given = GivenTokens([tokens[start.in_inputs :] for tokens in start.tokens], prompt)
        start = replace(start, processors=(mask, given), stopping=(watch,))
        seeds = [self._seeds[row] for row in rows]
        output = lvlm.generate(inputs, seeds=seeds, task=self._task, start=start, trail=trail)
        tokens = [[*first, *row] for first, row in zip(before, output.tolist(), strict=True)]
        trail.end(tokens)
        self._trails |= {row: trail for row, guide in zip(rows, guides, strict=True) if guide is not None}
        return [
            (row[: watch.lengths[place]], False) if place in watch.lengths else (lvlm.ends.until_end(row), True)
            for place, row in enumerate(tokens)
        ]


class Watch(StoppingCriteria):
    """Ends texts of a batch that certainly say what their guides forbid, and idle ones; the others go on."""

    def __init__(self, guides: Sequence[Guide | None], texts: Texts) -> None:
        self._guides, self._texts = guides, texts
        self.lengths: dict[int, int] = {}  # in tokens, of the texts that it has ended, by number

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Return whether each text ends, `[B]`; `input_ids [B, S]` are all tokens so far."""
        for row, (guide, tokens) in enumerate(zip(self._guides, self._texts(input_ids), strict=True)):
            if row not in self.lengths and (guide is None or guide.stops(guide.text(tokens))):
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
