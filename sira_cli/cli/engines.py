"""Decoders of `caption` and `ask`: the model on this machine, loaded once, or Ray workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.cli.console import verbosity, waiting
from sira_cli.cli.loading import load_model, loading, note_bundled
from sira_cli.cli.options import EngineOptions, ModelOptions
from sira_cli.interrupts import raise_interrupts

if TYPE_CHECKING:
    from sira_cli.methods.base import Method
    from sira_cli.models.lvlm import Lvlm
    from sira_cli.models.preset import Preset
    from sira_cli.pictures.picture import Picture
    from sira_cli.runs.run import Engine as RunEngine
    from sira_cli.runs.targets import Targets


@dataclass(frozen=True)
class Job:
    """All pictures under one method: the request and its targets."""

    preset: Preset
    method: Method
    prompt: str
    settings: dict[str, Any]
    targets: Targets
    fills: bool = False


class Engines:
    """Decoders for each method. On this machine the model is loaded once, on others by the workers."""

    def __init__(self, task: str, model: ModelOptions, engine: EngineOptions, asked: dict[str, Any]) -> None:
        self._task, self._model, self._engine, self._asked = task, model, engine, asked
        self._lvlm: Lvlm | None = None

    def of(self, job: Job, pictures: Sequence[Picture], on_text: Callable[[Picture, str], None] | None) -> RunEngine:
        """Return the decoder for one method's pictures; without a model if nothing is left to do."""
        from sira_cli.runs.nothing_left import nothing_left

        left = nothing_left(
            pictures,
            job.targets,
            job.preset,
            job.method,
            task=self._task,
            prompt=job.prompt,
            fills=job.fills,
            quantization=self._model.quantization,
            trust_remote_code=self._model.trust_remote_code,
            verify=self._asked["verify"],
        )
        return left or self._decoding(job, pictures, on_text)

    def _decoding(
        self, job: Job, pictures: Sequence[Picture], on_text: Callable[[Picture, str], None] | None
    ) -> RunEngine:
        engine, done = self._engine, job.targets.done
        if engine.engine == "local":
            lvlm = self._under(job, pictures)
            from sira_cli.runs.check_run import engine_of

            return engine_of(self._task)(
                lvlm,
                self._task,
                job.prompt,
                batch_size=engine.batch_size,
                fills=job.fills,
                done=done,
                on_text=on_text,
                **self._asked,
            )
        with waiting("starting Ray"):
            from sira_cli.runs.ray_run import RayRun, Work

            loaded = loading(self._model, job.method, engine.compile)
            folder = str(Path.cwd())
            asked = {**self._asked, "fills": job.fills}
            work = Work(job.preset, loaded, self._task, job.prompt, engine.batch_size, folder, **asked)
            run = RayRun(work, workers=engine.workers, done=done, quiet=verbosity() < 1)
        raise_interrupts()  # Ray has replaced our handler of SIGTERM
        note_bundled(job.preset, pictures)
        return run

    def _under(self, job: Job, pictures: Sequence[Picture]) -> Lvlm:
        """Load the model, or switch the loaded one to another method."""
        if self._lvlm is None:
            self._lvlm = load_model(job.preset, self._model, job.method, self._engine.compile, pictures)
            return self._lvlm
        from sira_cli.models.compiled import CompiledSteps

        compiled = CompiledSteps(self._lvlm.model) if self._engine.compile else None
        return self._lvlm.under(job.method, job.preset, compiled)
