"""The requests that wait for the model, and the one thread that decodes them.

The request that has waited longest begins when the batch before it is done, with waiting requests of equal settings.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor
from transformers import StoppingCriteria

from sira_cli.core.streams import Step
from sira_cli.errors import LongPromptError, SiraError
from sira_cli.look.second_look import PictureLook
from sira_cli.methods.prompts import Prompt
from sira_cli.models.processor import refusing
from sira_cli.models.progress import Start
from sira_cli.models.reasoning import Parsed, ReasoningParser
from sira_cli.models.sampling import derived_seed
from sira_cli.models.texts import Answer
from sira_cli.pictures.cache import Cache
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.task import Asked, PictureTask
from sira_cli.serve.jobs import Pictures, too_long
from sira_cli.serve.metrics import Metrics
from sira_cli.serve.protocol import ChatRequest, RequestError

PREPARED = 32  # methods and settings
LEAST_LOGPROB = -9999.0  # of a token that is forbidden: JSON has no infinity
# Fields of the record that a reply shows with the text.
SHOWN = (
    *("method", "k", "layers", "alpha", "method_settings", "seed"),
    *("finish_reason", "image_tokens", "warnings", "words", "objects", "verify", "draft", "removed"),
    *("candidates", "added", "forbidden"),
)
Logprob = dict[str, Any]  # token, logprob, bytes; top_logprobs


@dataclass(frozen=True)
class Piece:
    """Final text, its reasoning, and if requested the log-probabilities of its tokens."""

    text: str
    reasoning: str
    logprobs: list[Logprob]


@dataclass(frozen=True)
class Reply:
    """The end of a text, after its last piece: the answer, and what the client sees of its record."""

    answer: Answer
    sira: dict[str, Any]


@dataclass(eq=False)
class Job:
    """A request, and its text as it grows.

    Attributes:
        chat: the request.
        task: what is asked, with every setting in force, but for the prompt.
        prompt: one text, or several turns; used verbatim.
        pictures: the prompt's pictures.
        tell: called with each `Piece`, then with a `Reply` or an error, in the decoding thread.
        gone: set when the client no longer waits for the answer.
        key: jobs with one key can be decoded together.
    """

    chat: ChatRequest
    task: PictureTask
    prompt: Prompt
    pictures: Pictures
    tell: Callable[[Piece | Reply | Exception], None]
    gone: bool = False
    _sent: int = 0  # characters of the text, by pieces
    _sent_reasoning: int = 0
    _sent_logprobs: int = 0
    _sent_bytes: int = 0  # of the tokens of these

    def __post_init__(self) -> None:
        preset = self.task.preset
        if not self.task.method.uses_seed:
            preset = preset.with_settings(seed=0)  # each row has its own
        self.stops = self.chat.stops()
        self.key = repr(replace(self.task, preset=preset, schema=None)), self.chat.logprobs

    def begin(self, parser: ReasoningParser, ends: Sequence[int]) -> None:
        """Begin the text; another time if a batch has failed, but for what is sent."""
        self._vocabulary, self._ends = parser.vocabulary, ends
        self._parsing, self._retracted = parser.begin(), 0
        self._tokens, self._logprobs = 0, list[Logprob]()
        self._stopped: int | None = None  # characters before the string that ended the text
        self._ended = False

    @property
    def done(self) -> bool:
        """Whether no further token matters."""
        return self._ended or self._stopped is not None or self.gone

    def add(self, token: int, logprob: Logprob | None) -> None:
        """Take the next token. The end token and other tokens without text have no log-probability for clients."""
        self._tokens += 1
        self._ended = token in self._ends
        is_text = self._parsing.add(token) and not self._ended and not self._vocabulary.is_special(token)
        if logprob is not None and is_text:
            self._logprobs.append(logprob)
        if self.stops and is_text:
            text = self._parsing.parsed().text
            self._stopped = min((place for stop in self.stops if (place := text.find(stop)) >= 0), default=None)

    def send_certain(self) -> None:
        """Send the text and the reasoning that no further token changes."""
        parsed = self._parsed()
        if parsed.retracted > self._retracted:  # sent text cannot be taken back: the answer follows it
            self._retracted, self._sent, self._sent_reasoning = parsed.retracted, 0, len(parsed.reasoning)
            self._sent_logprobs, self._sent_bytes = len(self._logprobs), 0
        text = self._until_stop(parsed.text)
        certain, longest = len(text), max(map(len, self.stops), default=1) - 1
        if not self.done and longest:
            # The rest may be the beginning of a stop; and before a stop, white space is not part of the text.
            certain = len(text[: max(0, certain - longest)].rstrip())
        if certain > self._sent or len(parsed.reasoning) > self._sent_reasoning:
            self._send(text[: max(certain, self._sent)], parsed.reasoning)

    def _send(self, text: str, reasoning: str, *, last: bool = False) -> None:
        """Send the unsent part of the text and of its log-probabilities."""
        piece = Piece(text[self._sent :], reasoning[self._sent_reasoning :], self._new_logprobs(text, last))
        self._sent, self._sent_reasoning = max(self._sent, len(text)), max(self._sent_reasoning, len(reasoning))
        if piece.text or piece.reasoning or piece.logprobs:
            self.tell(piece)

    def finish(self, lvlm: Lvlm, task: PictureTask, image: Sequence[Image], answer: Answer, seconds: float) -> None:
        """Send the rest of the text, and the reply with its decoding time, after a second look if one is due."""
        if not _guides(task):
            if answer.error and answer.finish_reason == "length":  # JSON: as much of it as there is
                answer = replace(answer, text=lvlm.answer_of(list(answer.tokens)).text, error="")
            answer = self._cut(answer)
            if answer.error:
                raise RequestError(answer.error, 422, code="unprocessable")
            answer = task.finish(answer, None if task.verify is None else PictureLook(task.second_look(lvlm), image))
        record = task.record(Asked("", self.pictures.sha256, str(self.prompt)), answer, lvlm=lvlm).to_record()
        self._send(answer.text, answer.reasoning or "", last=True)
        shown = {name: record[name] for name in SHOWN if name in record}
        self.tell(Reply(answer, shown | {"decoding_seconds": seconds}))

    def _new_logprobs(self, text: str, last: bool) -> list[Logprob]:
        """Return the log-probabilities of tokens that make up the text: joined, they are the text.

        White space before it, and text after a stop string, is left out.
        """
        if self._parsed().cuts:  # tokens of a thought are among them, and not told apart by any marker's id
            return []
        unsent = self._logprobs[self._sent_logprobs :]
        if last and not self._until_stop(self._parsed().text).startswith(text):
            return unsent  # the preset changed the text: these are the tokens as they were decoded
        found, length = [], len(text.encode())
        for logprob in unsent:
            data = bytes(logprob["bytes"])
            data = data if self._sent_bytes else data.lstrip()
            if self._sent_bytes + len(data) > length:
                data = data[: length - self._sent_bytes] if last else b""
                if not data:
                    break
            self._sent_logprobs += 1
            self._sent_bytes += len(data)
            if data:
                shown = {"token": data.decode("utf-8", "replace"), "bytes": list(data)}
                top = [each | shown if each["bytes"] == logprob["bytes"] else each for each in logprob["top_logprobs"]]
                found.append(logprob | shown | {"top_logprobs": top})
        return found

    def _cut(self, answer: Answer) -> Answer:
        """Return an answer with its text cut at a stop string, if one matched."""
        if self._stopped is None:
            return answer
        text = self._until_stop(self._parsed().text)
        words = None if answer.words is None else [word for word in answer.words if word["end"] <= len(text)]
        return replace(answer, text=text, finish_reason="stop", output_tokens=self._tokens, words=words)

    def _until_stop(self, text: str) -> str:
        return text if self._stopped is None else text[: self._stopped].strip()

    def _parsed(self) -> Parsed:
        return self._parsing.parsed(final=self._ended)


class _Done(StoppingCriteria):
    """Ends the rows of texts that no further token would change."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        """Return `[B]` whether each row is done."""
        return torch.tensor([job.done for job in self._jobs], device=input_ids.device)


class _ClientsGoneError(SiraError):
    """All clients of the texts under way are gone."""


class Queue:
    """A loaded model and the requests that wait for it."""

    def __init__(self, lvlm: Lvlm, batch_size: int, most_pixels: int, longest_prompt: int, metrics: Metrics) -> None:
        """Begin to wait for requests."""
        self._lvlm, self._batch_size, self._metrics = lvlm, batch_size, metrics
        self._most_pixels, self._longest_prompt = most_pixels, longest_prompt
        self._prepared: Cache[tuple[Lvlm, PictureTask]] = Cache(PREPARED)
        self._waiting: list[Job] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="sira-decoder", daemon=True)
        self._thread.start()

    def waiting(self) -> int:
        """Return the number of waiting jobs."""
        return sum(not job.gone for job in self._waiting)

    def submit(self, job: Job) -> None:
        """Queue a job."""
        with self._changed:
            if self._closing:
                raise RequestError("the server is stopping", 503, code="stopping")
            self._waiting.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Stop: finish the texts under way, refuse waiting jobs."""
        with self._changed:
            self._closing = True
            for job in self._waiting:
                job.tell(RequestError("the server is stopping", 503, code="stopping"))
            self._waiting = []
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            self._metrics.batch.observe(len(batch))
            self._answer(batch)

    def _next(self) -> list[Job]:
        """Wait for jobs, and take the first one with those that can be decoded with it; empty at the end."""
        with self._changed:
            while not (waiting := [job for job in self._waiting if not job.gone]) and not self._closing:
                self._waiting = []
                self._changed.wait()
            batch: list[Job] = []
            pixels = 0
            for job in (job for job in waiting if job.key == waiting[0].key):
                pixels += job.pictures.pixels
                if batch and (len(batch) == self._batch_size or pixels > self._most_pixels):
                    break
                batch.append(job)
            self._waiting = [job for job in waiting if job not in batch]
            return batch

    def _answer(self, batch: Sequence[Job]) -> None:
        """Answer some jobs; one by one if they fail together."""
        try:
            lvlm, task = self._prepared.get(batch[0].key, lambda: self._prepare(batch[0].task))
            with _while_wanted(lvlm.model, batch):
                for part in [batch] if lvlm.batches else [[job] for job in batch]:
                    self._decode(lvlm, task, part)
        except _ClientsGoneError:
            return
        except Exception as error:
            if len(batch) == 1:
                batch[0].tell(error)
                return
            error.__traceback__ = None  # it holds the memory of the failed attempt
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            for job in batch:
                self._answer([job])

    def _prepare(self, task: PictureTask) -> tuple[Lvlm, PictureTask]:
        """Return the model under a task's method and settings, and the task: its second look is made once."""
        return self._lvlm.under(task.method, task.preset), task.at(self._lvlm.revision)

    def _decode(self, lvlm: Lvlm, task: PictureTask, jobs: Sequence[Job]) -> None:
        """Decode the texts of some jobs together, and report to each."""
        images = [job.pictures.open() for job in jobs]
        inputs = self._inputs(lvlm, jobs, images)
        started = time.perf_counter()
        for job in jobs:
            job.begin(lvlm.parser, lvlm.ends.ids)
        rows = [(job.task.preset.generation.seed, job.pictures.sha256, str(job.prompt)) for job in jobs]
        seeds = [derived_seed(*row) for row in rows]
        if _guides(task):
            answers = task.decoded(lvlm, images, inputs, seeds)
        else:
            schemas = [job.task.schema for job in jobs]
            how: dict[str, Any] = {"words": task.words, "task": task.kind, "schemas": schemas if any(schemas) else None}
            answers = lvlm.answer(inputs, seeds=seeds, **how, **_watching(lvlm, jobs))
        seconds = round((time.perf_counter() - started) / len(jobs), 3)
        for job, image, answer in zip(jobs, images, answers, strict=True):
            try:
                if not job.gone:
                    own = replace(task, preset=job.task.preset, schema=job.task.schema)
                    job.finish(lvlm, own, image, answer, seconds)
            except Exception as error:  # of the second look: the other texts have their answers
                job.tell(error)

    def _inputs(self, lvlm: Lvlm, jobs: Sequence[Job], images: Sequence[Sequence[Image]]) -> Any:
        """Return the model's inputs for some jobs."""
        hashes = [job.pictures.sha256 for job in jobs]
        try:
            with refusing("the picture"):
                inputs = lvlm.prepare(images, [job.prompt for job in jobs], hashes)
        except LongPromptError as error:
            raise too_long(f"has {error.tokens:,} tokens", self._longest_prompt) from None
        length = int(inputs["attention_mask"].sum(dim=1).max())
        if length > self._longest_prompt:
            raise too_long(f"has {length:,} tokens", self._longest_prompt)
        return inputs


def _guides(task: PictureTask) -> bool:
    """Return whether a second look changes the texts of a task, so that they are final as they are decoded."""
    return task.verify is not None and task.verify.guides


def _watching(lvlm: Lvlm, jobs: Sequence[Job]) -> dict[str, Any]:
    """Return the arguments of `answer` that report growing texts, if the method supports that."""
    if lvlm.preset.generation.num_beams > 1 or lvlm.decoder.own_search:
        return {}

    def see(tokens: Sequence[int], step: Step | None = None) -> None:
        for number, (job, token) in enumerate(zip(jobs, tokens, strict=True)):
            if job.done:
                continue
            logits = None if step is None or not job.chat.logprobs else step.contrast[number]
            job.add(token, None if logits is None else _logprob(lvlm, logits, token, job.chat.top_logprobs or 0))
            if lvlm.preset.streams:
                job.send_certain()

    start = Start([[] for _ in jobs], stopping=(_Done(jobs),), new_tokens=lvlm.preset.generation.max_new_tokens)
    return {"on_tokens" if jobs[0].chat.logprobs or jobs[0].task.words else "on_new": see, "start": start}


@contextmanager
def _while_wanted(model: Any, jobs: Sequence[Job]) -> Iterator[None]:
    """Stop the model inside this context as soon as all clients are gone."""

    def look(*_: Any) -> None:
        if all(job.gone for job in jobs):
            raise _ClientsGoneError("nobody waits for these texts any more")

    handle = model.register_forward_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()


def _logprob(lvlm: Lvlm, logits: Tensor, token: int, top: int) -> Logprob:
    """Return the log-probability of a token under the logits `[V]` that it was picked from, and the `top` likeliest."""
    scores = logits.float().log_softmax(dim=-1)

    def described(number: int) -> Logprob:
        shown = lvlm.vocabulary.describe(number)
        logprob = max(scores[number].item(), LEAST_LOGPROB)
        return {"token": shown["token"], "logprob": logprob, "bytes": shown["bytes"]}

    return {**described(token), "top_logprobs": [described(number) for number in scores.topk(top).indices.tolist()]}
