"""Progress of a long run on stderr: a bar on a terminal, a line every 30 s elsewhere, nothing with -q."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sira_cli import interrupts
from sira_cli.cli.terminal.console import note, note_halved, say, verbosity

if TYPE_CHECKING:
    from sira_cli.run.events import Event, PictureEvent
    from sira_cli.run.output import Output

EVERY = 30.0  # seconds between two lines


class Progress:
    """Counts finished work, and shows it unless silent. `Progress.shown` makes one that fits the terminal."""

    def __init__(self, what: str, total: int, bar: Any = None, *, silent: bool = False) -> None:
        self.done = self.errors = 0
        self.rate = 0.0  # pieces of work per second
        self._what, self._total, self._bar = what, total, bar
        self._task = None if bar is None else bar.add_task(what, total=total, errors="", rate="")
        self._began = self._said = time.monotonic()
        self._worked = 0
        self._silent = silent

    def advance(self, count: int = 1, *, error: bool = False, worked: bool = True) -> None:
        """Count more as done; not `worked`: done by an earlier run, and not part of the speed."""
        interrupts.check()
        self.done += count
        self.errors += error
        self._worked += count * worked
        now = time.monotonic()
        self.rate = rate = self._worked / max(now - self._began, 1e-9)
        errors = f"{self.errors} failed" if self.errors else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, errors=errors, rate=f"{rate:.2f}/s")
        elif not self._silent and now - self._said >= EVERY and self.done < self._total:
            self._said = now
            left = in_words((self._total - self.done) / rate) + " left" if rate else ""
            parts = [f"{self.done} of {self._total} {self._what}", f"{rate:.2f}/s", errors, left]
            note(", ".join(part for part in parts if part))

    def reach(self, done: int, total: int | None = None) -> None:
        """Set the number that is done so far; also the total, if it is known only now."""
        if total is not None and total != self._total:
            self._total = total
            if self._bar is not None:
                self._bar.update(self._task, total=total)
        self.advance(done - self.done)

    @classmethod
    @contextmanager
    def shown(cls, what: str, total: int) -> Iterator[Progress]:
        """Show the progress of `total` pieces of `what`."""
        if verbosity() < 0 or not sys.stderr.isatty():
            yield cls(what, total)
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("[red]{task.fields[errors]}"),
            TimeRemainingColumn(),
        )
        with Bar(*columns, console=Console(stderr=True), redirect_stdout=False) as bar:
            yield cls(what, total, bar)


def picture_events(events: Iterable[Event], progress: Progress) -> Iterator[PictureEvent]:
    """Yield the events of a run about its pictures, and count each when it has been shown; halvings are noted."""
    from sira_cli.run.events import Failed, Halved, Skipped, Started

    for event in events:
        if isinstance(event, Halved):
            note_halved(event)
        elif not isinstance(event, Started):
            yield event
            if isinstance(event, Skipped):
                progress.advance(error=event.failed, worked=False)
            else:
                progress.advance(error=isinstance(event, Failed))


def run_records(
    events: Iterable[Event], output: Output, progress: Progress
) -> Iterator[tuple[PictureEvent, dict[str, Any]]]:
    """Yield each picture's event with its record, including earlier runs', and report why pictures failed."""
    from sira_cli.run.events import Failed, Skipped

    for event in picture_events(events, progress):
        if isinstance(event, Skipped):
            yield event, output.before(event)
            continue
        yield event, event.record.to_record()
        if isinstance(event, Failed):
            say(event.record.error)


def in_words(seconds: float) -> str:
    """Write a duration as `3 h 12 min`, `4 min 2 s` or `12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
