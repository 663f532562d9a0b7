"""Shared by `caption` and `ask`: from options to texts or records; the run itself is `sira_cli.run.run`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sira_cli.cli.loading import engine_of
from sira_cli.cli.options.choosing import choose_each, method_names, note_idle
from sira_cli.cli.options.groups import OutputOptions, RunOptions
from sira_cli.cli.terminal.console import Progress, in_words, note, picture_events, resumable, say, set_verbosity
from sira_cli.cli.terminal.output import unsupported, verdict
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.pictures.picture import Picture
    from sira_cli.run.events import Event, Failed, Finished, PictureEvent
    from sira_cli.run.output import Output
    from sira_cli.run.records import Result


def run_pictures(
    kind: str,
    paths: Sequence[str],
    prompt: str | None,
    options: RunOptions,
    *,
    words: bool = False,
    choices: tuple[str, ...] = (),
    questions: Path | None = None,
) -> None:
    """Decode every picture, under one method or several. One bad picture is reported and the others go on.

    `prompt` is that of a caption (None: the preset's), or the question of an ask.
    """
    model, decoding, engine, output = options.model, options.decoding, options.engine, options.output
    set_verbosity(output.quiet, output.verbose)
    selection = options.selection.selected(paths, questions)
    prompts = {"prompt": prompt} if kind == "caption" else {}
    chosen = choose_each(method_names(decoding.method), model, decoding, **prompts, **asdict(options.text))
    first, _ = next(iter(chosen.values()))
    if engine.on_ray and ("-" in paths or not output.files().any):
        raise SettingsError("--engine ray reads and writes files: give paths, and -o FILE or --output-dir DIR")
    if engine.on_ray and len(chosen) > 1:
        raise SettingsError("--engine ray takes one --method at a time")
    from sira_cli.pictures.find import left_out_message
    from sira_cli.run.output import Output
    from sira_cli.run.run import Local, run
    from sira_cli.run.task import TASKS

    asked: dict[str, Any] = {"words": words, "choices": choices, "questions": questions is not None}
    asked |= {"verify": options.verify.read(), "schema": options.schema.read(), "needs_text": True}
    asked["engine"] = "vllm" * engine.on_vllm
    tasks = {name: TASKS[kind].of(*under, prompt, **asked) for name, under in chosen.items()}
    pictures = selection.pictures(first.prompts.asking)
    several = len(tasks) > 1
    with ExitStack() as stack:
        runs = []
        for name, asking in tasks.items():
            task = asking.about(pictures)
            files = output.files(name if several else "")
            runs.append((name, task, stack.enter_context(Output(task, pictures, files))))
        note_idle(decoding, first)
        failed, answering = 0, engine_of(model, engine, pictures)
        for name, task, written in runs:
            terminal = _Terminal(written, output, len(pictures), name if several else "")
            if isinstance(answering, Local):
                answering.on_text = terminal.on_text
            terminal.listen(run(task, pictures, answering, written, fail_fast=output.fail_fast))
            failed += written.counts.failed
            if output.fail_fast and written.counts.error:
                break
        else:
            if pictures.left_out:
                note(left_out_message(pictures.left_out))
            places = [written.path for _, _, written in runs if written.path is not None]
            if several and places:
                note(f"what differs: sira compare {places[0]} {places[1]}")
            elif places and not output.json:
                note(f"look at them: sira report {places[0]}")
    if failed:
        raise typer.Exit(3)


NAMED = 3  # pictures with warnings that are named at the end of a run


class _Terminal:
    """Shows a run: texts or records on stdout, progress and errors on stderr."""

    def __init__(self, written: Output, output: OutputOptions, total: int, method: str = "") -> None:
        self._written, self._output, self._total = written, output, total
        self._named = total > 1  # whether texts need their picture's name
        self._method = method  # if there are several
        self._shown = False  # whether a part of the current text is on the terminal
        self._suspicious = 0  # pictures with warnings
        self._warned: list[str] = []  # the first of them
        self._unsupported = 0  # pictures that do not support an object in their texts
        self._changed = 0
        self._legend_shown = False

    @property
    def on_text(self) -> Callable[[Picture, str], None] | None:
        """The function that shows a text while it is decoded, if it goes to a terminal."""
        shown = not self._written.any and sys.stdout.isatty() and not self._output.json
        return self._show if shown else None

    def listen(self, events: Generator[Event, None, None]) -> None:
        """Run to the end, and show it."""
        what = f"pictures, {self._method}" if self._method else "pictures"
        silent = nullcontext(Progress("", self._total, silent=True))
        with closing(events):
            next(events)  # the model is ready
            with (
                resumable(self._written.any, self._output.overwrite),
                Progress.shown(what, self._total) if self._written.any else silent as progress,
            ):
                for event in picture_events(events, progress):
                    self._take(event)
        self._sum_up(progress.rate)

    def _take(self, event: PictureEvent) -> None:
        from sira_cli.run.events import Skipped

        if not isinstance(event, Skipped):
            self._print(event)
        elif self._output.json:
            print(json.dumps(self._written.before(event), ensure_ascii=False))

    def _print(self, event: Finished | Failed) -> None:
        record = event.record
        failed = record.status == "error"
        if self._shown:
            print()
            self._shown = False
        elif not self._written.any and not self._output.json and not failed:
            self._print_name(event.picture)
            self._print_text(record)
            if record.objects is not None:
                note(f"{event.picture.shown}: {verdict(record)}" if self._named else verdict(record))
        if self._output.json:
            print(record.to_json(), flush=True)
        if failed:
            say(record.error)
        self._suspicious += bool(record.warnings)
        if record.warnings and len(self._warned) < NAMED:
            self._warned.append(f"{event.picture.shown}: {'; '.join(record.warnings)}")
        self._unsupported += bool(unsupported(record))
        self._changed += record.draft is not None
        if record.warnings and not self._written.any and not self._output.json:
            note(f"{event.picture.shown}: {'; '.join(record.warnings)}")

    def _print_text(self, result: Result) -> None:
        if result.choices:
            chosen = next(choice for choice in result.choices if choice["choice"] == result.text)
            share = chosen["probability"]
            print(f"{result.text} ({share.get('contrast', share['full']):.1%})", flush=True)
        elif result.words and sys.stdout.isatty():
            from sira_cli.cli.terminal.strip import print_words

            print_words(result.text, result.words, legend=not self._legend_shown)
            self._legend_shown = True
        elif result.objects:
            from sira_cli.cli.terminal.strip import print_marked

            print_marked(result)
        else:
            print(result.text, flush=True)

    def _show(self, picture: Picture, piece: str) -> None:
        if not self._shown:
            self._print_name(picture)
        print(piece if self._shown else piece.lstrip(), end="", flush=True)
        self._shown = True

    def _print_name(self, picture: Picture) -> None:
        names = [picture.shown] if self._named else []
        if names or self._method:
            print(", ".join([*names, self._method] if self._method else names), end=": ")

    def _sum_up(self, rate: float) -> None:
        counts = self._written.counts
        if not self._written.any:
            if counts.error and counts.total > 1:
                say(f"{counts.error} of {counts.total} pictures failed")
            return
        parts = []
        if counts.worked or not counts.total:
            speed = f" in {in_words(self._written.seconds)} ({rate:.2f}/s)"
            parts.append(f"{counts.ok} of {counts.total} pictures done{speed}")
        if counts.ok_before:
            before = f"{counts.ok_before} of {counts.total} pictures"
            if self._written.ledger is None:  # text files do not say how they were made
                parts.append(f"{before} have a text file already (--overwrite replaces it)")
            else:
                parts.append(f"{before} were done before")
        if self._suspicious:
            parts.append(f"{self._suspicious} with warnings in their records")
            for warned in self._warned:
                note(warned)
        if self._changed:
            parts.append(f"{self._changed} changed by the second look")
        if self._unsupported:
            parts.append(f"{self._unsupported} with objects that the picture does not support")
        if counts.failed:
            again = " (--retry-errors tries them again)" if self._written.path is not None else ""
            parts.append(f"{counts.failed} failed{again}")
        parts += self._written.remarks()
        method = f"under {self._method}: " if self._method else ""
        note(method + ", ".join(parts) + (f": {self._written.path}" if self._written.path is not None else ""))
