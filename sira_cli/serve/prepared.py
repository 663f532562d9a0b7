"""The model under the method and settings that some requests share, and the decoding of their texts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from PIL.Image import Image
from torch import Tensor

from sira_cli.core.fork import Step
from sira_cli.errors import LongPromptError, SiraError
from sira_cli.look.second_look import PictureLook
from sira_cli.methods import require
from sira_cli.methods.base import Ability
from sira_cli.models.processor import refusing
from sira_cli.models.progress import Start
from sira_cli.models.sampling import derived_seed
from sira_cli.models.texts import Answer
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.task import TASKS, Asked
from sira_cli.serve.jobs import Job, Logprob, Reply
from sira_cli.serve.limits import too_long
from sira_cli.serve.protocol import RequestError
from sira_cli.serve.texts import Done, JobText

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
    """The model under one method and one set of settings."""

    def __init__(self, lvlm: Lvlm, job: Job) -> None:
        """Prepare to answer jobs with the key of this one."""
        self._lvlm = lvlm
        if job.top_logprobs is not None or job.words:
            require(lvlm.decoder, Ability.TRACES, "logprobs and words")
        task = TASKS[job.task].of(lvlm.preset, lvlm.decoder, "", words=job.words, verify=job.verify)
        self._task = task.at(lvlm.revision)
        self._guides = job.verify is not None and job.verify.guides

    def answer(self, jobs: Sequence[Job]) -> None:
        """Decode some jobs together, and report to each."""
        with _while_wanted(self._lvlm.model, jobs):
            for part in [list(jobs)] if self._lvlm.batches else [[job] for job in jobs]:
                images = [job.pictures.open() for job in part]
                inputs = self._inputs(part, images)
                started = time.perf_counter()
                rows = [JobText(job, self._lvlm.parser, self._lvlm.ends.ids) for job in part]
                answers = self._decoded(rows, images, inputs)
                each = (time.perf_counter() - started) / len(part)
                for row, image, answer in zip(rows, images, answers, strict=True):
                    if row.job.gone:
                        continue
                    try:
                        self._finish(row, image, answer, each)
                    except Exception as error:  # of the second look: the other texts have their answers
                        row.job.tell(error)

    def _inputs(self, jobs: Sequence[Job], images: Sequence[Sequence[Image]]) -> Any:
        """Return the model's inputs for some jobs."""
        most = jobs[0].longest_prompt
        try:
            with refusing("the picture"):
                hashes = [job.pictures.sha256 for job in jobs]
                inputs = self._lvlm.prepare(images, [job.prompt for job in jobs], hashes)
        except LongPromptError as error:
            raise too_long(f"has {error.tokens:,} tokens", most) from None
        length = int(inputs["attention_mask"].sum(dim=1).max())
        if length > most:
            raise too_long(f"has {length:,} tokens", most)
        return inputs

    def _decoded(self, rows: Sequence[JobText], images: Sequence[Sequence[Image]], inputs: Any) -> Sequence[Answer]:
        """Return the answers; those that a second look guides are final, and told only then."""
        jobs = [row.job for row in rows]
        first = jobs[0]
        seeds = [derived_seed(job.preset.generation.seed, job.pictures.sha256, str(job.prompt)) for job in jobs]
        if self._guides:
            return self._task.decoded(self._lvlm, images, inputs, seeds)
        schemas = [job.schema for job in jobs] if any(job.schema for job in jobs) else None
        return self._lvlm.answer(
            inputs, seeds=seeds, words=first.words, task=first.task, schemas=schemas, **self._watching(rows)
        )

    def _watching(self, rows: Sequence[JobText]) -> dict[str, Any]:
        """Return the arguments of `answer` that report growing texts, if the method supports that."""
        lvlm = self._lvlm
        if lvlm.preset.generation.num_beams > 1 or lvlm.decoder.own_search:
            return {}

        def see(tokens: Sequence[int], step: Step | None = None) -> None:
            for number, (row, token) in enumerate(zip(rows, tokens, strict=True)):
                if row.done:
                    continue
                top, logits = row.job.top_logprobs, None if step is None else step.contrast[number]
                row.add(token, None if top is None or logits is None else logprob(lvlm, logits, token, top))
                if lvlm.preset.streams:
                    row.tell()

        longest = rows[0].job.preset.generation.max_new_tokens
        start = Start([[] for _ in rows], stopping=(Done(rows),), new_tokens=longest)
        watched = rows[0].job.top_logprobs is not None or rows[0].job.words
        return {"on_tokens" if watched else "on_new": see, "start": start}

    def _finish(self, row: JobText, image: Sequence[Image], answer: Answer, seconds: float) -> None:
        """Report a finished text with its decoding time in seconds, after a second look if one was asked for."""
        job = row.job
        if not self._guides:
            if answer.error and answer.finish_reason == "length":  # JSON: as much of it as there is
                answer = replace(answer, text=self._lvlm.answer_of(list(answer.tokens)).text, error="")
            answer = row.cut(answer)
            if answer.error:
                job.tell(RequestError(answer.error, 422, code="unprocessable"))
                return
            look = None if job.verify is None else PictureLook(self._task.second_look(self._lvlm), image)
            answer = replace(self._task, schema=job.schema).finish(answer, look)
        asked = Asked("", job.pictures.sha256, str(job.prompt))
        record = self._task.record(asked, answer, lvlm=self._lvlm).to_record()
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
