"""`sira trace`."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sira_cli.cli.loading import load_model
from sira_cli.cli.options import groups
from sira_cli.cli.options.choosing import choose
from sira_cli.cli.options.groups import argument, option
from sira_cli.cli.terminal.console import Progress, in_words, note, picture_events, resumable, say, verbosity
from sira_cli.cli.terminal.output import check_file, verdict
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.analysis.trace.run import TraceOutput
    from sira_cli.analysis.trace.task import Trace
    from sira_cli.pictures.picture import Picture
    from sira_cli.run.events import Event, Failed, Finished
    from sira_cli.run.lvlm import Lvlm


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
    selection: groups.GroupOptions,
    verifying: groups.FlagOptions,
) -> None:
    """Write the logits of both streams and their contrast at every token.

    The output is JSON lines: a run line, one line per token, and an end line with the words and their scores. A
    terminal shows a coloured strip of the text instead, and with -v the candidates of each token.
    """
    from sira_cli.analysis.trace.run import TraceOutput, run_traces
    from sira_cli.analysis.trace.task import Trace
    from sira_cli.models.preset import check_text

    for refused, message in (
        (force is not None and force_from is not None, "give --force or --force-from, not both"),
        (output is not None and output_dir is not None, "give --output or --output-dir, not both"),
        (force is not None and not force.strip(), "--force: the text is empty"),
        (force_from is not None and question is not None, "--force-from has its own prompts: leave out --question"),
    ):
        if refused:
            raise SettingsError(message)
    for name, text in (("question", question), ("force", force), ("track", track)):
        check_text(f"--{name}", text or "")
    if force_from is None:
        pictures = [picture.known(caption=force) for picture in selection.selected(paths).pictures()]
    else:
        pictures = _with_texts(force_from, paths, selection)
    if full_logits is not None and len(pictures) != 1:
        raise SettingsError(f"--full-logits is for one picture, not {len(pictures)}")
    preset, method = choose(model, decoding)
    forced = force is not None or force_from is not None
    tracked = [word.strip() for word in track.split(",") if word.strip()]
    task = Trace(preset, method, question, forced, top_k, tuple(tracked), full_logits, verifying.read())
    check_file("--output", output)
    check_file("--full-logits", full_logits, overwrite)
    with TraceOutput(task, pictures, output=output, output_dir=output_dir, overwrite=overwrite) as written:
        load = partial(_load, model, pictures)
        kept = output is not None or output_dir is not None
        rate = _listen(run_traces(task, pictures, load, written, batch_size), written, kept, overwrite)
        _sum_up(written, output, rate)
    if written.counts.failed:
        raise typer.Exit(3)


def _with_texts(file: Path, paths: list[str] | None, selection: groups.GroupOptions) -> list[Picture]:
    """Return the part of the pictures of a file of texts that the options choose."""
    from sira_cli.analysis.trace.run import read_texts
    from sira_cli.pictures.find import Shard

    others = [f"--{name}" for name in groups.given(selection) if name not in ("limit", "shard")]
    if paths:
        others.insert(0, "the paths")
    if others:
        raise SettingsError(f"--force-from names the pictures itself: leave out {others[0]}")
    shard = None if selection.shard is None else Shard.parse(selection.shard)
    return read_texts(file, shard, selection.limit)


def _load(model: groups.ModelOptions, pictures: Sequence[Picture], task: Trace) -> Lvlm:
    return load_model(task.preset, model, task.method, pictures)


def _listen(events: Generator[Event[Any], None, None], written: TraceOutput, kept: bool, overwrite: bool) -> float:
    """Run to the end, and return the traces per second: those not kept go to stdout, progress and errors to stderr."""
    from sira_cli.run.events import Failed, Skipped

    legend = True
    with resumable(kept, overwrite), closing(events):
        next(events)  # the model is ready
        shown = Progress.on_terminal("traces", written.counts.total) if kept else nullcontext(Progress(silent=True))
        with shown as progress:
            for event in picture_events(events, progress):
                if isinstance(event, Skipped):
                    continue
                if not kept:
                    _show(event, legend=legend)
                if isinstance(event, Failed):
                    say(event.error)
                else:
                    legend = False
    return progress.rate


def _sum_up(written: TraceOutput, output: Path | None, rate: float) -> None:
    counts = written.counts
    if output is not None and not counts.worked:
        note(f"{output}: all traces are there already (--overwrite makes them again)")
    elif output is not None:
        done = f"{counts.ok} of {counts.total} pictures traced in {in_words(written.seconds)}"
        before = f", {counts.ok_before} were traced before" if counts.ok_before else ""
        note(f"{done} ({rate:.2f}/s after loading){before}: {output}")
    if counts.failed and counts.total > 1:
        say(f"{counts.failed} of {counts.total} pictures failed")


def _show(event: Finished[Any] | Failed[Any], *, legend: bool) -> None:
    """Print a trace as JSON lines, or on a terminal the text as a coloured strip."""
    from sira_cli.cli.terminal.strip import print_candidates, print_words
    from sira_cli.models.texts import Answer
    from sira_cli.run.records import as_line

    lines = event.record
    end = lines[-1]
    if not sys.stdout.isatty():
        print(b"".join(map(as_line, lines)).decode(), end="", flush=True)
    elif not end["error"]:
        print(f"{event.picture.label}:")
        print_words(end["text"], end["words"], legend=legend)
        if "verify" in end:
            print(verdict(Answer(objects=end["objects"], verify=end["verify"])))
        if verbosity() >= 1:
            print_candidates(lines[1:-1])
