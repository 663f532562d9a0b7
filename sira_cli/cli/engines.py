"""Engines of a command's runs, with notes on what they wait for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sira_cli.cli.loading import load_model, loading, note_bundled
from sira_cli.cli.options.common import EngineOptions, ResearchModelOptions
from sira_cli.cli.terminal.console import verbosity, waiting
from sira_cli.interrupts import raise_interrupts

if TYPE_CHECKING:
    from sira_cli.models.lvlm import Lvlm
    from sira_cli.runs.engines import Engines
    from sira_cli.runs.run import Engine, Job


def engines_of(model: ResearchModelOptions, engine: EngineOptions) -> Engines:
    """Return the engines that the options choose: the model on this machine, or Ray's workers."""
    from sira_cli.runs.engines import Engines

    def load(job: Job) -> Lvlm:
        return load_model(job.preset, model, job.method, job.pictures)

    def start(job: Job) -> Engine:
        with waiting("starting Ray"):
            from sira_cli.runs.ray_run import RayRun, Work

            loaded = loading(model, job.method)
            work = Work(job.preset, loaded, job.request, engine.batch_size, str(Path.cwd()))
            run = RayRun(work, workers=engine.workers, done=job.targets.done, quiet=verbosity() < 1)
        raise_interrupts()  # Ray has replaced our handler of SIGTERM
        note_bundled(job.preset, job.pictures)
        return run

    return Engines(load, engine.batch_size, start if engine.on_ray else None)
