"""One thread that decodes the requests of many clients.

The request that has waited longest begins when the batch before it is done, with waiting requests of equal settings.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import torch

from sira_cli.run.lvlm import Lvlm
from sira_cli.serve.jobs import Job
from sira_cli.serve.metrics import Metrics
from sira_cli.serve.prepared import ClientsGoneError, Prepared
from sira_cli.serve.protocol import RequestError

KEPT = 32  # methods and settings that stay prepared


class Decoder:
    """A loaded model and the requests that wait for it."""

    def __init__(self, lvlm: Lvlm, batch_size: int, most_pixels: int, metrics: Metrics) -> None:
        """Begin to wait for requests."""
        self._lvlm, self._batch_size, self._most_pixels, self._metrics = lvlm, batch_size, most_pixels, metrics
        self._under: OrderedDict[str, Prepared] = OrderedDict()
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
                job.tell(_stopping())
                return
            self._waiting.append(job)
            self._changed.notify_all()

    def close(self) -> None:
        """Stop: finish the texts under way, refuse waiting jobs."""
        with self._changed:
            self._closing = True
            for job in self._waiting:
                job.tell(_stopping())
            self._waiting = []
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            self._metrics.batch.observe(len(batch))
            self._decode(batch)

    def _next(self) -> list[Job]:
        """Wait for jobs, and take the first one with those that can be decoded with it; empty at the end."""
        with self._changed:
            while not (waiting := [job for job in self._waiting if not job.gone]):
                self._waiting = []
                if self._closing:
                    return []
                self._changed.wait()
            batch: list[Job] = []
            pixels = 0
            for job in waiting:
                if job.key != waiting[0].key:
                    continue
                pixels += job.pictures.pixels
                if batch and (len(batch) == self._batch_size or pixels > self._most_pixels):
                    break
                batch.append(job)
            self._waiting = [job for job in waiting if job not in batch]
            return batch

    def _decode(self, batch: list[Job]) -> None:
        """Answer some jobs; one by one if they fail together."""
        try:
            self._prepared(batch[0]).answer(batch)
        except ClientsGoneError:
            return
        except Exception as error:
            if len(batch) == 1:
                batch[0].tell(error)
                return
            error.__traceback__ = None  # it holds the memory of the failed attempt
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            for job in batch:
                self._decode([job])

    def _prepared(self, job: Job) -> Prepared:
        """Return the model under the job's method and settings."""
        if job.key not in self._under:
            self._under[job.key] = Prepared(self._lvlm.under(job.method, job.preset), job)
        self._under.move_to_end(job.key)
        while len(self._under) > KEPT:
            self._under.popitem(last=False)
        return self._under[job.key]


def _stopping() -> RequestError:
    return RequestError("the server is stopping", 503, code="stopping")
