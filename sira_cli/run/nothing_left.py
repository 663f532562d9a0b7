"""A run in which nothing is left to do needs no model, and no weights on this machine.

engine = nothing_left(job) or LocalRun(load(preset), job.request, done=job.targets.done)
for event in PictureRun(job, engine).events():
    print(event)
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from sira_cli.errors import ModelNotFoundError
from sira_cli.models import presets
from sira_cli.models.hub import find_checkpoint
from sira_cli.models.preset import Preset
from sira_cli.pictures.picture import Picture
from sira_cli.run.batch import ahead
from sira_cli.run.events import Skipped
from sira_cli.run.keys import Keys
from sira_cli.run.run import Job
from sira_cli.run.targets import Targets

READERS = 4


class NothingLeft:
    """The engine of a run whose pictures were all done by an earlier run."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts

    def blank(self) -> None:
        """Return None: no result will be made."""
        return

    def facts(self) -> dict[str, Any]:
        """Return the facts of the earlier run about the model, the device and the memory."""
        return self._facts

    def events(self, pictures: Iterable[tuple[Picture, str]]) -> Generator[Skipped, None, None]:
        """Yield `Skipped` for every picture: all were done before."""
        for picture, name in pictures:
            yield Skipped(picture, name, picture.id or name)


def nothing_left(job: Job, *, revision: str | None = None, server: str = "") -> NothingLeft | None:
    """Return the engine of a run in which nothing is left to do; None if something is, so that a model is needed.

    Pictures are read only if the targets have all of them by name.
    """
    targets, request, named = job.targets, job.request, _named(job)
    if not _have(targets, named):
        return None
    if named:
        revision = _revision(job.preset, targets) if revision is None else revision
        keys = Keys.of(job.preset, job.method, revision, server)
        how = request.looked(job.preset), request.json_schema

        def is_done(one: tuple[Picture, str]) -> bool:
            picture, name = one
            about, sha256 = picture.asked(request.prompt), ""
            # Where this fails, an earlier run that has it as done has failed in the same way.
            with suppress(Exception):
                data = picture.read()
                sha256 = picture.digest(data)
                about = request.asked(picture)
            return bool(targets.done(picture.id or name) == keys.key(request.task, name, sha256, about, *how))

        with ThreadPoolExecutor(READERS, "sira-reader") as readers:
            if not all(ahead(readers, is_done, named, 2 * READERS)):
                return None
    return NothingLeft(targets.facts_before())


def all_named(job: Job) -> bool:
    """Return whether the targets know every picture of a run by name, done or failed."""
    return _have(job.targets, _named(job))


def _have(targets: Targets, named: Iterable[tuple[Picture, str]]) -> bool:
    return all(targets.done(picture.id or name) for picture, name in named)


def _named(job: Job) -> list[tuple[Picture, str]]:
    return [(picture, job.targets.name(picture)) for picture in job.pictures if not job.targets.keeps(picture)]


def _revision(preset: Preset, targets: Targets) -> str:
    """Return the revision of the model's local files; without local files, that of the records."""
    model = str(presets.BUNDLED_FOLDER) if preset.model == presets.BUNDLED else preset.model
    try:
        return find_checkpoint(model, preset.revision, offline=True, code=preset.load.trust_remote_code).revision
    except ModelNotFoundError:
        return targets.revision_before
