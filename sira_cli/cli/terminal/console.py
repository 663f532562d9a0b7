"""Output to stderr: messages, warnings, progress. stdout holds answers only.

Progress is a bar on a terminal, a line every 30 s elsewhere, and nothing with -q.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sira_cli import interrupts
from sira_cli.errors import UntestedModelWarning

if TYPE_CHECKING:
    from sira_cli.models.hub import Download
    from sira_cli.run.events import Event, Halved, PictureEvent
    from sira_cli.run.output import Output

EVERY = 30.0  # seconds between two lines of progress
_verbosity = 0
_spelled: dict[str, str] = {}  # parameters that are no options of their own


def verbosity() -> int:
    """Return -1 (quiet), 0 (normal), 1 (-v: with messages of the libraries) or 2 (-vv: with tracebacks)."""
    return _verbosity


def set_verbosity(quiet: bool, verbose: int) -> None:
    """Set the verbosity, before transformers is imported: it reads its log level from the environment."""
    global _verbosity
    _spelled.clear()  # of an earlier command
    _verbosity = -1 if quiet else verbose
    log = logging.getLogger("sira_cli")
    log.handlers = [_LogToStderr()]
    log.propagate = False
    log.setLevel(logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])
    logging.getLogger("bitsandbytes").setLevel(logging.NOTSET if _verbosity >= 1 else logging.ERROR)  # a line per layer
    if _verbosity >= 1:
        return
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not sys.stderr.isatty() or quiet:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.simplefilter("ignore")
    if not quiet:
        warnings.simplefilter("once", UntestedModelWarning)  # not at every picture
        warnings.showwarning = lambda message, *args, **kwargs: say(f"warning: {message}")


def say(message: str) -> None:
    """Print one line to stderr; the library's parameters become options."""
    with suppress(OSError):
        print(f"sira: {with_options_named(message)}", file=sys.stderr, flush=True)


def spell(options: Mapping[str, str]) -> None:
    """Set the option for parameters that are not options themselves: `--option` for `rule`."""
    _spelled.clear()
    _spelled.update(options)


def with_options_named(text: str) -> str:
    """Return a text of the library with its parameters, `name=`, as options: --name, --set name=, or --option name=."""

    def named(match: re.Match[str]) -> str:
        from sira_cli.cli.options.setting import is_set

        name = match[1]
        space = match[2]  # before a value
        by = _spelled.get(name) or ("--set" if is_set(name) else "")
        if not by:
            return f"--{name.replace('_', '-')}{space}"
        return f"{by} {name}=" if space else f"{by} {name}"

    return re.sub(r"`([\w.]+)=`( (?!is )|)", named, text)


def note(message: str) -> None:
    """Print one line to stderr, unless `-q` is given."""
    if _verbosity >= 0:
        say(message)


def note_halved(event: Halved) -> None:
    """Report that memory was too small."""
    note(f"out of memory with {event.before} pictures at once, now {event.batch_size}")


@contextmanager
def waiting(message: str) -> Iterator[None]:
    """Show a spinner on a terminal, nothing elsewhere."""
    if _verbosity < 0 or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(message):
        yield


@contextmanager
def resumable(kept: bool, overwrite: bool = False) -> Iterator[None]:
    """Tell at an interrupt that the same command resumes the run, if finished work is kept."""
    import typer

    try:
        yield
    except KeyboardInterrupt:
        if not kept:
            raise
        again = "again, without --overwrite," if overwrite else "again"
        say(f"interrupted; finished work is kept: run the same command {again} to resume")
        raise typer.Exit(130) from None


def announce(download: Download) -> None:
    """Announce a first download: model, size and folder, the smallest preset that fits, and one without a download."""
    from sira_cli.models.placement import pick_device
    from sira_cli.models.sizes import memory_for_models, smallest_that_fits

    smallest = smallest_that_fits(memory_for_models(pick_device("auto")))
    least = "" if smallest is None else f"the smallest that fits here: --preset {smallest[0]}; "
    note(
        f"fetching {download.model} ({download.revision}), {download.gigabytes:.1f} GB, to {download.cache} "
        f"({least}--preset demo needs no download, but knows drawn scenes only)"
    )


class _LogToStderr(logging.Handler):
    """Prints the library's log like other messages; -vv adds tracebacks."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message (called by `logging`)."""
        if record.exc_info and record.exc_info[1] is not None:
            traceback.print_exception(record.exc_info[1])
        say(record.getMessage())


class Progress:
    """Counts finished work, and shows it unless silent. `Progress.on_terminal` makes one that fits the terminal."""

    def __init__(self, what: str = "", total: int = 0, bar: Any = None, *, silent: bool = False) -> None:
        self.done = self.errors = self._worked = 0
        self.rate = 0.0  # pieces of work per second
        self._what = what
        self._total = total
        self._bar = bar
        self._silent = silent
        self._task = None if bar is None else bar.add_task(what, total=total, errors="", rate="")
        self._began = self._noted = time.monotonic()

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
            self._bar.update(self._task, completed=self.done, total=self._total, errors=errors, rate=f"{rate:.2f}/s")
        elif not self._silent and now - self._noted >= EVERY and self.done < self._total:
            self._noted = now
            left = in_words((self._total - self.done) / rate) + " left" if rate else ""
            parts = [f"{self.done} of {self._total} {self._what}", f"{rate:.2f}/s", errors, left]
            note(", ".join(filter(None, parts)))

    def reach(self, done: int, total: int | None = None) -> None:
        """Set the number that is done so far; also the total, if it is known only now."""
        self._total = self._total if total is None else total
        self.advance(done - self.done)

    def count(self, event: PictureEvent) -> None:
        """Count a picture of a run."""
        from sira_cli.run.events import Failed, Skipped

        skipped = isinstance(event, Skipped)
        self.advance(error=isinstance(event, Failed) or getattr(event, "failed", False), worked=not skipped)

    @property
    def complete(self) -> bool:
        """Whether everything is done."""
        return self.done >= self._total

    @classmethod
    @contextmanager
    def on_terminal(cls, what: str, total: int) -> Iterator[Progress]:
        """Show the progress of `total` pieces of `what`."""
        if verbosity() < 0 or not sys.stderr.isatty():
            yield cls(what, total)
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        texts = "{task.fields[rate]}", "[red]{task.fields[errors]}"
        columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), *texts, TimeRemainingColumn())
        with Bar(*columns, console=Console(stderr=True), redirect_stdout=False) as bar:
            yield cls(what, total, bar)


def in_words(seconds: float) -> str:
    """Write a duration as `3 h 12 min`, `4 min 2 s` or `12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def picture_events(events: Iterable[Event], progress: Progress) -> Iterator[PictureEvent]:
    """Yield the events of a run about its pictures, and count each when it has been shown; halvings are noted."""
    from sira_cli.run.events import Halved, Started

    for event in events:
        if isinstance(event, Halved):
            note_halved(event)
        elif not isinstance(event, Started):
            yield event
            progress.count(event)


def run_records(events: Generator[Event, None, None], output: Output, overwrite: bool) -> Iterator[dict[str, Any]]:
    """Run to the end, and yield the record of each caption, including earlier runs'; report why pictures failed."""
    from sira_cli.run.events import Failed, Skipped

    with closing(events):
        next(events)  # the model is ready
        with resumable(output.any, overwrite), Progress.on_terminal("captions", output.counts.total) as progress:
            for event in picture_events(events, progress):
                yield output.before(event) if isinstance(event, Skipped) else event.record.to_record()
                if isinstance(event, Failed):
                    say(event.record.error)


def show_stages(events: Generator[Any, None, None], pictures: int = 1) -> int:
    """Show the events of stages or parts: a bar each, each failure once; return how many pictures were not measured."""
    from sira_cli.run.events import Advanced, Failed, Halved, Remark, StageStarted, Started

    reported: set[str] = set()  # locations of pictures
    failures = 0
    with ExitStack() as bars, closing(events):
        progress = Progress(silent=True)
        for event in events:
            if isinstance(event, StageStarted):
                bars.close()
                reported.clear()
                progress = bars.enter_context(Progress.on_terminal(event.stage, event.total))
            elif isinstance(event, Halved):
                note_halved(event)
            elif isinstance(event, Remark):
                note(event.text)
            elif isinstance(event, Advanced):
                progress.advance(event.count, error=event.failed)
            elif not isinstance(event, Started):
                if isinstance(event, Failed) and event.picture.location not in reported:
                    reported.add(event.picture.location)
                    failures += 1
                    say(event.error)
                progress.count(event)
            if progress.complete:
                bars.close()  # before the next model is loaded, which has a display of its own
    if failures and pictures > 1:
        say(f"{failures} of {pictures} pictures failed")
    return failures
