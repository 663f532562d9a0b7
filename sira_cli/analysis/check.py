"""A second look at existing captions: a resumable run that yields events.

captions = find_captions("photos/")
for event in check_captions(load("llava-1.5-7b"), captions, output="checks.jsonl"):
    print(event)
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

from sira_cli.look.verify import Verify
from sira_cli.pictures.captions import Captions
from sira_cli.run.batch import BatchSize
from sira_cli.run.check_request import CheckRequest
from sira_cli.run.events import Event
from sira_cli.run.local_run import LocalRun
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.run import Job, PictureRun


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
        lvlm: the loaded model.
        captions: from `find_captions`.
        verify: how to look; None: as in the preset.
        batch_size: pictures prepared together, as for `Runner`.
        fail_fast: stop at the first picture that fails.
        output: the file of records; None: events only.
        **targets: of `Targets`: overwrite, retry_errors.

    Raises:
        SettingsError: a setting is wrong, or the file holds records of another configuration.
        SiraError: the run cannot go on.
    """
    request = CheckRequest.under(lvlm.preset, verify)
    with Job.opened(captions.pictures, *request, output=output, **targets) as job:
        engine = LocalRun(lvlm.under(job.method, job.preset), job.request, batch_size=batch_size, done=job.targets.done)
        yield from PictureRun(job, engine, fail_fast=fail_fast).events()
