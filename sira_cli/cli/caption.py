"""`sira caption` and `sira ask`: from options to texts or records; the run itself is `sira_cli.run.run`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sira_cli.cli.loading import engine_of
from sira_cli.cli.options.choosing import choose_each, method_names
from sira_cli.cli.options.groups import PICTURES, OutputOptions, RunOptions, argument, option, with_options
from sira_cli.cli.terminal.console import Progress, in_words, note, picture_events, resumable, say
from sira_cli.cli.terminal.output import unsupported, verdict
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.cli.options.groups import ModelOptions
    from sira_cli.pictures.picture import Picture
    from sira_cli.run.events import Event, Failed, Finished
    from sira_cli.run.output import Output
    from sira_cli.run.records import Result

NAMED = 3  # pictures with warnings that are named at the end of a run


@with_options("sira caption photos/ -r -o photos/captions.jsonl -b 8 --verify flag", loudness="Output")
def caption(
    *,
    paths: list[str] | None = argument("PATH", PICTURES),
    options: RunOptions,
    prompt: str | None = option(None, "Prompt; {NAME} stands for a column.", rich_help_panel="Text"),
    words: bool = option(False, "Score how well the picture supports each word.", "--words", rich_help_panel="Text"),
) -> None:
    """Describe pictures."""
    _run("caption", paths or [], prompt, options, words=words)


@with_options(
    """
sira ask photo.jpg "Is there a dog in the image?"
sira ask photos/ "Is there a dog?" --choices Yes,No -o answers.jsonl
sira ask photos/ --questions questions.jsonl -o answers.jsonl -b 8
""",
    "verify",
    loudness="Output",
)
def ask(
    *,
    paths: list[str] | None = argument("PATH", PICTURES),
    question: str | None = argument("QUESTION", "The question to ask about each picture."),
    questions: Path | None = option(
        None, "Questions from a .jsonl, .json, .csv, .tsv or .parquet file about pictures in PATH.", metavar="FILE"
    ),
    choices: str | None = option(None, "Print the likeliest of these answers.", metavar="A,B,..."),
    options: RunOptions,
) -> None:
    """Answer a question about pictures."""
    paths = paths or []
    if questions is not None:
        if question is not None:  # all words are paths
            paths = [*paths, question]
        question = None
    elif question is None:
        raise SettingsError("Missing argument 'QUESTION': the question to ask, or --questions FILE")
    elif os.path.exists(question):  # noqa: PTH110 (a Path would raise for a long question)
        kind = "folder" if os.path.isdir(question) else "file"  # noqa: PTH112
        raise SettingsError(f"the question comes last, but {question} is a {kind}: add the question in quotes")
    else:
        for path in paths:
            if path.rstrip().endswith("?") and not os.path.lexists(path):
                raise SettingsError(f"{path!r} is not a picture: give one question at a time, after pictures")
    answers = tuple(choice.strip() for choice in choices.split(",")) if choices is not None else ()
    _run("ask", paths, question, options, choices=answers, questions=questions)


def _run(
    kind: str,
    paths: list[str],
    prompt: str | None,
    options: RunOptions,
    *,
    questions: Path | None = None,
    words: bool = False,
    choices: tuple[str, ...] = (),
) -> None:
    """Decode every picture, under one method or several. One bad picture is reported and the others go on.

    `prompt` is that of a caption (None: the preset's), or the question of an ask.
    """
    engine = options.engine
    output = options.output
    selection = options.selection.selected(paths, questions)
    names = method_names(options.decoding.method)
    for_captions = prompt if kind == "caption" else None
    chosen = choose_each(names, options.model, options.decoding, prompt=for_captions, prefix=options.text.prefix)
    if engine.on_ray:
        _check_for_ray(paths, output, len(chosen))
    from sira_cli.pictures.find import left_out_message
    from sira_cli.run.engines import Local
    from sira_cli.run.output import Output
    from sira_cli.run.run import run
    from sira_cli.run.task import TASKS

    verify = options.verify.read()
    schema = options.text.read_schema()
    make = partial(
        TASKS[kind].of,
        prompt=prompt,
        words=words,
        choices=choices,
        verify=verify,
        schema=schema,
        own_prompts=questions is not None,
        needs_text=True,
        engine="vllm" if engine.engine == "vllm" else "",
    )
    tasks = {name: make(preset, method) for name, (preset, method) in chosen.items()}
    first, _ = next(iter(chosen.values()))
    pictures = selection.pictures(first.prompts.asking)
    with ExitStack() as stack:
        runs = []
        for name, asking in tasks.items():
            named = name if len(tasks) > 1 else ""
            task = asking.about(pictures)
            written = stack.enter_context(Output(task, pictures, output.files(named)))
            runs.append((task, written, _Terminal(written, output, len(pictures), named)))
        answering = engine_of(options.model, engine, pictures)
        for task, written, terminal in runs:
            if isinstance(answering, Local):
                answering.on_text = terminal.on_text
            terminal.listen(run(task, pictures, answering, written, fail_fast=output.fail_fast))
            if output.fail_fast and written.counts.error:
                raise typer.Exit(3)
        if pictures.left_out:
            note(left_out_message(pictures.left_out))
        unchecked = kind == "caption" and verify is None and schema is None
        _advise([written for _, written, _ in runs], output, options.model if unchecked else None)
    if any(written.counts.failed for _, written, _ in runs):
        raise typer.Exit(3)


def _check_for_ray(paths: list[str], output: OutputOptions, methods: int) -> None:
    """Check that a run can be one of Ray."""
    if "-" in paths or not output.files().any:
        raise SettingsError("--engine ray reads and writes files: give paths, and -o FILE or --output-dir DIR")
    if methods > 1:
        raise SettingsError("--engine ray takes one --method at a time")


def _advise(written: list[Output], output: OutputOptions, model: ModelOptions | None) -> None:
    """Say what can be done with files of records; with a model, that it can check them."""
    places = [each.path for each in written if each.path is not None and each.counts.ok]
    if len(places) > 1:
        note(f"what differs: sira compare {places[0]} {places[1]}")
    elif places and not output.json:
        note(f"look at them: sira report {places[0]}")
        if model is not None:
            note(f"which objects are to doubt: {_check_command(places[0], model)}")


def _check_command(records: Path, model: ModelOptions) -> str:
    """Return the command that gives captions a second look by the same model."""
    named = ""
    if model.preset is not None:
        named += f" -p {model.preset}"
    if model.model is not None:
        named += f" -m {model.model}"
    return f"sira check {records}{named} -o {records.with_name('checks.jsonl')}"


class _Terminal:
    """Shows a run: texts or records on stdout, progress and errors on stderr; `method`: if there are several."""

    def __init__(self, written: Output, output: OutputOptions, total: int, method: str = "") -> None:
        self._written = written
        self._output = output
        self._total = total
        self._method = method
        self._texts = not written.any and not output.json  # whether texts are shown
        self._begun = False  # a part of the current text is on the terminal
        self._legend_shown = False  # of the colours
        self._warned: list[str] = []  # the first pictures with warnings
        self._suspicious = self._changed = self._unsupported = 0

    @property
    def on_text(self) -> Callable[[Picture, str], None] | None:
        """The function that shows a text while it is decoded, if it goes to a terminal."""
        return self._show if self._texts and sys.stdout.isatty() else None

    def listen(self, events: Generator[Event, None, None]) -> None:
        """Run to the end, and show it."""
        from sira_cli.run.events import Skipped

        what = f"pictures, {self._method}" if self._method else "pictures"
        files = self._written.any
        with closing(events):
            next(events)  # the model is ready
            shown = Progress.on_terminal(what, self._total) if files else nullcontext(Progress(silent=True))
            with resumable(files, self._output.overwrite), shown as progress:
                for event in picture_events(events, progress):
                    if not isinstance(event, Skipped):
                        self._print(event)
                    elif self._output.json:
                        print(json.dumps(self._written.before(event), ensure_ascii=False))
        self._sum_up(progress.rate)

    def _print(self, event: Finished | Failed) -> None:
        record = event.record
        shown = event.picture.label
        if self._begun:
            print()
            self._begun = False
        elif self._texts and record.status != "error":
            self._print_name(event.picture)
            self._print_text(record)
            if record.objects is not None:
                note(f"{shown}: {verdict(record)}" if self._total > 1 else verdict(record))
        if self._output.json:
            print(record.to_json(), flush=True)
        if record.status == "error":
            say(record.error)
        if record.warnings:
            warned = f"{shown}: {'; '.join(record.warnings)}"
            self._suspicious += 1
            if len(self._warned) < NAMED:
                self._warned.append(warned)
            if self._texts:
                note(warned)
        self._unsupported += bool(unsupported(record))
        self._changed += record.draft is not None

    def _print_text(self, result: Result) -> None:
        from sira_cli.cli.terminal.strip import print_marked, print_words

        if result.choices:
            share = next(choice["probability"] for choice in result.choices if choice["choice"] == result.text)
            print(f"{result.text} ({share.get('contrast', share['full']):.1%})", flush=True)
        elif result.words and sys.stdout.isatty():
            print_words(result.text, result.words, legend=not self._legend_shown)
            self._legend_shown = True
        else:
            print_marked(result)

    def _show(self, picture: Picture, piece: str) -> None:
        if not self._begun:
            self._print_name(picture)
        print(piece if self._begun else piece.lstrip(), end="", flush=True)
        self._begun = True

    def _print_name(self, picture: Picture) -> None:
        names = [picture.label] if self._total > 1 else []
        if self._method:
            names.append(self._method)
        if names:
            print(", ".join(names), end=": ")

    def _sum_up(self, rate: float) -> None:
        written = self._written
        counts = written.counts
        if not written.any:
            if counts.error and counts.total > 1:
                say(f"{counts.error} of {counts.total} pictures failed")
            return
        for warned in self._warned:
            note(warned)
        before = "have a text file already (--overwrite replaces it)" if written.ledger is None else "were done before"
        again = " (--retry-errors tries them again)" if written.path is not None else ""
        counted = {
            f"{counts.ok_before} of {counts.total} pictures {before}": counts.ok_before,
            f"{self._suspicious} with warnings in their records": self._suspicious,
            f"{self._changed} changed by the second look": self._changed,
            f"{self._unsupported} with objects that the picture does not support": self._unsupported,
            f"{counts.failed} failed{again}": counts.failed,
        }
        parts = [part for part, count in counted.items() if count] + written.remarks()
        done = f"{counts.ok} of {counts.total} pictures done"
        if counts.ok:
            done += f" in {in_words(written.seconds)} ({rate:.2f}/s after loading)"
        if counts.worked or not counts.total:
            parts.insert(0, done)
        told = ", ".join(parts)
        if self._method:
            told = f"under {self._method}: {told}"
        note(told if written.path is None else f"{told}: {written.path}")
