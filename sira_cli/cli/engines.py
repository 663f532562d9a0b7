"""Engines of `caption`, `ask` and `check`: the model on this machine, loaded once, or Ray workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sira_cli.cli.loading import load_model, loading, note_bundled
from sira_cli.cli.options.common import EngineOptions, ModelOptions
from sira_cli.cli.terminal.console import verbosity, waiting
from sira_cli.interrupts import raise_interrupts

if TYPE_CHECKING:
    from sira_cli.models.lvlm import Lvlm
    from sira_cli.pictures.picture import Picture
    from sira_cli.runs.run import Engine, Job


class Engines:
    """An engine for each job. On this machine the model is loaded once, on others by the workers."""

    def __init__(self, model: ModelOptions, engine: EngineOptions) -> None:
        self._model, self._engine = model, engine
        self._lvlm: Lvlm | None = None

    def of(self, job: Job, on_text: Callable[[Picture, str], None] | None = None) -> Engine:
        """Return the engine of a job; without a model if nothing is left to do."""
        from sira_cli.runs.nothing_left import nothing_left

        left = nothing_left(job, trust_remote_code=self._model.trust_remote_code)
        return left or (self._on_ray(job) if self._engine.on_ray else self._here(job, on_text))

    def _here(self, job: Job, on_text: Callable[[Picture, str], None] | None) -> Engine:
        lvlm = self._under(job)
        from sira_cli.runs.local_run import LocalRun

        size = self._engine.batch_size
        return LocalRun(lvlm, job.request, batch_size=size, done=job.targets.done, on_text=on_text)

    def _on_ray(self, job: Job) -> Engine:
        engine = self._engine
        with waiting("starting Ray"):
            from sira_cli.runs.ray_run import RayRun, Work

            loaded = loading(self._model, job.method, engine.compile)
            work = Work(job.preset, loaded, job.request, engine.batch_size, str(Path.cwd()))
            run = RayRun(work, workers=engine.workers, done=job.targets.done, quiet=verbosity() < 1)
        raise_interrupts()  # Ray has replaced our handler of SIGTERM
        note_bundled(job.preset, job.pictures)
        return run

    def _under(self, job: Job) -> Lvlm:
        """Load the model, or switch the loaded one to another method."""
        if self._lvlm is None:
            self._lvlm = load_model(job.preset, self._model, job.method, self._engine.compile, job.pictures)
            return self._lvlm
        from sira_cli.models.loading.compiled import CompiledSteps

        compiled = CompiledSteps(self._lvlm.model) if self._engine.compile else None
        return self._lvlm.under(job.method, job.preset, compiled)
