"""The model under the method and settings that some requests share, and the decoding of their texts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

from sira_cli.core.fork import Step
from sira_cli.data.records.record import Answer
from sira_cli.errors import LongPromptError, SiraError
from sira_cli.methods import require
from sira_cli.methods.base import Ability
from sira_cli.models.answering.sampling import derived_seed
from sira_cli.models.answering.starts import Start
from sira_cli.models.final_answers import FinalAnswers
from sira_cli.models.inputs.processors import refusing
from sira_cli.models.keys import Asked
from sira_cli.models.lvlm import Lvlm
from sira_cli.serve.jobs import Done, Job, JobText, Logprob, Reply
from sira_cli.serve.limits import too_long
from sira_cli.serve.protocol import RequestError
from sira_cli.serve.report import traced

# Fields of the record that a reply shows with the text.
SHOWN = (
    *("method", "k", "layers", "alpha", "method_settings", "seed"),
    *("finish_reason", "image_tokens", "warnings", "words", "objects", "verify", "draft", "removed"),
    *("candidates", "added", "forbidden"),
)
LEAST_LOGPROB = -9999.0  # of a token that is forbidden: JSON has no infinity


class ClientsGoneError(SiraError):
    """All clients of the texts under way are gone."""


class Prepared:
    """The model under one method and one set of settings.

    Attributes:
        lvlm: the model.
    """

    def __init__(self, lvlm: Lvlm, job: Job) -> None:
        """Prepare to answer jobs with the key of this one.

        Raises:
            SiraError: the method or the settings do not support the request.
        """
        self.lvlm = lvlm
        if job.top_logprobs is not None or job.words:
            require(lvlm.decoder, Ability.TRACES, "logprobs and words")
        self._answering = {job.verify: FinalAnswers(lvlm, job.verify, words=job.words)}

    def _answers(self, job: Job) -> FinalAnswers:
        """Return the answers for a job: jobs with one key may differ in a second look that decodes nothing."""
        if job.verify not in self._answering:
            self._answering[job.verify] = FinalAnswers(self.lvlm, job.verify, words=job.words)
        return self._answering[job.verify]

    def inputs(self, jobs: Sequence[Job]) -> Any:
        """Return the model's inputs for some jobs.

        Raises:
            PictureError: the image processor refuses a picture.
            RequestError: a prompt is too long.
            SettingsError: a text must follow a schema, and the model cannot.
        """
        hashes = [job.pictures.sha256 for job in jobs]
        if any(job.schema for job in jobs):
            _ = self.lvlm.schema_tokens  # a model without them is refused before texts under way are touched
        try:
            with refusing("the picture"):
                inputs = self.lvlm.prepare([job.pictures.open() for job in jobs], [job.prompt for job in jobs], hashes)
        except LongPromptError as error:
            raise too_long(f"has {error.tokens:,} tokens", jobs[0].longest_prompt) from None
        for job in jobs:
            if not job.keeps_pictures:
                job.pictures.close()
        for job, length in zip(jobs, inputs["attention_mask"].sum(dim=1).tolist(), strict=True):
            if length > job.longest_prompt:
                raise too_long(f"has {length:,} tokens", job.longest_prompt)
        return inputs

    def seeds(self, jobs: Sequence[Job]) -> list[int]:
        """Return the seed of each job's text."""
        return [derived_seed(job.preset.generation.seed, job.pictures.sha256, str(job.prompt)) for job in jobs]

    def answer(self, jobs: Sequence[Job]) -> None:
        """Decode some jobs together, and report to each.

        Raises:
            GoneError: all clients are gone.
            SiraError: the jobs cannot be decoded.
        """
        with _while_wanted(self.lvlm.model, jobs):
            if jobs[0].trace is not None:
                for job in jobs:
                    job.tell(traced(self.lvlm, job))
                return
            parts = [list(jobs)] if self.lvlm.batches else [[job] for job in jobs]
            for part in parts:
                if (answering := self._answers(part[0])).guides:
                    self._guide(answering, part)
                else:
                    self._answer(part)

    def _guide(self, answering: FinalAnswers, jobs: Sequence[Job]) -> None:
        """Guide texts, and report them only when final."""
        inputs, seeds = self.inputs(jobs), self.seeds(jobs)
        started = time.perf_counter()
        answers = answering.answer([job.pictures.open() for job in jobs], inputs, seeds=seeds, task=jobs[0].task)
        each = (time.perf_counter() - started) / len(jobs)
        for job, answer in zip(jobs, answers, strict=True):
            self._tell(JobText(job, self.lvlm.parser, self.lvlm.ends.ids), answer, each)

    def _answer(self, jobs: Sequence[Job]) -> None:
        lvlm, first = self.lvlm, jobs[0]
        rows = [JobText(job, lvlm.parser, lvlm.ends.ids) for job in jobs]
        inputs, seeds = self.inputs(jobs), self.seeds(jobs)
        started = time.perf_counter()
        schemas = [job.schema for job in jobs] if any(job.schema for job in jobs) else None
        answers = lvlm.answer(
            inputs, seeds=seeds, words=first.words, task=first.task, schemas=schemas, **self._watching(rows)
        )
        each = (time.perf_counter() - started) / len(jobs)
        for row, answer in zip(rows, answers, strict=True):
            if not row.job.gone:
                self._finish(row, answer, each)

    def _watching(self, rows: Sequence[JobText]) -> dict[str, Any]:
        """Return the arguments of `answer` that report growing texts, if the method supports that."""
        lvlm = self.lvlm
        if lvlm.preset.generation.num_beams > 1 or lvlm.decoder.own_search:
            return {}

        def see(tokens: Sequence[int], step: Step | None = None) -> None:
            for number, (row, token) in enumerate(zip(rows, tokens, strict=True)):
                self._see_token(row, token, None if step is None else step.contrast[number])

        longest = rows[0].job.preset.generation.max_new_tokens
        start = Start([[] for _ in rows], stopping=(Done(rows),), new_tokens=longest)
        watched = rows[0].job.top_logprobs is not None or rows[0].job.words
        return {"on_tokens" if watched else "on_new": see, "start": start}

    def _see_token(self, row: JobText, token: int, logits: Tensor | None) -> None:
        """Take the next token of a text, and report its final part.

        Args:
            row: the text.
            token: the picked token.
            logits: `[V]` that decided it; None: unknown.
        """
        if row.done:
            return
        top = row.job.top_logprobs
        row.add(token, None if top is None or logits is None else logprob(self.lvlm, logits, token, top))
        if self.lvlm.preset.streams:
            row.tell()

    def _finish(self, row: JobText, answer: Answer, seconds: float) -> None:
        """Report a finished text with its decoding time in seconds, after a second look if one was asked for."""
        if answer.error and answer.finish_reason == "length":  # JSON: as much of it as there is
            answer = replace(answer, text=self.lvlm.ended(list(answer.tokens)).text, error="")
        answer = row.cut(answer)
        if answer.error:
            row.job.tell(RequestError(answer.error, 422, code="unprocessable"))
            return
        answer = self._answers(row.job).finished(answer, row.job.pictures.open, row.job.schema)
        self._tell(row, answer, seconds)

    def _tell(self, row: JobText, answer: Answer, seconds: float) -> None:
        job = row.job
        asked = Asked(job.task, "", job.pictures.sha256, str(job.prompt))
        record = self.lvlm.result(asked, answer).to_record()
        shown = {name: record[name] for name in SHOWN if name in record}
        piece = row.piece(answer.text, answer.reasoning or "", last=True)
        job.tell(Reply(answer, shown | {"decoding_seconds": round(seconds, 3)}, piece))


@contextmanager
def _while_wanted(model: Any, jobs: Sequence[Job]) -> Iterator[None]:
    """Stop the model inside this context as soon as all clients are gone."""

    def look(*_: Any) -> None:
        if all(job.gone for job in jobs):
            raise ClientsGoneError("nobody waits for these texts any more")

    handle = model.register_forward_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()


def logprob(lvlm: Lvlm, logits: Tensor, token: int, top: int) -> Logprob:
    """Return the log-probability of a token under the logits `[V]` that it was picked from, and the `top` likeliest."""
    scores = logits.float().log_softmax(dim=-1)
    best = scores.topk(top)

    def described(number: int, score: float) -> Logprob:
        shown = lvlm.vocabulary.describe(number)
        return {"token": shown["token"], "logprob": max(score, LEAST_LOGPROB), "bytes": shown["bytes"]}

    return {
        **described(token, scores[token].item()),
        "top_logprobs": [
            described(number, score) for number, score in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ],
    }
