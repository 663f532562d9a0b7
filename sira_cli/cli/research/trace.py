"""`sira trace`."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sira_cli.cli.loading import load_model
from sira_cli.cli.options.choosing import choose, note_idle
from sira_cli.cli.options.groups import (
    FlagOptions,
    Images,
    ModelOptions,
    Overwrite,
    Question,
    Quiet,
    TraceDecodingOptions,
    TraceSelection,
    Verbose,
    with_options,
)
from sira_cli.cli.terminal.console import note, note_halved, resumable, say, set_verbosity, verbosity
from sira_cli.cli.terminal.output import check_file, verdict
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.analysis.trace.task import Traced


EXAMPLES = """
sira trace photo.jpg -o trace.jsonl
sira trace photo.jpg --question "Is there a dog?" --track Yes,No
"""


@with_options()
def trace(
    *,
    paths: Images = None,
    question: Question = None,
    force: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Score this text instead of generating one.")
    ] = None,
    force_from: Annotated[
        Path | None,
        typer.Option("--force-from", metavar="FILE", help="Score the texts of a .jsonl file (file_name, text)."),
    ] = None,
    model: ModelOptions,
    decoding: TraceDecodingOptions,
    selection: TraceSelection,
    verifying: FlagOptions,
    top_k: Annotated[
        int, typer.Option("--top-k", metavar="N", min=1, help="Number of candidates per view and token.")
    ] = 10,
    track: Annotated[
        str,
        typer.Option(metavar="A,B,...", help="Words whose first token is tracked at every step.", show_default=False),
    ] = "",
    full_logits: Annotated[
        Path | None,
        typer.Option("--full-logits", metavar="FILE", help="Write all logits of one picture to FILE.safetensors."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write JSON lines to FILE (default: stdout).")
    ] = None,
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", metavar="DIR", help="Write one trace per picture into this folder.")
    ] = None,
    overwrite: Overwrite = False,
    batch_size: Annotated[
        int, typer.Option("-b", "--batch-size", metavar="N", min=1, help="Number of texts scored together.")
    ] = 1,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Write the logits of both streams and their contrast at every token.

    The output is JSON lines: a run line, one line per token, and an end line with the words and their scores. A
    terminal shows a coloured strip of the text instead, and with -v the candidates of each token.
    """
    set_verbosity(quiet, verbose)
    for one, other, names in (
        (force, force_from, "--force or --force-from"),
        (output, output_dir, "--output or --output-dir"),
    ):
        if one is not None and other is not None:
            raise SettingsError(f"give {names}, not both")
    if force is not None and not force.strip():
        raise SettingsError("--force: the text is empty")
    from sira_cli.analysis.trace.task import Trace, TraceOutput, read_texts, run_traces
    from sira_cli.models.preset import check_text
    from sira_cli.run.events import Halved

    for option, text in (("--question", question or ""), ("--force", force or ""), ("--track", track)):
        check_text(option, text)
    if force_from is None:
        pictures = [picture.known(caption=force) for picture in selection.selected(paths).pictures()]
    else:
        pictures = read_texts(force_from)
        if paths:
            raise SettingsError("--force-from names the pictures itself: leave out the paths")
        if question is not None:
            raise SettingsError("--force-from has its own prompts: leave out --question")
    if full_logits is not None and len(pictures) != 1:
        raise SettingsError(f"--full-logits is for one picture, not {len(pictures)}")
    preset, method = choose(model, decoding)
    task = Trace(
        preset,
        method,
        question,
        forced=force is not None or force_from is not None,
        top_k=top_k,
        track=tuple(word.strip() for word in track.split(",") if word.strip()),
        full_logits=full_logits,
        verify=verifying.read(),
    )
    note_idle(decoding, preset)
    check_file("--output", output)
    check_file("--full-logits", full_logits, overwrite)
    kept = output is not None or output_dir is not None
    traced, failed = 0, 0
    with (
        resumable(kept, overwrite),
        TraceOutput(pictures, output=output, output_dir=output_dir, overwrite=overwrite) as files,
        closing(
            run_traces(task, pictures, lambda: load_model(preset, model, method, pictures=pictures), files, batch_size)
        ) as events,
    ):
        for event in events:
            if isinstance(event, Halved):
                note_halved(event)
                continue
            if event.lines and not kept:
                _show(event, legend=traced == failed)
            traced += bool(event.lines)
            failed += bool(event.error)
            if event.error:
                say(event.error)
    if output is not None and not traced:
        note(f"{output}: all traces are there already (--overwrite makes them again)")
    if failed and len(pictures) > 1:
        say(f"{failed} of {len(pictures)} pictures failed")
    if failed:
        raise typer.Exit(3)


def _show(event: Traced, *, legend: bool) -> None:
    """Print a trace as JSON lines, or on a terminal the text as a coloured strip."""
    from sira_cli.cli.terminal.strip import print_candidates, print_words
    from sira_cli.models.texts import Answer
    from sira_cli.run.records import as_line

    if not sys.stdout.isatty():
        print(b"".join(map(as_line, event.lines)).decode(), end="", flush=True)
    elif not event.error:
        end = event.lines[-1]
        print(f"{event.picture.shown}:")
        print_words(end["text"], end["words"], legend=legend)
        if "verify" in end:
            print(verdict(Answer(objects=end["objects"], verify=end["verify"])))
        if verbosity() >= 1:
            print_candidates(event.lines[1:-1])
