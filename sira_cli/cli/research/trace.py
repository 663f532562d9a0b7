"""`sira trace`."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

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
    option,
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


@dataclass(frozen=True)
class TraceOptions:
    """The text to trace, what is recorded of it, and where that goes."""

    title: ClassVar[str] = "Options"

    question: Question = None
    force: str | None = option(None, "Score this text instead of generating one.", metavar="TEXT")
    force_from: Path | None = option(None, "Score the texts of a .jsonl file (file_name, text).", metavar="FILE")
    top_k: int = option(10, "Number of candidates per view and token.", metavar="N", min=1)
    track: str = option("", "Words whose first token is tracked at every step.", metavar="A,B,...", show_default=False)
    full_logits: Path | None = option(None, "Write all logits of one picture to FILE.safetensors.", metavar="FILE")
    output: Path | None = option(None, "Write JSON lines to FILE (default: stdout).", "-o", "--output", metavar="FILE")
    output_dir: Path | None = option(None, "Write one trace per picture into this folder.", metavar="DIR")
    overwrite: Overwrite = False
    batch_size: int = option(1, "Number of texts scored together.", "-b", "--batch-size", metavar="N", min=1)
    quiet: Quiet = False
    verbose: Verbose = 0

    def check(self, named: bool) -> None:
        """Check that the options fit together, and to paths if some are `named`."""
        from sira_cli.models.preset import check_text

        for one, other, names in (
            (self.force, self.force_from, "--force or --force-from"),
            (self.output, self.output_dir, "--output or --output-dir"),
        ):
            if one is not None and other is not None:
                raise SettingsError(f"give {names}, not both")
        if self.force is not None and not self.force.strip():
            raise SettingsError("--force: the text is empty")
        for name, text in (("question", self.question), ("force", self.force), ("track", self.track)):
            check_text(f"--{name}", text or "")
        if self.force_from is not None and named:
            raise SettingsError("--force-from names the pictures itself: leave out the paths")
        if self.force_from is not None and self.question is not None:
            raise SettingsError("--force-from has its own prompts: leave out --question")


@with_options()
def trace(
    *,
    paths: Images = None,
    given: TraceOptions,
    model: ModelOptions,
    decoding: TraceDecodingOptions,
    selection: TraceSelection,
    verifying: FlagOptions,
) -> None:
    """Write the logits of both streams and their contrast at every token.

    The output is JSON lines: a run line, one line per token, and an end line with the words and their scores. A
    terminal shows a coloured strip of the text instead, and with -v the candidates of each token.
    """
    set_verbosity(given.quiet, given.verbose)
    given.check(named=bool(paths))
    from sira_cli.analysis.trace.task import Trace, TraceOutput, read_texts, run_traces
    from sira_cli.run.events import Halved

    if given.force_from is None:
        pictures = [picture.known(caption=given.force) for picture in selection.selected(paths).pictures()]
    else:
        pictures = read_texts(given.force_from)
    if given.full_logits is not None and len(pictures) != 1:
        raise SettingsError(f"--full-logits is for one picture, not {len(pictures)}")
    preset, method = choose(model, decoding)
    forced, track = given.force is not None or given.force_from is not None, given.track.split(",")
    words = tuple(word.strip() for word in track if word.strip())
    verify = verifying.read()
    task = Trace(preset, method, given.question, forced, given.top_k, words, given.full_logits, verify)
    note_idle(decoding, preset)
    check_file("--output", given.output)
    check_file("--full-logits", given.full_logits, given.overwrite)
    kept = given.output is not None or given.output_dir is not None
    places: dict[str, Any] = {"output": given.output, "output_dir": given.output_dir, "overwrite": given.overwrite}
    traced, failed = 0, 0
    with resumable(kept, given.overwrite), TraceOutput(pictures, **places) as files:
        load = partial(load_model, preset, model, method, pictures=pictures)
        with closing(run_traces(task, pictures, load, files, given.batch_size)) as events:
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
    if given.output is not None and not traced:
        note(f"{given.output}: all traces are there already (--overwrite makes them again)")
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
