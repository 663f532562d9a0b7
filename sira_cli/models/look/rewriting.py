"""Texts without the objects that the picture does not support: decoded again from before each of them.

    look     There is a dog on the left and a cup on the right.     cup: not supported
    keep     There is a dog on the left and a                       token by token; "a" only if more may follow
    go on    There is a dog on the left and a lamp on the right.    a cup may not be named, whatever it is called
    look     ... until all named objects are supported, or the rounds are used up

The same method with the same settings continues the kept text.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sira_cli.data.records.record import Answer, FinishReason
from sira_cli.language.things import key_of
from sira_cli.models.answering.answers import AnsweringModel
from sira_cli.models.answering.starts import Trail
from sira_cli.models.look.claims import Check, Claim
from sira_cli.models.look.continuing import Continuation, Decoded
from sira_cli.models.look.forbidding import Forbidden, reach
from sira_cli.models.look.rewritten import Rewritten as Rewritten  # also public here
from sira_cli.models.look.second_look import PictureLook, SecondLook
from sira_cli.models.look.sentences import sentence_spans
from sira_cli.models.look.verify import Verify

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown


@dataclass
class _Draft:
    """A text in progress.

    Attributes:
        row: its place in the batch.
        at: the look at its picture.
        check: check of the text in its final form.
        finished: returns the text in its final form, and the place of `plain` in it.
        plain: the model's reasoning and the text, before text settings.
        begins: end of the reasoning in `plain`; None: the reasoning has several parts, and the text is not changed.
        tokens: tokens of the decoded text.
        head: beginning of the text that was not decoded here; equals the first `told` characters of the decoded
            tokens.
        at_once: whether the text is from another source, so that the model continues without reasoning.
        doubted: objects to remove.
        kept: keys of claims that could not be removed.
    """

    row: int
    at: PictureLook
    check: Check
    finished: Callable[[str, FinishReason, int], tuple[str, int]]
    plain: str
    begins: int | None = 0
    tokens: list[int] = field(default_factory=list)
    reason: FinishReason = "stop"
    head: str = ""
    told: int = 0
    at_once: bool = False
    doubted: list[Claim] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)

    def removed(self) -> tuple[Claim, ...]:
        """Return the removed objects."""
        named = {claim.key for claim in self.check.all}
        return tuple(claim for claim in self.doubted if claim.key not in named)


class Rewriter:
    """Removes unsupported objects from texts, with a loaded model and its method."""

    def __init__(self, lvlm: AnsweringModel, verify: Verify | None = None) -> None:
        """Prepare to rewrite.

        Args:
            lvlm: the model.
            verify: the threshold, the words and the rounds; None: the defaults.

        Raises:
            UnsupportedModelError: the tokenizer has no token for yes or no.
        """
        verify = verify or Verify(mode="rewrite")
        if lvlm.preset.generation.on_loop == "retry":  # a second try of a part would need that of the first tokens
            lvlm = copy.copy(lvlm)
            lvlm.preset = lvlm.preset.with_settings(on_loop="trim")
        self.look = SecondLook(lvlm, verify)
        self._lvlm, self._thresholds, self._rounds = (
            lvlm,
            verify.thresholds(lvlm.preset),
            verify.most_rounds(lvlm.preset),
        )

    def rewrite(self, image: Shown, text: str) -> Rewritten:
        """Rewrite a text from any source.

        Args:
            image: the picture, or those of a group, RGB.
            text: the text about it; the part before the first unsupported object is not changed.
        """
        at = PictureLook(self.look, image)
        draft = _Draft(0, at, at.check(text), lambda plain, reason, begins: (plain, 0), text, head=text, at_once=True)
        if self._first(draft) is not None:
            prompt = self._lvlm.preset.prompts.caption
            self._lvlm.check_prompt(prompt)
            inputs = self._lvlm.to_device(self._lvlm.prepare([image], [prompt], at_once=True))
            self._rewrite([draft], Decoded(self._lvlm, inputs, [0], words=self.look.words), inputs["input_ids"])
        return Rewritten(draft.check.text, draft.removed(), draft.check)

    def rewritten(
        self,
        images: Sequence[Shown],
        answers: Sequence[Answer],
        inputs: Any,
        settings: dict[str, Any],
        *,
        seeds: Sequence[int],
        task: str,
        trail: Trail,
    ) -> list[Answer]:
        """Return answers without unsupported objects, with the removed ones.

        Args:
            images: B pictures or groups, RGB.
            answers: B decoded answers.
            inputs: their inputs, on the model's device.
            settings: from `Verify.settings`, for their records.
            seeds, task, trail: as for decoding them.
        """
        first = [self._lvlm.preset.text.finished(answer) for answer in answers]
        looks = self.look.at(images, inputs, trail)
        drafts = []
        for row, (at, answer, begun) in enumerate(zip(looks, answers, first, strict=True)):
            plain, begins = self._plain(answer.tokens, answer.text, answer.reasoning)
            check, tokens = at.check(begun.text), list(answer.tokens)
            drafts.append(_Draft(row, at, check, self._finished, plain, begins, tokens, answer.finish_reason))
        decoded = Decoded(self._lvlm, inputs, seeds, words=self.look.words, task=task, trail=trail)
        self._rewrite(drafts, decoded, inputs["input_ids"])
        return [self._answer(draft, answer, settings) for draft, answer in zip(drafts, first, strict=True)]

    def _answer(self, draft: _Draft, first: Answer, settings: dict[str, Any]) -> Answer:
        answer = draft.check.added_to(first, settings)
        if draft.check.text == first.text:
            return answer
        return replace(
            answer,
            text=draft.check.text,
            finish_reason=draft.reason,
            output_tokens=len(draft.tokens),
            tokens=tuple(draft.tokens),
            draft=first.text,
            removed=[claim.removed() for claim in draft.removed()],
        )

    def _finished(self, plain: str, reason: FinishReason, begins: int) -> tuple[str, int]:
        """Return a decoded text in its final form, and the place of the decoded part in it."""
        settings, text = self._lvlm.preset.text, plain[begins:]
        written = settings.finished(Answer(text.strip(), reason)).text
        return written, len(settings.prefix) - begins - (len(text) - len(text.lstrip()))

    def _plain(self, tokens: Sequence[int], text: str, reasoning: str | None) -> tuple[str, int | None]:
        """Return the decoded text up to the end of `text`, and the start of `text` in it, if it can be found."""
        whole = self._lvlm.vocabulary.text(tokens)
        before = len(whole) - len(whole.lstrip())
        if not reasoning and whole.startswith(text, before):
            return whole[: before + len(text)], 0
        begins = whole.rfind(text)
        return (whole[: begins + len(text)], begins) if begins >= 0 else (text, None)

    def _first(self, draft: _Draft) -> tuple[Claim, int] | None:
        """Return the first unsupported object that can be removed, and its place in the decoded text."""
        if draft.begins is None:
            return None
        _, offset = draft.finished(draft.plain, draft.reason, draft.begins)
        found = [
            (start - offset, claim)
            for claim in draft.check.below(self._thresholds)
            for start, end in claim.spans
            if claim.key not in draft.kept
            and start >= offset
            and draft.plain[start - offset : end - offset] == draft.check.text[start:end]  # no prefix, no suffix
        ]
        if not found:
            return None
        start, claim = min(found, key=lambda one: one[0])
        return claim, start

    def _rewrite(self, drafts: Sequence[_Draft], decoded: Decoded, prompts: Any) -> None:
        """Decode texts again until all their objects are supported, or the rounds are used up."""
        for _ in range(self._rounds):
            going: list[tuple[_Draft, Continuation]] = []
            for draft in drafts:
                if (doubt := self._first(draft)) is not None:
                    going.append((draft, self._cut(draft, *doubt, prompts[draft.row].tolist())))
            if not going:
                return
            limit = self._lvlm.preset.generation.max_new_tokens
            if going[0][0].at_once:
                limit += len(going[0][1].begun)
            texts = decoded.go_on([text for _, text in going], limit)
            for (draft, _), tokens in zip(going, texts, strict=True):
                ended = self._lvlm.ended(tokens, at_once=draft.at_once)
                draft.tokens, draft.reason = ended.tokens, ended.finish_reason
                plain, draft.begins = self._plain(ended.tokens, ended.text, ended.reasoning)
                draft.plain = draft.head + plain[draft.told :]
                draft.check = draft.at.check(draft.finished(draft.plain, draft.reason, draft.begins or 0)[0])
                named = {claim.key for claim in draft.check.all}
                draft.kept |= {claim.key for claim in draft.doubted if claim.key in named}

    def _cut(self, draft: _Draft, claim: Claim, start: int, prompt: Sequence[int]) -> Continuation:
        """Cut a text off before an object, and return its continuation."""
        vocabulary, words = self._lvlm.vocabulary, self.look.words
        draft.doubted.append(claim)
        forbidden = Forbidden(
            frozenset(key_of(words.group(each.thing), each.kind, each.value) for each in draft.doubted),
            draft.at.supported(self._thresholds),
        )
        sentences = sentence_spans(draft.plain, words.wording.code)
        sentence = max(first for first, _ in [(0, 0), *sentences] if first <= start)
        if start < len(draft.head):
            return self._told(draft, draft.head[:start].rstrip(), sentence, prompt, forbidden)
        moved = draft.told - len(draft.head)

        def before(place: int) -> int:
            """Return the number of tokens before a place in the text."""
            return reach(vocabulary, draft.tokens, place + moved + 1) - 1

        name = before(start)
        begun = draft.tokens[:name]
        while begun and vocabulary.data(begun[-1]) == b" ":
            begun = begun[:-1]
        kept = begun[: before(max(sentence, draft.begins or 0, len(draft.head)))]
        text = Continuation(draft.row, kept, forbidden, begun=begun)
        text.bans.add(draft.tokens[: name + 1])
        return text

    def _told(
        self, draft: _Draft, text: str, sentence: int, prompt: Sequence[int], forbidden: Forbidden
    ) -> Continuation:
        """Return the continuation of a text that was not decoded here; its last sentence may change, if need be."""
        vocabulary = self._lvlm.vocabulary
        begun = vocabulary.encode_after(prompt, text)
        decoded = vocabulary.text(begun)
        lead = len(decoded) - len(text)
        kept = begun[: reach(vocabulary, begun, lead + sentence + 1) - 1] if sentence < len(text) else begun
        draft.head = text[:sentence].rstrip()
        draft.told = len(vocabulary.text(kept)) if draft.head else lead
        if draft.head + decoded[draft.told :] != text:  # the tokenizer changes the text
            draft.head, draft.told, kept = text, len(decoded), begun
        return Continuation(draft.row, kept, forbidden, begun=begun)
