"""Progress in stages: a bar per stage, and failures."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, closing
from typing import Any

from sira_cli.cli.terminal.console import note_halved, say
from sira_cli.cli.terminal.progress import Progress


def show_stages(events: Generator[Any, None, None]) -> None:
    """Consume events (`StageStarted`, `Advanced`, `FailedPicture`, `Halved`), and show them."""
    from sira_cli.analysis.sweep.grid import Advanced, FailedPicture
    from sira_cli.analysis.sweep.run import StageStarted
    from sira_cli.runs.events import Halved

    with ExitStack() as bars, closing(events):
        progress = Progress("", 0, silent=True)
        for event in events:
            if isinstance(event, StageStarted):
                bars.close()
                progress = bars.enter_context(Progress.shown(event.stage, event.total))
            elif isinstance(event, FailedPicture):
                say(event.error)
                progress.advance(0, error=True)
            elif isinstance(event, Halved):
                note_halved(event)
            elif isinstance(event, Advanced):
                progress.advance(event.count, worked=event.worked)
