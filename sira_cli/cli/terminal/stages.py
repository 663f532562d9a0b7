"""Progress of measurements: a bar per stage or for all pictures, and failures."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, TypeVar

from sira_cli.cli.terminal.console import note_halved, say
from sira_cli.cli.terminal.progress import Progress
from sira_cli.errors import PictureError

if TYPE_CHECKING:
    from sira_cli.pictures.picture import Picture
    from sira_cli.run.events import Halved

T = TypeVar("T")


def show_stages(events: Generator[Any, None, None], pictures: int = 1) -> None:
    """Consume the events of work in stages, or of a benchmark's parts: a bar per stage, each failure once.

    At the end, the number of pictures that failed is printed, if there are several `pictures`.
    """
    from sira_cli.eval.evaluation import PartStarted
    from sira_cli.run.events import Advanced, Failed, FailedPicture, Halved, Skipped, StageStarted

    said: set[str] = set()
    failures = 0
    with ExitStack() as bars, closing(events):
        progress = Progress("", 0, silent=True)
        for event in events:
            if isinstance(event, StageStarted | PartStarted):
                bars.close()
                said.clear()
                progress = bars.enter_context(Progress.shown(event.stage, event.total))
            elif isinstance(event, FailedPicture):
                failures += 1
                say(event.error)
                progress.advance(0, error=True)
            elif isinstance(event, Halved):
                note_halved(event)
            elif isinstance(event, Advanced):
                progress.advance(event.count, worked=event.worked)
            else:
                failed = isinstance(event, Failed)
                if failed and event.picture.location not in said:
                    said.add(event.picture.location)
                    say(event.record.error)
                progress.advance(error=failed, worked=not isinstance(event, Skipped))
    if failures and pictures > 1:
        say(f"{failures} of {pictures} pictures failed")


def measured(
    what: Iterable[tuple[Picture, T | PictureError] | Halved], total: int, on_failure: Callable[[Picture, str], None]
) -> Iterator[T]:
    """Yield the measurements and show progress; a failed picture is reported and handed to `on_failure`."""
    failures = 0
    with Progress.shown("pictures", total) as progress:
        for event in what:
            if not isinstance(event, tuple):
                note_halved(event)
                continue
            picture, result = event
            if isinstance(result, PictureError):
                failures += 1
                say(str(result))
                on_failure(picture, str(result))
            else:
                yield result
            progress.advance(error=isinstance(result, PictureError))
    if failures and total > 1:
        say(f"{failures} of {total} pictures failed")
