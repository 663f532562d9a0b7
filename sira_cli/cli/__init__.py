"""The command `sira`. Heavy imports happen inside commands, so that help and usage errors are instant."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from sira_cli import interrupts
from sira_cli._version import __version__
from sira_cli.cli import calibrate, caption, check, demo, presets, records, research, serve, trace
from sira_cli.cli import eval as evaluation
from sira_cli.cli.help import Groups, in_one_line, register
from sira_cli.cli.terminal.console import say, verbosity
from sira_cli.errors import SiraError

app = typer.Typer(
    name="sira",
    cls=Groups,
    help="Captions and answers with fewer hallucinations: SIRA decoding for vision-language models.",
    epilog="Try it without a download: sira demo",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Commands by group, with their line in the list if it differs from their help.
COMMANDS: dict[str, dict[Callable[..., Any], str | None]] = {
    "Caption and check": {
        caption.caption: None,
        caption.ask: None,
        check.check: "Find objects in captions that are not in the pictures.",
        records.compare: "Show what differs between two runs over the same pictures.",
        demo.demo: "Show greedy and SIRA on drawn scenes; nothing to download.",
        presets.doctor: "Show what runs on this machine, and what to type next.",
    },
    "Look and serve": {
        serve.serve: "Answer programs that speak OpenAI's protocol.",
        trace.trace: "Write the logits of both streams, token by token.",
        records.report: "Make an HTML page of captions, the doubtful first, or of traces.",
        records.export: "Write records as tables, text files or XMP (ExifTool).",
    },
    "Research": {
        research.bench: "Measure what methods cost compared with greedy.",
        research.sweep: "Find the best K and alpha for a model (Figure 3).",
        research.drift: "Measure where the two streams diverge (Figure 4).",
        evaluation.eval_benchmarks: None,
    },
}
for group, commands in COMMANDS.items():
    for command, line in commands.items():
        register(app, command, line, group)
fit = "Fit a method's settings to a model."
app.add_typer(calibrate.app, name="calibrate", rich_help_panel="Research", short_help=fit)
app.add_typer(presets.app, name="presets", rich_help_panel="Caption and check")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"sira {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line, and exit: 0 all good, 1 nothing could be done, 2 usage, 3 some pictures failed, 130 Ctrl-C.

    Typer itself ends usage errors with 2 and a closed pipe with 1.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file name may hold any bytes
    interrupts.raise_interrupts()
    try:
        code = _run()
        sys.exit(code if _flushed() else 1)
    finally:
        if interrupts.happened():  # even if a library replaced or swallowed the error
            interrupts.leave()


def _run() -> int | str | None:
    """Run the command line, report errors, and return the exit code."""
    try:
        args = sys.argv[1:]
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        elif args == ["version"]:
            args = ["--version"]
        code = app(args, prog_name="sira", standalone_mode=False)  # the name also under `python -m`
        return code if isinstance(code, int) else 0
    except TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)
        else:
            say(in_one_line(error))
        return error.exit_code
    except SystemExit as stop:
        return stop.code
    except SiraError as error:
        _report(error, str(error))
        return error.exit_code
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            _report_full(error)  # from `print`: files have our own errors
        elif "operator torchvision::" in str(error):  # importing it, and thus transformers, fails
            advice = "uninstall it, or reinstall both together"
            _report(error, f"the installed torchvision does not fit this torch: {advice}")
        elif not interrupts.happened():
            _report(error, f"unexpected {type(error).__name__}: {error} (-vv shows where)")
        return 1


def _flushed() -> bool:
    """Flush stdout, and return whether that worked."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return True
    except OSError as error:
        _report_full(error)
        return False
    return True


def _report_full(error: OSError) -> None:
    """Report that stdout cannot be written, and discard its buffer, or Python would try again at exit."""
    _report(error, f"stdout cannot be written: {error.strerror}")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _report(error: Exception, message: str) -> None:
    if verbosity() >= 2:
        traceback.print_exception(error)
    say(message)
