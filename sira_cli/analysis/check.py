"""A second look at existing captions: a resumable run that yields events.

captions = find_captions("photos/")
for event in check_captions(load("llava-1.5-7b"), captions, output="checks.jsonl"):
    print(event)
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from sira_cli.look.verify import Verify
from sira_cli.pictures.captions import Captions
from sira_cli.run.batch import BatchSize
from sira_cli.run.check import Check
from sira_cli.run.events import Event
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.output import Files, Output
from sira_cli.run.run import Local, run


def check_captions(
    lvlm: Lvlm,
    captions: Captions,
    *,
    verify: Verify | None = None,
    batch_size: BatchSize | None = None,
    fail_fast: bool = False,
    output: str | Path | None = None,
    overwrite: bool = False,
    retry_errors: bool = False,
) -> Generator[Event, None, None]:
    """Ask about each object that captions name, and yield events. The same call goes on where a run stopped.

    Args:
        lvlm: the loaded model.
        captions: from `find_captions`.
        verify: how to look; None: as in the preset.
        batch_size: pictures prepared together, as for `Runner`.
        fail_fast: stop at the first picture that fails.
        output: the file of records; None: events only.
        overwrite, retry_errors: as for `Files`.

    Raises:
        SettingsError: a setting is wrong, or the file holds records of another configuration.
        SiraError: the run cannot go on.
    """
    task = Check.under(lvlm.preset, verify).about(captions.pictures)
    files = Files(output, overwrite=overwrite, retry_errors=retry_errors)
    with Output(task, captions.pictures, files) as written:
        yield from run(task, captions.pictures, Local(lvlm, batch_size), written, fail_fast=fail_fast)
