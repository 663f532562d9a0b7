"""The requests that wait for the model, and the one thread that decodes them.

Threads open their pictures first. Of those that are ready, the request that has waited longest begins when the batch
before it is done, with others of equal settings.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from sira_cli.pictures.picture import Cache
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.runner import Runner
from sira_cli.serve import Limits
from sira_cli.serve.jobs import Job
from sira_cli.serve.openers import LOOK, Openers, gone, stopping
from sira_cli.serve.task import ChatItem, ChatTask

PREPARED = 32  # methods and settings


class Queue:
    """A loaded model and the requests that wait for it; `on_batch` is called with the size of each batch."""

    def __init__(self, lvlm: Lvlm, batch_size: int, limits: Limits, on_batch: Callable[[int], None]) -> None:
        self._lvlm = lvlm
        self._batch_size = batch_size
        self._limits = limits
        self._on_batch = on_batch
        self._prepared: Cache[tuple[Lvlm, ChatTask]] = Cache(PREPARED)
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
            waiting = self._wanted()
            while not waiting and not self._closing:
                self._waiting = []
                self._changed.wait()
                waiting = self._wanted()
            batch: list[Job] = []
            pixels = 0
            for job in waiting:
                if job.key != waiting[0].key:
                    continue
                pixels += job.pixels
                if batch and (len(batch) == self._batch_size or pixels > 2 * self._limits.pixels):
                    break
                batch.append(job)
            self._waiting = [job for job in waiting if job not in batch]
            self._changed.notify_all()
            return batch

    def _wanted(self) -> list[Job]:
        """Return the waiting jobs whose clients still wait for them."""
        return [job for job in self._waiting if not job.gone]

    def _answer(self, batch: Sequence[Job]) -> None:
        """Answer some jobs. The model stops as soon as all clients are gone."""

        def check_wanted(*_: Any) -> None:
            if all(job.gone for job in batch):
                raise gone()

        def prepared() -> tuple[Lvlm, ChatTask]:
            task = batch[0].task
            lvlm = self._lvlm.under(task.method, task.preset)
            return lvlm, ChatTask(task.at(lvlm.revision), self._limits.prompt)

        try:
            lvlm, task = self._prepared.get(batch[0].key, prepared)  # a task's second look is made once
            runner = Runner(lvlm, task, len(batch))
            with lvlm.model.register_forward_pre_hook(check_wanted):
                parts = [batch] if lvlm.batches else [[job] for job in batch]
                for part in parts:
                    runner.work([ChatItem.of(job) for job in part])
        except Exception as error:  # no text has begun
            for job in batch:
                job.report(error)
