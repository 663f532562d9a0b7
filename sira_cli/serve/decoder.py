"""One thread that decodes the requests of many clients.

The request that has waited longest begins when the last batch is done, with waiting requests that have equal settings.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque

import torch

from sira_cli.models.lvlm import Lvlm
from sira_cli.serve.jobs import Job
from sira_cli.serve.metrics import Metrics
from sira_cli.serve.opening import Opener
from sira_cli.serve.prepared import ClientsGoneError, Prepared
from sira_cli.serve.protocol import RequestError

KEPT = 32  # methods and settings that stay prepared


class Decoder:
    """A loaded model and the requests that wait for it.

    Attributes:
        batch_size: maximum number of texts decoded together.
    """

    def __init__(self, lvlm: Lvlm, batch_size: int, most_pixels: int, metrics: Metrics) -> None:
        """Begin to wait for requests.

        Args:
            lvlm: the loaded model.
            batch_size: maximum number of texts decoded together.
            most_pixels: maximum for the pictures of texts that begin together; a single text may exceed it.
            metrics: the server's counters.
        """
        self._lvlm, self._metrics = lvlm, metrics
        self.batch_size, self._most_pixels = batch_size, most_pixels
        self._under: OrderedDict[str, Prepared] = OrderedDict()
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        # One batch begins while the pictures of the next are opened.
        self._opener = Opener(self._changed, lambda: self._waiting, self._tell_failed, 2 * most_pixels)
        self._thread = threading.Thread(target=self._run, name="sira-decoder", daemon=True)
        self._thread.start()

    def waiting(self) -> int:
        """Return the number of waiting jobs."""
        return len(self._waiting)

    def submit(self, job: Job) -> None:
        """Queue a job."""
        with self._changed:
            if self._closing:
                job.tell(_stopping())
                return
            self._waiting.append(job)
            self._metrics.waiting.set(len(self._waiting))
            self._changed.notify_all()

    def drop(self, job: Job) -> None:
        """Forget a job whose client is gone."""
        job.gone = True
        job.pictures.close()
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                self._metrics.waiting.set(len(self._waiting))
            self._changed.notify_all()

    def close(self) -> None:
        """Stop: finish the texts under way, refuse waiting jobs."""
        with self._changed:
            self._closing = True
            for job in self._waiting:
                job.tell(_stopping())
            self._waiting.clear()
            self._changed.notify_all()
        self._opener.close()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._closing or (self._waiting and self._waiting[0].is_ready)):
                    self._changed.wait()
                if self._closing and not self._waiting:
                    return
                batch = self._taken()
            if batch:
                self._decode(batch)

    def _taken(self) -> list[Job]:
        """Take the longest waiting job, and jobs that can be decoded with it."""
        waiting = [job for job in self._waiting if not job.gone]
        batch: list[Job] = []
        pixels = 0
        for job in waiting:
            first = waiting[0]
            if job.key != first.key or job.alone != first.alone or not job.is_ready:
                continue
            pixels += job.pictures.pixels
            if batch and (first.alone or len(batch) == self.batch_size or pixels > self._most_pixels):
                break
            batch.append(job)
        self._waiting = deque(job for job in waiting if job not in batch)
        self._metrics.waiting.set(len(self._waiting))
        return batch

    def _decode(self, batch: list[Job]) -> None:
        """Answer some jobs."""
        self._metrics.batch.observe(len(batch))
        try:
            prepared = self._prepared(batch[0])
        except Exception as error:  # the same for all of them
            for job in batch:
                job.tell(error)
            return
        try:
            prepared.answer(batch)
        except ClientsGoneError:
            return
        except Exception as error:
            self._failed(batch, error)

    def _failed(self, jobs: list[Job], error: Exception) -> None:
        """Retry jobs that failed together one by one; fail a single job."""
        if len(jobs) == 1:
            jobs[0].tell(error)
            return
        error.__traceback__ = None  # it holds the memory of the failed attempt
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        for job in jobs:
            job.alone = True
        with self._changed:
            self._waiting.extendleft(reversed(jobs))

    def _tell_failed(self, job: Job, error: Exception) -> None:
        job.tell(error)
        self.drop(job)

    def _prepared(self, job: Job) -> Prepared:
        """Return the model under the job's method and settings.

        Raises:
            SiraError: the model cannot decode under these settings.
        """
        if job.key not in self._under:
            self._under[job.key] = Prepared(self._lvlm.under(job.method, job.preset), job)
        self._under.move_to_end(job.key)
        while len(self._under) > KEPT:
            self._under.popitem(last=False)
        return self._under[job.key]


def _stopping() -> RequestError:
    return RequestError("the server is stopping", 503, code="stopping")
