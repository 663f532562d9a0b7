"""One thread that decodes what many clients ask for: requests that wait together and fit together share a batch."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Sequence

import torch

from sira_cli.models.lvlm import Lvlm
from sira_cli.serve.jobs import Job
from sira_cli.serve.metrics import Metrics
from sira_cli.serve.prepared import GoneError, Prepared
from sira_cli.serve.protocol import RequestError

KEPT = 32  # methods and settings that stay prepared


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
        self._under: OrderedDict[str, Prepared] = OrderedDict()
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
            self._prepared(batch[0]).answer(batch)
        except GoneError:
            return
        except Exception as error:
            if len(batch) > 1:
                error.__traceback__ = None  # it holds on to the memory of the failed try
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                for job in batch:
                    self._decode([job])
                return
            batch[0].tell(error)

    def _prepared(self, job: Job) -> Prepared:
        """Return the model under the job's method and settings.

        Raises:
            SiraError: the model cannot be decoded so.
        """
        if job.key not in self._under:
            self._under[job.key] = Prepared(self._lvlm.under(job.method, job.preset), job)
        self._under.move_to_end(job.key)
        while len(self._under) > KEPT:
            self._under.popitem(last=False)
        return self._under[job.key]
