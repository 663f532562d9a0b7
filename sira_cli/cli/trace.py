"""`sira trace`."""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sira_cli.cli.loading import load_model
from sira_cli.cli.options import groups
from sira_cli.cli.options.choosing import choose
from sira_cli.cli.options.groups import argument, option
from sira_cli.cli.terminal.console import note, note_halved, resumable, say, verbosity
from sira_cli.cli.terminal.output import check_file, verdict
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.analysis.trace.run import Traced


@groups.with_options(
    """
sira trace photo.jpg -o trace.jsonl
sira trace photo.jpg --question "Is there a dog?" --track Yes,No
"""
)
def trace(
    *,
    paths: list[str] | None = argument("IMAGE", groups.PICTURES),
    question: groups.Question = None,
    force: str | None = option(None, "Score this text instead of generating one.", metavar="TEXT"),
    force_from: Path | None = option(None, "Score the texts of a .jsonl file (file_name, text).", metavar="FILE"),
    top_k: int = option(10, "Number of candidates per view and token.", metavar="N", min=1),
    track: str = option("", "Words whose first token is tracked at every step.", metavar="A,B,...", show_default=False),
    full_logits: Path | None = option(None, "Write all logits of one picture to FILE.safetensors.", metavar="FILE"),
    output: Path | None = option(None, "Write JSON lines to FILE (default: stdout).", "-o", "--output", metavar="FILE"),
    output_dir: Path | None = option(None, "Write one trace per picture into this folder.", metavar="DIR"),
    overwrite: groups.Overwrite = False,
    batch_size: int = option(1, "Number of texts scored together.", "-b", "--batch-size", metavar="N", min=1),
    model: groups.ModelOptions,
    decoding: groups.TraceDecodingOptions,
    selection: groups.TraceSelection,
    verifying: groups.FlagOptions,
) -> None:
    """Write the logits of both streams and their contrast at every token.

    The output is JSON lines: a run line, one line per token, and an end line with the words and their scores. A
    terminal shows a coloured strip of the text instead, and with -v the candidates of each token.
    """
    from sira_cli.analysis.trace.run import TraceOutput, read_texts, run_traces
    from sira_cli.analysis.trace.task import Trace
    from sira_cli.models.preset import check_text
    from sira_cli.run.events import Halved

    for refused, message in (
        (force is not None and force_from is not None, "give --force or --force-from, not both"),
        (output is not None and output_dir is not None, "give --output or --output-dir, not both"),
        (force is not None and not force.strip(), "--force: the text is empty"),
        (force_from is not None and paths, "--force-from names the pictures itself: leave out the paths"),
        (force_from is not None and question is not None, "--force-from has its own prompts: leave out --question"),
    ):
        if refused:
            raise SettingsError(message)
    for name, text in (("question", question), ("force", force), ("track", track)):
        check_text(f"--{name}", text or "")
    if force_from is None:
        pictures = [picture.known(caption=force) for picture in selection.selected(paths).pictures()]
    else:
        pictures = read_texts(force_from)
    if full_logits is not None and len(pictures) != 1:
        raise SettingsError(f"--full-logits is for one picture, not {len(pictures)}")
    preset, method = choose(model, decoding)
    forced = force is not None or force_from is not None
    tracked = [word.strip() for word in track.split(",") if word.strip()]
    task = Trace(preset, method, question, forced, top_k, tuple(tracked), full_logits, verifying.read())
    check_file("--output", output)
    check_file("--full-logits", full_logits, overwrite)
    kept = output is not None or output_dir is not None
    traced = failed = 0
    files = TraceOutput(pictures, output=output, output_dir=output_dir, overwrite=overwrite)
    with resumable(kept, overwrite), files:
        load = partial(load_model, preset, model, method, pictures=pictures)
        with closing(run_traces(task, pictures, load, files, batch_size)) as events:
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
        print(f"{event.picture.label}:")
        print_words(end["text"], end["words"], legend=legend)
        if "verify" in end:
            print(verdict(Answer(objects=end["objects"], verify=end["verify"])))
        if verbosity() >= 1:
            print_candidates(event.lines[1:-1])
