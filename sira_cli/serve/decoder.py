"""One thread that decodes what many clients ask for: requests that wait together and fit together share a batch."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sira_cli.core.fork import Step
from sira_cli.methods import require
from sira_cli.methods.base import Ability
from sira_cli.models.lvlm import Lvlm
from sira_cli.models.records import Answer
from sira_cli.models.sampling import derived_seed
from sira_cli.models.second_look import SecondLook
from sira_cli.models.starts import Start
from sira_cli.serve.jobs import Done, Job, Logprob, Reply, Row
from sira_cli.serve.metrics import Metrics
from sira_cli.serve.protocol import RequestError

KEPT = 32  # methods and settings that stay prepared
# Of the record, what a reply shows beside the text.
SHOWN = (
    *("method", "k", "layers", "alpha", "method_settings"),
    *("finish_reason", "image_tokens", "warnings", "words", "objects", "verify"),
)
LEAST_LOGPROB = -9999.0  # of a token that is forbidden: JSON has no infinity


class BusyError(RequestError):
    """Too many requests wait already."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} requests wait already: try again later", 429, code="busy")


class Decoder:
    """A loaded model and the requests that wait for it.

    Attributes:
        batch_size: texts decoded together, at most.
        most_waiting: requests that may wait.
    """

    def __init__(self, lvlm: Lvlm, batch_size: int, most_waiting: int, metrics: Metrics) -> None:
        self._lvlm, self._metrics = lvlm, metrics
        self.batch_size, self.most_waiting = batch_size, most_waiting
        self._under: OrderedDict[str, Lvlm] = OrderedDict()
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="sira-decoder", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Let a job wait for its turn.

        Raises:
            BusyError: too many wait.
        """
        with self._changed:
            self._waiting = deque(waiting for waiting in self._waiting if not waiting.gone)
            if len(self._waiting) >= self.most_waiting:
                raise BusyError(len(self._waiting))
            self._waiting.append(job)
            self._metrics.waiting.set(len(self._waiting))
            self._changed.notify()

    def close(self) -> None:
        """End: what is being decoded is finished, what waits is refused."""
        with self._changed:
            self._closing = True
            for job in self._waiting:
                job.tell(RequestError("the server is stopping", 503, code="stopping"))
            self._waiting.clear()
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if self._closing:
                    return
                batch = self._taken()
            if batch:
                self._metrics.batch.observe(len(batch))
                self._decode(batch)

    def _taken(self) -> list[Job]:
        """Take the request that waits longest, and those that can share its batch."""
        waiting = [job for job in self._waiting if not job.gone]
        batch = [job for job in waiting if job.key == waiting[0].key][: self.batch_size]
        self._waiting = deque(job for job in waiting if job not in batch)
        self._metrics.waiting.set(len(self._waiting))
        return batch

    def _decode(self, batch: Sequence[Job]) -> None:
        """Answer every job; if a batch fails, each of its jobs by itself."""
        try:
            lvlm = self._model_for(batch[0])
            parts = [list(batch)] if lvlm.batches else [[job] for job in batch]
            for part in parts:
                self._answer(lvlm, part)
        except Exception as error:
            if len(batch) > 1:
                error.__traceback__ = None  # it holds on to the memory of the failed try
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                for job in batch:
                    self._decode([job])
                return
            batch[0].tell(error)

    def _model_for(self, job: Job) -> Lvlm:
        """Return the model under the job's method and settings.

        Raises:
            SiraError: the model cannot be decoded so.
        """
        if job.key not in self._under:
            lvlm = self._lvlm.under(job.method, job.preset)
            if job.top_logprobs is not None or job.words:
                require(lvlm.decoder, Ability.TRACES, "logprobs and words")
            self._under[job.key] = lvlm
        self._under.move_to_end(job.key)
        while len(self._under) > KEPT:
            self._under.popitem(last=False)
        return self._under[job.key]

    def _answer(self, lvlm: Lvlm, jobs: Sequence[Job]) -> None:
        rows = [Row(job, lvlm.vocabulary, lvlm.ends.ids) for job in jobs]
        hashes, prompts = [job.image_sha256 for job in jobs], [job.prompt for job in jobs]
        inputs = lvlm.prepare([job.image for job in jobs], prompts, hashes)
        answers = lvlm.answer(
            inputs,
            seeds=[derived_seed(job.preset.generation.seed, job.image_sha256, job.prompt) for job in jobs],
            words=jobs[0].words,
            task=jobs[0].task,
            **self._watching(lvlm, rows),
        )
        for row, answer in zip(rows, answers, strict=True):
            if not row.job.gone:
                self._reply(lvlm, row, answer)

    def _watching(self, lvlm: Lvlm, rows: Sequence[Row]) -> dict[str, Any]:
        """Return the arguments of `answer` by which texts are seen as they grow, where the method lets them be seen."""
        if lvlm.preset.generation.num_beams > 1 or lvlm.decoder.own_search:
            return {}
        tells = lvlm.preset.streams

        def see(tokens: Sequence[int], step: Step | None = None) -> None:
            for number, (row, token) in enumerate(zip(rows, tokens, strict=True)):
                if row.done:
                    continue
                job = row.job
                top = job.top_logprobs
                row.add(
                    token, None if top is None or step is None else logprob(lvlm, step.contrast[number], token, top)
                )
                if tells:
                    row.tell()

        start = Start([[] for _ in rows], stopping=(Done(rows),))
        if rows[0].job.top_logprobs is not None or rows[0].job.words:
            return {"on_tokens": see, "start": start}
        return {"on_new": see, "start": start}

    def _reply(self, lvlm: Lvlm, row: Row, answer: Answer) -> None:
        job = row.job
        if row.stopped is not None:
            text = row.text()
            words = None if answer.words is None else [word for word in answer.words if word["end"] <= len(text)]
            answer = replace(answer, text=text, finish_reason="stop", output_tokens=len(row.tokens), words=words)
        answer = lvlm.preset.text.finished(answer)
        if job.verify is not None:
            check = SecondLook(lvlm).check(job.image, answer.text)
            answer = check.beside(answer, job.verify.settings(lvlm.preset))
        record = lvlm.result(job.task, "", job.image_sha256, job.prompt, answer).to_record()
        self._metrics.tokens.inc(answer.output_tokens)
        job.tell(Reply(answer, {name: record[name] for name in SHOWN if name in record}, row.piece(answer.text)))


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
