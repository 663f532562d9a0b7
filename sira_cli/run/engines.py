"""The engine of each run: none if nothing is left to do, Ray's workers, or the model on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sira_cli.pictures.picture import Picture
from sira_cli.run.batch import BatchSize
from sira_cli.run.nothing_left import nothing_left
from sira_cli.run.run import Engine, Job

if TYPE_CHECKING:
    from sira_cli.run.lvlm import Lvlm


@dataclass
class Engines:
    """Where the models of some jobs are. On this machine one is loaded, when the first job needs it.

    Attributes:
        load: returns the model of a job, under its method.
        batch_size: as for `Runner`.
        workers: starts the workers of a job, instead of the model here.
    """

    load: Callable[[Job], Lvlm]
    batch_size: BatchSize | None = None
    workers: Callable[[Job], Engine] | None = None
    _lvlm: Lvlm | None = field(default=None, init=False)

    def of(self, job: Job, on_text: Callable[[Picture, str], None] | None = None) -> Engine:
        """Return the engine of a job; without a model if nothing is left to do."""
        if (left := nothing_left(job)) is not None:
            return left
        if self.workers is not None:
            return self.workers(job)
        lvlm = self._under(job)
        from sira_cli.run.local_run import LocalRun

        return LocalRun(lvlm, job.request, batch_size=self.batch_size, done=job.targets.done, on_text=on_text)

    def _under(self, job: Job) -> Lvlm:
        """Load the model, or switch the loaded one to another method."""
        if self._lvlm is None:
            self._lvlm = self.load(job)
            return self._lvlm
        return self._lvlm.under(job.method, job.preset)
