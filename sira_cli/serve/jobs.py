"""A request under way: the model's input, and the text as it grows."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from sira_cli.analysis.trace.targets import Line
from sira_cli.data.records.record import Answer, hash_of
from sira_cli.errors import SettingsError
from sira_cli.methods import find
from sira_cli.methods.base import Method
from sira_cli.methods.prompts import Conversation, Prompt
from sira_cli.models.answering.reasoning import Parsed, ReasoningParser
from sira_cli.models.loading.preset import Preset
from sira_cli.models.loading.preset_parts import Prompts
from sira_cli.models.look.second_look import Verify
from sira_cli.models.schemas.schema import Schema
from sira_cli.serve.pictures import Received
from sira_cli.serve.protocol import ChatRequest, RequestError, shortened
from sira_cli.serve.served import MOST_ECHOED

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
        trace: receives the lines of a trace; None: no trace. A traced text is alone in its batch, without pieces.
        gone: set when the client no longer waits for the answer.
        alone: set by the decoder after a failure: the job is retried by itself.
        key: jobs with one key can be decoded together.
    """

    pictures: Received
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
    trace: list[Line] | None = None
    gone: bool = False
    alone: bool = False
    sent: int = 0  # characters of the text, by pieces
    sent_reasoning: int = 0
    sent_logprobs: int = 0
    sent_bytes: int = 0  # of the tokens of these
    key: str = field(init=False)

    def __post_init__(self) -> None:
        preset = self.preset.model_dump(mode="json")
        if not self.method.uses_seed:
            del preset["generation"]["seed"]  # each row has its own
        self.key = hash_of(
            method=self.method.name,
            settings=self.method.settings(),
            preset=preset,
            task=self.task,
            watched=self.top_logprobs is not None,
            words=self.words,
            verify=self._decodes,
            trace=self.trace is not None,
        )

    @property
    def is_ready(self) -> bool:
        """Whether decoding can begin: the pictures are open, or cannot be opened ahead."""
        return self.gone or self.alone or self.pictures.is_open

    @property
    def keeps_pictures(self) -> bool:
        """Whether its pictures are needed again after its text has begun."""
        return self.verify is not None or self.trace is not None

    @property
    def _decodes(self) -> list[Any] | None:
        """The second-look settings that change decoding (part of the batch key)."""
        look = self.verify
        return None if look is None or look.mode == "flag" else [look.mode, look.min_support]


@contextmanager
def _about(param: str) -> Iterator[None]:
    """Name a request's key in errors about its value."""
    try:
        yield
    except SettingsError as error:
        raise RequestError(str(error), param=shortened(param, MOST_ECHOED)) from error


def settings_of(
    request: ChatRequest, preset: Preset, method: str, most_tokens: int, layers: int
) -> tuple[Preset, Method]:
    """Return preset and method with a request's changes.

    Args:
        request: the client's request.
        preset: the server's.
        method: the server's.
        most_tokens: longer texts are refused.
        layers: L of the model.

    Raises:
        RequestError: the text would be too long; an unknown method or setting, or a wrong value.
        SettingsError: settings that are valid alone exclude each other.
    """
    with _about("sira.method"):
        chosen = preset.method(find(request.sira.method or method).name)
    given = request.sira.settings()
    for name, value in given.items():
        with _about(f"sira.{name}"):  # each alone: an error of all together has no single key
            own = chosen.owns(name) or name not in chosen.all_settings()  # the method says which settings there are
            tried: Method | Preset = (chosen if own else preset).with_values(**{name: value})
            if name in ("k", "k_fraction") and isinstance(tried, Preset):
                tried.sira_config.layers_after_fork(layers)
    tokens = request.max_completion_tokens or request.max_tokens
    if tokens is not None and tokens > most_tokens:
        raise RequestError(f"max_tokens: this server decodes up to {most_tokens}; got {tokens}", param="max_tokens")
    changed = preset.with_settings(
        max_new_tokens=tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        repetition_penalty=request.repetition_penalty,
        system=request.system() or None,
        think=request.thinks(),
    ).with_values(**{name: value for name, value in given.items() if not chosen.owns(name)})
    if request.seed is None and changed.generation.temperature:
        changed = changed.with_settings(seed=secrets.randbelow(2**31))  # clients that sample expect other texts
    return changed, chosen.with_values(**{name: value for name, value in given.items() if chosen.owns(name)})


def prompt_of(request: ChatRequest, prompts: Prompts) -> Prompt:
    """Return the model's prompt for a request, in the wording of `sira caption` and `sira ask`.

    Args:
        request: the client's request.
        prompts: the preset's; without words, a picture is to be captioned.

    Raises:
        RequestError: the request is not a conversation about pictures.
    """
    turns = [replace(turn, text=turn.text or prompts.caption * bool(turn.pictures)) for turn in request.turns()]
    if request.sira.task == "ask":
        text, (before, _, after) = prompts.asking(turns[-1].text), prompts.ask.partition("{question}")
        parts = tuple(part for part in (before, *turns[-1].parts, after) if part != "") if turns[-1].parts else ()
        turns[-1] = replace(turns[-1], text=text, parts=parts)
    return Conversation(tuple(turns)) if len(turns) > 1 or turns[0].parts else turns[0].text


def schema_of(request: ChatRequest, preset: Preset, method: Method, most: int) -> Schema | None:
    """Return the schema for the text of a request, not tested yet.

    Args:
        request: the client's request.
        preset, method: every setting in force.
        most: characters of a schema.

    Raises:
        SiraError: the schema cannot be followed, or does not fit the other settings.
    """
    schema = request.response_format.schema_of_text(most)
    if schema is not None:
        schema.check(method, preset, words=request.sira.words)
        if (mode := request.sira.verify) not in (None, "flag"):
            raise RequestError(f'sira.verify: "{mode}" is for texts in words; take "flag"', param="sira.verify")
    return schema


class JobText:
    """The text of one job, token by token."""

    def __init__(self, job: Job, parser: ReasoningParser, ends: Sequence[int]) -> None:
        self.job, self._vocabulary, self._ends = job, parser.vocabulary, ends
        self._parsing, self._retracted = parser.begin(), 0
        self.tokens: list[int] = []
        self.logprobs: list[Logprob] = []
        self.stopped: int | None = None  # characters before the string that ended the text
        self._ended = False

    @property
    def done(self) -> bool:
        """Whether no further token matters."""
        return self._ended or self.stopped is not None or self.job.gone

    def add(self, token: int, logprob: Logprob | None = None) -> None:
        """Take the next token. The end token and other tokens without text have no log-probability for clients."""
        if self.done:
            return
        self.tokens.append(token)
        self._ended = token in self._ends
        is_text = self._parsing.add(token) and not self._ended and not self._vocabulary.is_special(token)
        if logprob is not None and is_text:
            self.logprobs.append(logprob)
        if self.job.stops and is_text:
            text = self._parsing.parsed().text
            found = [place for stop in self.job.stops if (place := text.find(stop)) >= 0]
            self.stopped = min(found, default=None)

    def text(self) -> str:
        """Return the text so far, without surrounding spaces, cut where it was stopped."""
        return self._until_stop(self._parsed().text)

    def _until_stop(self, text: str) -> str:
        return text[: self.stopped].strip() if self.stopped is not None else text

    def _parsed(self) -> Parsed:
        return self._parsing.parsed(final=self._ended)

    def cut(self, answer: Answer) -> Answer:
        """Return an answer with its text cut at a stop string, if one matched."""
        if self.stopped is None:
            return answer
        text = self.text()
        words = None if answer.words is None else [word for word in answer.words if word["end"] <= len(text)]
        return replace(answer, text=text, finish_reason="stop", output_tokens=len(self.tokens), words=words)

    def tell(self) -> None:
        """Send the final part of the text and its reasoning."""
        parsed, job = self._parsed(), self.job
        if parsed.retracted > self._retracted:  # sent text cannot be taken back: the answer follows it
            self._retracted, job.sent, job.sent_reasoning = parsed.retracted, 0, len(parsed.reasoning)
            job.sent_logprobs, job.sent_bytes = len(self.logprobs), 0
        text = self._until_stop(parsed.text)
        certain = len(text)
        longest = max((len(stop) for stop in self.job.stops), default=1) - 1
        if not self.done and longest:
            # It may be the beginning of a stop; and before a stop, white space is not part of the text.
            certain = len(text[: max(0, min(certain, len(text) - longest))].rstrip())
        if certain > job.sent or len(parsed.reasoning) > job.sent_reasoning:
            job.tell(self.piece(text[: max(certain, job.sent)], parsed.reasoning))

    def piece(self, text: str, reasoning: str, *, last: bool = False) -> TextPiece:
        """Return the unsent part of the text and of its log-probabilities, and count it as sent.

        Args:
            text, reasoning: from their beginnings.
            last: whether it is the whole text.
        """
        job = self.job
        piece = TextPiece(text[job.sent :], self._new_logprobs(text, last), reasoning[job.sent_reasoning :])
        job.sent, job.sent_reasoning = max(job.sent, len(text)), max(job.sent_reasoning, len(reasoning))
        return piece

    def _new_logprobs(self, text: str, last: bool) -> list[Logprob]:
        """Return the log-probabilities of tokens that make up the text: joined, they are the text.

        White space before it, and text after a stop string, is left out.
        """
        job = self.job
        if self._parsed().cuts:  # tokens of a thought are among them, and not told apart by any marker's id
            return []
        found = []
        if last and not self.text().startswith(
            text
        ):  # the preset changed it: these are the tokens as they were decoded
            return self.logprobs[job.sent_logprobs :]
        length = len(text.encode())
        for logprob in self.logprobs[job.sent_logprobs :]:
            data = bytes(logprob["bytes"])
            data = data if job.sent_bytes else data.lstrip()
            if job.sent_bytes + len(data) > length:
                data = data[: length - job.sent_bytes] if last else b""
                if not data:
                    break
            job.sent_logprobs += 1
            job.sent_bytes += len(data)
            if data:
                found.append(_shown_as(data, logprob))
        return found


def _shown_as(data: bytes, logprob: Logprob) -> Logprob:
    """Return a log-probability, and those of alternatives, with the bytes of their tokens that are in the text."""
    shown = {"token": data.decode("utf-8", "replace"), "bytes": list(data)}
    top = [other | shown if other["bytes"] == logprob["bytes"] else other for other in logprob["top_logprobs"]]
    return logprob | shown | {"top_logprobs": top}


class Done(StoppingCriteria):
    """Ends the rows of texts that no further token would change."""

    def __init__(self, rows: Sequence[JobText]) -> None:
        self._rows = rows

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        """Return `[B]` whether each row is done."""
        return torch.tensor([row.done for row in self._rows], device=input_ids.device)
