"""The requests that wait for the model, and the one thread that decodes them.

Threads open their pictures first. Of those that are ready, the request that has waited longest begins when the batch
before it is done, with others of equal settings.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sira_cli.core.streams import Step
from sira_cli.errors import LongPromptError
from sira_cli.models.processor import refusing
from sira_cli.models.progress import Start
from sira_cli.models.sampling import derived_seed
from sira_cli.pictures.picture import Cache
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.task import PictureTask
from sira_cli.serve import Limits
from sira_cli.serve.jobs import Job, Logprob, too_long
from sira_cli.serve.openers import LOOK, Openers, gone, stopping

PREPARED = 32  # methods and settings
LEAST_LOGPROB = -9999.0  # of a token that is forbidden: JSON has no infinity


class Queue:
    """A loaded model and the requests that wait for it; `on_batch` is called with the size of each batch."""

    def __init__(self, lvlm: Lvlm, batch_size: int, limits: Limits, on_batch: Callable[[int], None]) -> None:
        self._lvlm, self._batch_size, self._limits, self._on_batch = lvlm, batch_size, limits, on_batch
        self._prepared: Cache[tuple[Lvlm, PictureTask]] = Cache(PREPARED)
        self._waiting: list[Job] = []  # their pictures are open
        self._changed = threading.Condition()
        self._closing = False
        self._numbers = itertools.count()
        self._openers = Openers(limits, self._ready)
        self._thread = threading.Thread(target=self._run, name="sira-decoder", daemon=True)
        self._thread.start()

    def waiting(self) -> int:
        """Return the number of waiting jobs."""
        return self._openers.waiting() + sum(not job.gone for job in self._waiting)

    def submit(self, job: Job) -> None:
        """Queue a job."""
        job.number = next(self._numbers)
        self._openers.submit(job)

    def _ready(self, job: Job) -> None:
        """Queue a job whose pictures are open, and wait while there are too many samples."""
        with self._changed:
            if self._closing:
                job.report(stopping())
                return
            self._waiting.append(job)
            self._waiting.sort(key=lambda each: each.number)
            self._changed.notify_all()
            while job in self._waiting and sum(each.pixels for each in self._waiting) > 2 * self._limits.pixels:
                if job.gone:
                    self._waiting.remove(job)
                self._changed.wait(LOOK)

    def refuse_all(self) -> None:
        """Refuse the waiting jobs, and those that come; the texts under way go on."""
        self._openers.close()
        with self._changed:
            self._closing = True
            for job in self._waiting:
                job.report(stopping())
            self._waiting = []
            self._changed.notify_all()

    def close(self) -> None:
        """Stop: refuse all jobs but those under way, and wait until these are done."""
        self.refuse_all()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            self._on_batch(len(batch))
            self._answer(batch)
            for job in batch:
                job.images = []  # until the next request comes

    def _next(self) -> list[Job]:
        """Wait for jobs, and take the first one with those that can be decoded with it; empty at the end."""
        with self._changed:
            while not (waiting := [job for job in self._waiting if not job.gone]) and not self._closing:
                self._waiting = []
                self._changed.wait()
            batch: list[Job] = []
            pixels = 0
            for job in (job for job in waiting if job.key == waiting[0].key):
                pixels += job.pixels
                if batch and (len(batch) == self._batch_size or pixels > 2 * self._limits.pixels):
                    break
                batch.append(job)
            self._waiting = [job for job in waiting if job not in batch]
            self._changed.notify_all()
            return batch

    def _answer(self, batch: Sequence[Job]) -> None:
        """Answer some jobs; one by one if they fail together. The model stops as soon as all clients are gone."""

        def check_wanted(*_: Any) -> None:
            if all(job.gone for job in batch):
                raise gone()

        def prepared() -> tuple[Lvlm, PictureTask]:
            own = batch[0].task
            return self._lvlm.under(own.method, own.preset), own.at(self._lvlm.revision)

        try:
            lvlm, task = self._prepared.get(batch[0].key, prepared)  # a task's second look is made once
            with lvlm.model.register_forward_pre_hook(check_wanted):
                for part in [batch] if lvlm.batches else [[job] for job in batch]:
                    self._decode(lvlm, task, part)
        except Exception as error:
            if len(batch) == 1:
                return batch[0].report(error)
            error.__traceback__ = None  # it holds the memory of the failed attempt
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            for job in batch:
                if not job.gone:
                    self._answer([job])

    def _decode(self, lvlm: Lvlm, task: PictureTask, jobs: Sequence[Job]) -> None:
        """Decode the texts of some jobs together, and report to each."""
        images = [job.images for job in jobs]
        try:
            with refusing("the picture"):
                hashes = [job.pictures.sha256 for job in jobs]
                inputs = lvlm.prepare(images, [job.prompt for job in jobs], hashes)
            length = int(inputs["attention_mask"].sum(dim=1).max())
        except LongPromptError as error:
            length = error.tokens
        if length > self._limits.prompt:
            raise too_long(f"has {length:,} tokens", self._limits.prompt)
        started = time.perf_counter()
        for job in jobs:
            job.begin(lvlm)
        seeds = [derived_seed(job.task.preset.generation.seed, job.pictures.sha256, str(job.prompt)) for job in jobs]
        if jobs[0].chat.sira.verify == "guide":  # their texts are final as they are decoded
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
                    job.finish(own, image, answer, seconds)
            except Exception as error:  # of the second look: the other texts have their answers
                job.report(error)


def _watching(lvlm: Lvlm, jobs: Sequence[Job]) -> dict[str, Any]:
    """Return the arguments of `answer` that report growing texts, if the method supports that."""
    if lvlm.preset.generation.num_beams > 1 or lvlm.decoder.own_search:
        return {}
    logprobs = jobs[0].chat.logprobs  # of all jobs, or of none

    def see(tokens: Sequence[int], step: Step | None = None) -> None:
        for number, (job, token) in enumerate(zip(jobs, tokens, strict=True)):
            if job.done:
                continue
            logits = None if step is None or not logprobs else step.contrast[number]
            job.add(token, None if logits is None else _logprob(lvlm, logits, token, job.chat.top_logprobs))
            if not lvlm.preset.text.given():
                job.send_certain()

    def done(input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        return torch.tensor([job.done for job in jobs], device=input_ids.device)

    stopping: Any = (done,)
    start = Start([[] for _ in jobs], stopping=stopping, new_tokens=lvlm.preset.generation.max_new_tokens)
    return {"on_tokens" if logprobs or jobs[0].task.words else "on_new": see, "start": start}


def _logprob(lvlm: Lvlm, logits: Tensor, token: int, top: int) -> Logprob:
    """Return the log-probability of a token under the logits `[V]` that it was picked from, and the `top` likeliest."""
    scores = logits.float().log_softmax(dim=-1)

    def described(number: int) -> Logprob:
        shown = lvlm.vocabulary.describe(number)
        logprob = max(scores[number].item(), LEAST_LOGPROB)
        return {"token": shown["token"], "logprob": logprob, "bytes": shown["bytes"]}

    return {**described(token), "top_logprobs": [described(number) for number in scores.topk(top).indices.tolist()]}
