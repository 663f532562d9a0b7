"""A run in which nothing is left to do needs no model, and no weights on this machine.

engine = nothing_left(pictures, targets, preset, method, task="caption", prompt=prompt) or BatchRun(load(preset), ...)
for event in PictureRun(pictures, engine, targets).events():
    print(event)
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sira_cli.errors import ModelNotFoundError
from sira_cli.methods.base import Method
from sira_cli.models import presets
from sira_cli.models.hub import find_checkpoint
from sira_cli.models.keys import Keys
from sira_cli.models.preset import Preset
from sira_cli.pictures.picture import Picture
from sira_cli.runs.ahead import ahead
from sira_cli.runs.events import Skipped
from sira_cli.runs.prompts import filled
from sira_cli.runs.targets import Targets

if TYPE_CHECKING:
    from sira_cli.models.look.verify import Verify

READERS = 4


class NothingLeft:
    """The engine of a run in which an earlier one has done every picture."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts

    def blank(self) -> None:
        """Return None: no result will be made."""
        return

    def facts(self) -> dict[str, Any]:
        """Return the facts of the earlier run about the model, the device and the memory."""
        return self._facts

    def events(self, pictures: Iterable[tuple[Picture, str]]) -> Generator[Skipped, None, None]:
        """Yield that every picture was done before."""
        for picture, name in pictures:
            yield Skipped(picture, name, picture.id or name)


def nothing_left(
    pictures: Sequence[Picture],
    targets: Targets,
    preset: Preset,
    method: Method,
    *,
    task: str,
    prompt: str,
    fills: bool = False,
    quantization: str | None = None,
    trust_remote_code: bool = False,
    verify: Verify | None = None,
) -> NothingLeft | None:
    """Return the engine of a run in which nothing is left to do; None if something is, so that a model is needed.

    Pictures are read only if the targets have all of them by name.

    Args:
        pictures: all of the run.
        targets: where results go.
        preset, method: with the settings in force.
        task, prompt, quantization: other settings that decide a text.
        fills: as for `BatchRun`.
        trust_remote_code: whether the model's Python files belong to it.
        verify: the second look.
    """
    named = [(picture, targets.name(picture)) for picture in pictures if not targets.keeps(picture)]
    if not all(targets.done(picture.id or name) for picture, name in named):
        return None
    if named:
        keys = Keys.of(preset, method, _revision(preset, targets, trust_remote_code), quantization)

        looked = None if verify is None else verify.settings(preset)

        def is_done(one: tuple[Picture, str]) -> bool:
            picture, name = one
            about, sha256 = picture.asked(prompt), ""
            # Where this fails, an earlier run that has it as done has failed in the same way.
            with suppress(Exception):
                sha256 = hashlib.sha256(picture.read()).hexdigest()
                about = filled(about, picture) if fills else about
            return targets.done(picture.id or name) == keys.key(task, name, sha256, about, looked)

        for picture, _ in named:
            picture.make_ready()
        with ThreadPoolExecutor(READERS, "sira-reader") as readers:
            if not all(ahead(readers, is_done, named, lambda: 2 * READERS)):
                return None
    return NothingLeft(targets.facts_before())


def _revision(preset: Preset, targets: Targets, trust_remote_code: bool) -> str:
    """Return the revision that pins the model's files here; if they are not here, that of the records."""
    model = str(presets.BUNDLED_FOLDER) if preset.model == presets.BUNDLED else preset.model
    try:
        return find_checkpoint(model, preset.revision, offline=True, code=trust_remote_code).revision
    except ModelNotFoundError:
        return targets.revision_before
