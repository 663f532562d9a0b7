"""A request on its way to the decoder, and what the decoder sends back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sira_cli.look.verify import Verify
from sira_cli.methods.base import Method
from sira_cli.methods.prompts import Prompt
from sira_cli.models.preset import Preset
from sira_cli.models.schema import Schema
from sira_cli.models.texts import Answer
from sira_cli.run.records import hash_of
from sira_cli.serve.pictures import Pictures

Logprob = dict[str, Any]  # token, logprob, bytes; top_logprobs


@dataclass(frozen=True)
class TextPiece:
    """Final text, its reasoning, and if requested the log-probabilities of its tokens."""

    text: str
    logprobs: list[Logprob]
    reasoning: str = ""


@dataclass(frozen=True)
class Reply:
    """The end of a text: the answer, the record's settings, and the last piece."""

    answer: Answer
    sira: dict[str, Any]
    rest: TextPiece


@dataclass(eq=False)
class Job:
    """One request.

    Attributes:
        pictures: the prompt's pictures.
        prompt: one text, or several turns; used verbatim.
        longest_prompt: maximum number of tokens.
        preset, method: every setting in force.
        stops: strings that end the text.
        schema: schema that the text follows.
        task: `caption` or `ask`.
        top_logprobs: number of alternatives per token; None: no log-probabilities.
        words: score the words.
        verify: take a second look at the objects that the text names.
        tell: called with each `TextPiece`, then with a `Reply` or an error, in the decoder's thread.
        gone: set when the client no longer waits for the answer.
        key: jobs with one key can be decoded together.
    """

    pictures: Pictures
    prompt: Prompt
    longest_prompt: int
    preset: Preset
    method: Method
    stops: Sequence[str]
    schema: Schema | None
    task: str
    top_logprobs: int | None
    words: bool
    verify: Verify | None
    tell: Callable[[TextPiece | Reply | Exception], None]
    gone: bool = False
    sent: int = 0  # characters of the text, by pieces
    sent_reasoning: int = 0
    sent_logprobs: int = 0
    sent_bytes: int = 0  # of the tokens of these
    key: str = field(init=False)

    def __post_init__(self) -> None:
        preset = self.preset.model_dump(mode="json")
        if not self.method.uses_seed:
            del preset["generation"]["seed"]  # each row has its own
        look = self.verify
        self.key = hash_of(
            method=self.method.name,
            settings=self.method.settings(),
            preset=preset,
            task=self.task,
            watched=self.top_logprobs is not None,
            words=self.words,
            verify=None if look is None else [look.mode, look.min_support],
        )
