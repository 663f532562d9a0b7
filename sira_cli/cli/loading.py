"""Models and engines of a command's runs, with notes on what they wait for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.cli.options.groups import EngineOptions, ResearchModelOptions
from sira_cli.cli.terminal.console import announce, note, verbosity, waiting
from sira_cli.interrupts import raise_interrupts
from sira_cli.methods.base import Method

if TYPE_CHECKING:
    from sira_cli.models.preset import Preset
    from sira_cli.pictures.picture import Picture
    from sira_cli.run.engines import Engine
    from sira_cli.run.items import Task
    from sira_cli.run.lvlm import Lvlm
    from sira_cli.run.records import Result
    from sira_cli.run.task import PictureTask

LOOKED_AT = 20  # pictures that are checked for being drawn scenes


def load_model(
    preset: Preset, model: ResearchModelOptions, method: str | Method, pictures: Iterable[Picture] | None = None
) -> Lvlm:
    """Load the model of a preset for pictures."""
    from sira_cli.models import presets

    if preset.model != presets.BUNDLED:
        # Before torch is imported: an unavailable model is reported within a second.
        from sira_cli.models.hub import find_checkpoint

        judge = partial(_check_before_download, preset=preset, model=model)
        find_checkpoint(preset, offline=model.offline, judge=judge, on_download=announce)
    with waiting(f"loading {preset.name or preset.model}"):
        from sira_cli.models.cpu import use_threads
        from sira_cli.run.lvlm import load

        lvlm = load(preset, method=method, device=model.device, offline=model.offline)
        use_threads(lvlm.model)
    note_bundled(preset, pictures)
    return lvlm


def _check_before_download(folder: Path, preset: Preset, model: ResearchModelOptions) -> None:
    """Check a model by its config.json, and the default one also against this machine's memory."""
    from sira_cli.models.load import check_structure  # imports torch

    check_structure(folder, preset)
    if not (model.preset or model.model or os.environ.get("SIRA_PRESET")):
        from sira_cli.models.placement import pick_device
        from sira_cli.models.sizes import check_default_fits

        check_default_fits(preset, pick_device(model.device))


def note_bundled(preset: Preset, pictures: Iterable[Picture] | None) -> None:
    """Note the limits of the bundled model, if its pictures are not all drawn scenes."""
    from sira_cli.models import presets

    if preset.model != presets.BUNDLED:
        return
    from sira_cli.demo.scenes import looks_drawn

    different = {picture.location: picture for picture in pictures or ()}  # there may be several questions about one
    first = list(different.values())[:LOOKED_AT]
    if pictures is None or not all(looks_drawn(picture) for picture in first):
        note("the bundled model knows drawn scenes only; photographs need another preset")


def load_in_vllm(preset: Preset, model: ResearchModelOptions, method: Method, batch_size: Any, together: int) -> Lvlm:
    """Start vLLM with the model of a preset, for prompts with `together` pictures."""
    with waiting("starting vLLM"):
        from sira_cli.vllm import engine

        return engine.load(preset, method, together=together, at_once=batch_size, offline=model.offline)


def engine_of(model: ResearchModelOptions, options: EngineOptions, pictures: Sequence[Picture]) -> Engine:
    """Return the engine that the options choose: the model on this machine, in vLLM, or Ray's workers."""
    if options.on_ray:
        return _ray(model, options, pictures)
    from sira_cli.run.engines import Local

    def load(task: PictureTask) -> Lvlm:
        if options.engine == "vllm":
            return load_in_vllm(task.preset, model, task.method, options.batch_size, task.together)
        return load_model(task.preset, model, task.method, pictures)

    return Local(load, options.batch_size)


def _ray(model: ResearchModelOptions, options: EngineOptions, pictures: Sequence[Picture]) -> Engine:
    """Return Ray's workers, with notes on what they wait for."""
    from sira_cli.run.on_ray import OnRay

    class Announced(OnRay):
        """Says what it waits for."""

        def begin(self, task: Task[Result], done: Callable[[str], str]) -> None:
            with waiting("starting Ray"):
                super().begin(task, done)
            raise_interrupts()  # Ray has replaced our handler of SIGTERM
            note_bundled(self._task.preset, pictures)

    loading = {"device": model.device, "offline": model.offline}
    return Announced(loading, options.batch_size, workers=options.workers, quiet=verbosity() < 1)
