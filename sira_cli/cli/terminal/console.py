"""Output to stderr: messages, warnings, progress. stdout holds answers only."""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sira_cli.errors import UntestedModelWarning

if TYPE_CHECKING:
    from sira_cli.models.hub import Download
    from sira_cli.run.events import Halved

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
        warnings.showwarning = _show_warning


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
    return re.sub(r"`([\w.]+)=`( (?!is )|)", _named, text)


def _named(found: re.Match[str]) -> str:
    name, space = found[1], found[2]
    from sira_cli.cli.options.setting import is_set

    by = _spelled.get(name) or ("--set" if is_set(name) else "")
    return f"{by} {name}" + "=" * bool(space) if by else "--" + name.replace("_", "-") + space


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


def _show_warning(message: Any, *args: Any, **kwargs: Any) -> None:
    say(f"warning: {message}")
