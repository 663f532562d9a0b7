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

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria

from sira_cli.look.claims import Claim, without_places
from sira_cli.look.continuing import Continuation, Decoded
from sira_cli.look.guide import Guide, GuideRules, whole_sentences
from sira_cli.look.second_look import PictureLook, SecondLook
from sira_cli.look.verify import Verify
from sira_cli.look.words import Thing
from sira_cli.methods.base import Ability
from sira_cli.models.model import LoadedModel
from sira_cli.models.preset import Generation
from sira_cli.models.progress import Start, Trail
from sira_cli.models.sampling import derived_seed, sampler
from sira_cli.models.texts import Answer, sentence_ends

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown


@dataclass(frozen=True)
class Captions:
    """Several captions of each of B pictures: the one under the settings in force, then samples."""

    texts: list[list[str]]  # by picture
    tokens: list[list[int]]  # of the first of each picture
    trail: Trail  # of decoding the first ones, or the one that was given


@dataclass(frozen=True)
class _Candidates:
    """The objects that a picture may show."""

    draft: str  # the method's own caption
    drafted: frozenset[str]  # heads of the objects that it names
    claims: Sequence[Claim]  # all that were asked about
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
        trail = Trail(range(len(images)))
        drafts = captions(self._lvlm, inputs, seeds, task=task, trail=trail)
        looks = self.look.at(images, inputs, trail)
        asked = [self._asked(at, texts) for at, texts in zip(looks, drafts.texts, strict=True)]
        texts = [self._begun(row, drafts.tokens[row], candidates) for row, candidates in enumerate(asked)]
        todo = [text for text in texts if text.begun != drafts.tokens[text.row]]
        decoded = Decoded(self._lvlm, inputs, seeds, task=task, trail=drafts.trail)
        new = dict(zip((text.row for text in todo), decoded.go_on(todo), strict=True))
        answers = []
        for row, counts in enumerate(zip(*self._lvlm.lengths(inputs), strict=True)):
            answer = self._lvlm.answer_of(new.get(row, drafts.tokens[row]), *counts)
            if row in new:
                answer = _without_fragment(answer, asked[row].draft)
            answers.append(self._answer(answer, asked[row], looks[row], settings))
        return answers

    def _asked(self, at: PictureLook, texts: Sequence[str]) -> _Candidates:
        """Ask about each object that some captions of a picture name."""
        things: dict[str, Thing] = {}
        for text in texts:
            for thing in self._rules.words.things(text):
                things.setdefault(thing.name, replace(thing, spans=()))
        claims = at.check("", list(things.values())).objects
        drafted = frozenset(thing.group for thing in self._rules.words.things(texts[0]))
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
        text_settings, words = self._lvlm.preset.text, self._rules.words
        finished = text_settings.finished(answer)
        first = text_settings.finished(replace(answer, text=candidates.draft)).text
        check = at.check(finished.text)
        named = {claim.thing for claim in check.objects}
        answer = replace(
            check.added_to(finished, settings),
            candidates=without_places(sorted(candidates.claims, key=lambda claim: -claim.support)),
            added=sorted(name for name in named if words.group(name) not in candidates.drafted),
            forbidden=sorted(claim.thing for claim in candidates.doubted),
        )
        if finished.text == first:
            return answer
        removed = {thing.name for thing in words.things(candidates.draft)} - named
        doubted = without_places(claim for claim in candidates.doubted if claim.thing in removed)
        return replace(answer, draft=first, removed=doubted)


def _without_fragment(answer: Answer, draft: str) -> Answer:
    """Return an answer of whole sentences: where its guide leaves no way on, a model may end a text within one.

    A model whose draft ends no sentence writes without full stops.
    """
    whole = whole_sentences(answer.text)
    if answer.finish_reason != "stop" or whole == answer.text or not sentence_ends(draft, "en"):
        return answer
    return replace(answer, text=whole, finish_reason="cut")


def captions(lvlm: LoadedModel, inputs: Any, seeds: Sequence[int], *, task: str, trail: Trail) -> Captions:
    """Caption each of B pictures several times.

    The picture and the prompt are computed once, also for the questions and the final text. The method's own caption
    and its samples are one batch that goes on from there. A method whose cache cannot be divided so captions the
    pictures again for each sample.
    """
    count = lvlm.preset.guide.captions if Ability.SAMPLING in lvlm.decoder.abilities else 1
    drawn = [[_seed(seed, number) for number in range(count)] for seed in seeds]
    heat = lvlm.preset.guide.heat
    rows = [row for row in range(len(seeds)) for _ in range(count)]
    back = None
    if lvlm.leaves_trail:  # the prompts, each with one token
        start = Start([[]] * len(seeds), new_tokens=1)
        trail.end(lvlm.generate(inputs, seeds=seeds, task=task, start=start, trail=trail).tolist())
        back = trail.back(inputs, rows, [[] for _ in rows])
    if back is None:
        models = [lvlm, *[_at(lvlm, heat)] * (count - 1)]
        each = [
            model.generate(inputs, seeds=own, task=task)
            for model, own in zip(models, zip(*drawn, strict=True), strict=True)
        ]
        texts = [[lvlm.answer_of(tokens[row].tolist()).text for tokens in each] for row in range(len(seeds))]
        return Captions(texts, [lvlm.ends.until_end(row) for row in each[0].tolist()], trail)
    repeated, start = back
    settings, own = lvlm.preset.generation, LogitsProcessorList()
    if settings.temperature > 0:
        own = sampler(seeds, settings)
    samples = sampler([seed for row in drawn for seed in row[1:]], Generation(temperature=heat))
    mixed, ends = Mixed(count, own, samples), WithFirst(count, lvlm.ends.ids)
    start = Start(start.tokens, start.in_inputs, start.cache, (mixed,), (ends,))
    decoded, every = Trail(rows), [seed for row in drawn for seed in row]
    tokens = _at(lvlm, 0.0).generate(repeated, seeds=every, task=task, start=start, trail=decoded).tolist()
    decoded.end(tokens)
    ended = [lvlm.answer_of(row).text for row in tokens]
    texts = [ended[first : first + count] for first in range(0, len(ended), count)]
    return Captions(texts, [lvlm.ends.until_end(row) for row in tokens[::count]], decoded)


class WithFirst(StoppingCriteria):
    """Ends the captions of a picture with its first one: longer ones seldom name more."""

    def __init__(self, count: int, ends: Sequence[int]) -> None:
        self._count, self._ends = count, torch.tensor(sorted(ends))

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """Return whether each text ends, `[B]`; `input_ids [B, S]` are all tokens so far."""
        first = torch.isin(input_ids[:: self._count, -1], self._ends.to(input_ids.device))
        return first.repeat_interleave(self._count)


class Mixed(LogitsProcessor):
    """Processors for the first of every `count` rows of a batch, and others for the samples between them."""

    def __init__(self, count: int, first: LogitsProcessorList, others: LogitsProcessorList) -> None:
        self._count, self._parts = count, ((True, first), (False, others))

    def __call__(self, input_ids: Any, scores: Any) -> Tensor:
        """Return the processed `scores [B, V]`; `input_ids [B, S]` are all tokens so far."""
        number = torch.arange(len(scores), device=scores.device)
        mixed: Tensor = scores
        for is_first, processors in self._parts:
            rows = number[(number % self._count == 0) == is_first]
            if processors and len(rows):
                mixed = mixed.index_copy(0, rows, processors(input_ids[rows], mixed[rows]))
        return mixed


def _seed(seed: int, number: int) -> int:
    """Return the seed of a picture's caption of this number; the first is that of the settings in force."""
    return derived_seed(seed, f"caption {number}") if number else seed


def _at(lvlm: LoadedModel, temperature: float) -> LoadedModel:
    """Return the same model at another temperature."""
    other = copy.copy(lvlm)
    other.preset = lvlm.preset.with_settings(temperature=temperature, top_p=1.0, top_k=0, min_p=0.0)
    return other
