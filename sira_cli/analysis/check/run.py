"""A second look at existing captions: a resumable run that yields events.

captions = find_captions("photos/")
for event in check_captions(load("llava-1.5-7b"), captions, output="checks.jsonl"):
    print(event)
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

from sira_cli.analysis.check.captions import Captions
from sira_cli.methods.base import Method
from sira_cli.models.look.verify import Verify
from sira_cli.models.lvlm import Lvlm
from sira_cli.models.preset import Preset
from sira_cli.runs.batch_size import BatchSize
from sira_cli.runs.check_run import TASK, CheckRun, method_of, plain, prompt_of
from sira_cli.runs.events import Event
from sira_cli.runs.run import PictureRun
from sira_cli.runs.targets import Targets, settings_of


def settings_in_force(preset: Preset, method: Method, verify: Verify, quantization: str | None) -> dict[str, Any]:
    """Return all settings that decide the records of a run, as in its report; `preset` is from `plain`."""
    how = verify.settings(preset)
    return settings_of(TASK, how["question"], preset, method, quantization) | {"verify": how}


def check_captions(
    lvlm: Lvlm,
    captions: Captions,
    *,
    verify: Verify | None = None,
    batch_size: BatchSize | None = None,
    fail_fast: bool = False,
    output: str | Path | None = None,
    **targets: Any,
) -> Generator[Event, None, None]:
    """Ask about each object that captions name, and yield events. The same call goes on where a run stopped.

    Args:
        lvlm: the loaded model; its decoder is used for rewriting only.
        captions: from `find_captions`.
        verify: how to look; None: as in the preset. With `mode="rewrite"`, `fixed` of a record is decoded again.
        batch_size: pictures prepared together, as for `BatchRun`.
        fail_fast: stop at the first picture that fails.
        output: the file of records; None: events only.
        **targets: of `Targets`: overwrite, retry_errors.

    Raises:
        SettingsError: a setting is wrong, or the file holds records of another configuration.
        SiraError: the run cannot go on.
    """
    look, preset = verify or Verify(), plain(lvlm.preset)
    method = method_of(look, lvlm.decoder)
    settings = settings_in_force(preset, method, look, lvlm.quantization)
    with Targets(captions.pictures, task=TASK, output=None if output is None else Path(output), **targets) as kept:
        kept.check(settings)
        engine = CheckRun(lvlm, TASK, prompt_of(look, preset), batch_size=batch_size, verify=look, done=kept.done)
        yield from PictureRun(captions.pictures, engine, kept, settings, fail_fast=fail_fast).events()
