"""A loaded model under a decoding method: from text tokens to answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sira_cli.core.forward_pass import Step
from sira_cli.models.answering.answer import Answer, FinishReason
from sira_cli.models.answering.decoding import DecodingModel
from sira_cli.models.answering.starts import Trail
from sira_cli.models.answering.word_scores import WordScores

if TYPE_CHECKING:
    from sira_cli.models.schemas.schema import Schema


@dataclass(frozen=True)
class TextEnd:
    """A text that has ended.

    Attributes:
        tokens: its tokens, without padding.
        finish_reason: why it ended.
        text, reasoning: the answer, and the model's thoughts before it.
        reasoning_tokens: number of tokens of the thoughts.
        error: the reason why it is not an answer, or empty.
    """

    tokens: list[int]
    finish_reason: FinishReason
    text: str
    reasoning: str
    reasoning_tokens: int
    error: str


class AnsweringModel(DecodingModel):
    """A `DecodingModel` that returns answers, with their finish reasons."""

    def answer(
        self,
        inputs: Any,
        on_text: Callable[[str], None] | None = None,
        *,
        seeds: Sequence[int] | None = None,
        words: bool = False,
        task: str = "caption",
        trail: Trail | None = None,
        schemas: Sequence[Schema | None] | None = None,
        on_tokens: Callable[[list[int], Step], None] | None = None,
        **watching: Any,
    ) -> list[Answer]:
        """Decode each row of prepared inputs.

        Args:
            inputs: from `prepare`.
            on_text, seeds: as in `generate`.
            words: score the words (`WordScores`) instead of calling `on_text`.
            task, trail, schemas, on_tokens: as in `generate`.
            **watching: `on_new` and `start`, as in `generate`.

        Raises:
            SettingsError: `words` with beams, or with a method without both streams.
        """
        inputs = self.to_device(inputs)
        image_tokens, prompt_tokens = self.lengths(inputs)
        scores = WordScores(self.parser, self.sira.alpha) if words else None
        watchers = [watcher for watcher in (scores.add if scores else None, on_tokens) if watcher is not None]

        def watch(new: list[int], step: Step) -> None:
            for watcher in watchers:
                watcher(new, step)

        tokens = self.generate(
            inputs,
            on_text,
            on_tokens=watch if watchers else None,
            seeds=seeds,
            task=task,
            trail=trail,
            schemas=schemas,
            **watching,
        )
        if trail is not None:
            trail.end(tokens.tolist())
        answers = []
        followed = [None] * len(image_tokens) if schemas is None else schemas
        rows = zip(tokens.tolist(), image_tokens, prompt_tokens, followed, strict=True)
        for number, (row, image, prompt, schema) in enumerate(rows):
            answer = self.answer_of(row, image, prompt, schema)
            if scores:
                found = scores.words(number, answer.output_tokens)
                answer = replace(answer, words=[word for word in found if word["end"] <= len(answer.text)])
            answers.append(answer)
        return answers

    def answer_of(self, row: list[int], image_tokens: int, prompt_tokens: int, schema: Schema | None = None) -> Answer:
        """Return the answer of a text's new tokens, which may be padded.

        Args:
            row: the tokens.
            image_tokens, prompt_tokens: the prompt's counts.
            schema: schema that the text followed.
        """
        ended = self.ended(row)
        answer = Answer(
            text=ended.text,
            finish_reason=ended.finish_reason,
            image_tokens=image_tokens,
            prompt_tokens=prompt_tokens,
            output_tokens=len(ended.tokens),
            error=ended.error,
            reasoning=ended.reasoning if ended.reasoning or self.parser.expects else None,
            reasoning_tokens=ended.reasoning_tokens,
            tokens=tuple(ended.tokens),
            warnings=self._past_context(prompt_tokens + len(ended.tokens)),
        )
        return answer if schema is None else schema.answer(answer)

    def _past_context(self, tokens: int) -> tuple[str, ...]:
        """Return the warning about a prompt and text that together exceed the model's context, if they do."""
        if self.context is None or tokens <= self.context:
            return ()
        return (f"prompt and text have {tokens:,} tokens, past the model's context of {self.context:,}",)

    def ended(self, row: list[int]) -> TextEnd:
        """Return the text of new tokens, which may be padded."""
        row = self.ends.until_end(row)
        reason: FinishReason = self.ends.finish_reason(row)
        parsed = self.parser.parse(row)
        unfinished = parsed.inside or (reason != "stop" and parsed.reasoning and not parsed.text)
        error = self._unfinished(len(row), reason) if unfinished else ""
        return TextEnd(row, reason, "" if error else parsed.text, parsed.reasoning, parsed.reasoning_tokens, error)

    def _unfinished(self, tokens: int, reason: FinishReason) -> str:
        """Return the message for a text with an unfinished thought."""
        ways = ["raise max_new_tokens"] if reason == "length" else []
        ways += ["switch thinking off"] if self.preset.generation.think else []
        return f"ended inside its reasoning after {tokens} tokens" + f"; {' or '.join(ways)}" * bool(ways)
