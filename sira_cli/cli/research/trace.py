"""`sira trace`."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sira_cli.cli.loading import load_model
from sira_cli.cli.options.choosing import choose, note_idle
from sira_cli.cli.options.common import (
    Images,
    ModelOptions,
    Overwrite,
    Question,
    Quiet,
    TraceSelection,
    Verbose,
)
from sira_cli.cli.options.decoding import TraceDecodingOptions
from sira_cli.cli.options.groups import with_options
from sira_cli.cli.options.verifying import FlagOptions, verdict
from sira_cli.cli.terminal.console import note, note_halved, resumable, say, set_verbosity, verbosity
from sira_cli.cli.terminal.output import check_file
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.analysis.trace.run import TraceRun
    from sira_cli.analysis.trace.targets import Line
    from sira_cli.pictures.picture import Picture


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
        typer.Option(
            "--force-from",
            metavar="FILE",
            help="Score the texts of a .jsonl file (file_name, text).",
        ),
    ] = None,
    model: ModelOptions,
    decoding: TraceDecodingOptions,
    selection: TraceSelection,
    verifying: FlagOptions,
    top_k: Annotated[
        int,
        typer.Option(
            "--top-k",
            metavar="N",
            min=1,
            help="Number of candidates per view and token.",
        ),
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
    from sira_cli.analysis.trace.request import TraceOptions, TraceRequest, read_texts, settings_of
    from sira_cli.analysis.trace.targets import TraceTargets
    from sira_cli.models.preset import check_text

    for option, text in (("--question", question or ""), ("--force", force or ""), ("--track", track)):
        check_text(option, text)
    if force_from is None:
        requests = [TraceRequest(picture, text=force) for picture in selection.selected(paths).pictures()]
    else:
        requests = read_texts(force_from)
        if paths:
            raise SettingsError("--force-from names the pictures itself: leave out the paths")
        if question is not None:
            raise SettingsError("--force-from has its own prompts: leave out --question")
    if full_logits is not None and len(requests) != 1:
        raise SettingsError(f"--full-logits is for one picture, not {len(requests)}")
    preset, method = choose(model, decoding)
    verify = verifying.read(preset)
    note_idle(decoding, preset)
    from sira_cli.models import combinations

    combinations.check(preset, method, verify=None if verify is None else verify.mode, streams="sira trace")
    check_file("--output", output)
    check_file("--full-logits", full_logits, overwrite)
    terminal = _Terminal(strip=output is None and output_dir is None and sys.stdout.isatty())
    words = tuple(word.strip() for word in track.split(",") if word.strip())
    options = TraceOptions(top_k, words, full_logits, verify)
    pictures = [request.picture for request in requests]
    said = None if question is None else preset.prompts.asking(question)
    kept = output is not None or output_dir is not None
    with (
        resumable(kept, overwrite),
        closing(
            TraceTargets(pictures, output=output, output_dir=output_dir, overwrite=overwrite, on_line=terminal.take)
        ) as targets,
    ):
        targets.check(settings_of(preset, method, options))
        if all(targets.has(each.picture, said or each.asked(preset.prompts), each.text) for each in requests):
            if full_logits is not None:
                raise SettingsError("--full-logits: the trace exists already: give --overwrite, or another output")
            if output is not None:
                note(f"{output}: all traces are there already (--overwrite makes them again)")
            return  # no model is needed
        lvlm = load_model(preset, model, method, pictures=pictures)
        from sira_cli.analysis.trace.run import TraceRun

        run = TraceRun(
            lvlm, requests, targets, options, batch_size=batch_size, prompt=said, question=question is not None
        )
        failed = terminal.listen(run)
    if failed and len(requests) > 1:
        say(f"{failed} of {len(requests)} pictures failed")
    if failed:
        raise typer.Exit(3)


class _Terminal:
    """Shows traces: JSON lines on stdout, or on a terminal a strip of each text."""

    def __init__(self, strip: bool) -> None:
        self._strip = strip
        self._lines: list[Line] = []  # lines of the current strip
        self._legend = True

    def take(self, picture: Picture | None, line: Line) -> None:
        """Print a line that is not written to a file, or keep it for the strip."""
        from sira_cli.analysis.trace.targets import as_json

        if self._strip:
            self._lines.append(line)
        else:
            print(as_json(line), flush=True)

    def listen(self, run: TraceRun) -> int:
        """Run to the end, and return the number of failed pictures."""
        from sira_cli.analysis.trace.run import Traced, TraceFailed
        from sira_cli.run.events import Halved

        failed = 0
        with closing(run.events()) as events:
            for event in events:
                if isinstance(event, Halved):
                    note_halved(event)
                elif isinstance(event, TraceFailed):
                    failed += 1
                    say(event.error)
                elif isinstance(event, Traced) and self._strip:
                    self._show(event.picture)
                self._lines = []
        return failed

    def _show(self, picture: Picture) -> None:
        from sira_cli.cli.terminal.strip import print_candidates, print_words

        lines = self._lines
        print(f"{picture.shown}:")
        print_words(lines[-1]["text"], lines[-1]["words"], legend=self._legend)
        self._legend = False
        if "verify" in lines[-1]:
            from sira_cli.models.texts import Answer

            end = lines[-1]
            print(verdict(Answer(objects=end["objects"], verify=end["verify"])))
        if verbosity() >= 1:
            print_candidates([line for line in lines if line["type"] == "token"])
