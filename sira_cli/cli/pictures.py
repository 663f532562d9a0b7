"""What `caption` and `ask` share: options in, texts or records out; the run itself is `sira_cli.runs`."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sira_cli.cli.choosing import choose, chosen_pictures, load_model, loading, note_bundled, note_idle
from sira_cli.cli.console import note, say, set_verbosity, verbosity, waiting
from sira_cli.cli.options import (
    DecodingOptions,
    Engine,
    EngineOptions,
    ModelOptions,
    OutputOptions,
    SelectionOptions,
    TextOptions,
)
from sira_cli.cli.progress import Progress, in_words
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.methods.base import Method
    from sira_cli.models.presets import Preset
    from sira_cli.models.records import Result
    from sira_cli.pictures.picture import Picture
    from sira_cli.runs.events import Failed, Finished
    from sira_cli.runs.run import Engine as RunEngine
    from sira_cli.runs.run import PictureRun
    from sira_cli.runs.targets import Targets


def run_pictures(
    task: str,
    paths: Sequence[str],
    said: str | None,
    model: ModelOptions,
    decoding: DecodingOptions,
    text: TextOptions,
    selection: SelectionOptions,
    engine: EngineOptions,
    output: OutputOptions,
    *,
    words: bool = False,
    choices: tuple[str, ...] = (),
) -> None:
    """Decode every picture. One bad picture is reported and the others go on.

    What can be known before the model is loaded is checked before: the pictures, the files to write,
    whether those hold what this run would write.

    Args:
        task: `caption` or `ask`.
        paths: pictures, folders and globs; `-` is stdin.
        said: the prompt (caption; None: the preset's) or the question (ask).
        words: score the words of each text.
        choices: pick one of these answers.

    Raises:
        typer.Exit: with 3 if some pictures failed, 130 if interrupted.
        SiraError: the run could not start, or not go on.
    """
    set_verbosity(output.quiet, output.verbose)
    pictures = chosen_pictures(paths, selection)
    preset, method = choose(model, decoding, prompt=said if task == "caption" else None, **asdict(text))
    note_idle(decoding, preset)
    prompt = preset.prompts.caption if task == "caption" else preset.prompts.asking(said or "")
    from sira_cli.runs.nothing_left import nothing_left
    from sira_cli.runs.run import PictureRun, check_request
    from sira_cli.runs.targets import Targets, settings_of

    check_request(method, preset.generation.num_beams, words=words, choices=choices, compiled=engine.compile)
    asked = {"words": words, "choices": choices}
    settings = settings_of(task, prompt, preset, method, model.quantization)
    settings |= {"words": words, "choices": list(choices)}
    with Targets(
        pictures,
        task=task,
        output=output.output,
        sidecar=output.sidecar,
        caption_extension=output.caption_extension,
        output_dir=output.output_dir,
        overwrite=output.overwrite,
        retry_errors=output.retry_errors,
    ) as targets:
        if engine.engine == Engine.RAY and (not targets.any or "-" in paths):
            raise SettingsError(
                "--engine ray reads files and writes files: give paths, and -o FILE or --output-dir DIR"
            )
        targets.check(settings)
        terminal = _Terminal(targets, output, len(pictures))
        if engine.engine == Engine.LOCAL and engine.workers is not None:
            raise SettingsError("--workers is for --engine ray")
        decoder = nothing_left(
            pictures,
            targets,
            preset,
            method,
            task=task,
            prompt=prompt,
            quantization=model.quantization,
            trust_remote_code=model.trust_remote_code,
        ) or _engine(task, prompt, preset, model, method, engine, targets, terminal.on_text, asked)
        run = PictureRun(pictures, decoder, targets, settings, fail_fast=output.fail_fast)
        terminal.listen(run)
    if run.counts.failed:
        raise typer.Exit(3)


def _engine(
    task: str,
    prompt: str,
    preset: Preset,
    model: ModelOptions,
    method: Method,
    engine: EngineOptions,
    targets: Targets,
    on_text: Callable[[Picture, str], None] | None,
    asked: dict[str, Any],
) -> RunEngine:
    """Return who decodes the pictures. On this machine the model is loaded now, on others by the workers."""
    if engine.engine == Engine.LOCAL:
        lvlm = load_model(preset, model, method, engine.compile)
        from sira_cli.runs.batch import BatchRun

        return BatchRun(lvlm, task, prompt, batch_size=engine.batch_size, done=targets.done, on_text=on_text, **asked)
    with waiting("starting Ray"):
        from sira_cli.runs.ray_run import RayRun, Work

        work = Work(
            preset, loading(model, method, engine.compile), task, prompt, engine.batch_size, str(Path.cwd()), **asked
        )
        run = RayRun(work, workers=engine.workers, done=targets.done, quiet=verbosity() < 1)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ray has replaced ours
    note_bundled(preset)
    return run


class _Terminal:
    """Shows what happens in a run: texts or records on stdout, progress and errors on stderr."""

    def __init__(self, targets: Targets, output: OutputOptions, total: int) -> None:
        self._targets, self._output = targets, output
        self._named = total > 1  # whether texts need their picture's name
        self._shown = False  # whether a part of the current text is on the terminal
        self._legend_shown = False

    @property
    def on_text(self) -> Callable[[Picture, str], None] | None:
        """Shows a text while it is made, if it goes to a terminal."""
        shown = not self._targets.any and sys.stdout.isatty() and not self._output.json
        return self._show if shown and not self._output.no_stream else None

    def listen(self, run: PictureRun) -> None:
        """Run to the end.

        Raises:
            typer.Exit: with 130 if interrupted.
        """
        total = run.counts.total
        silent = nullcontext(Progress("", total, silent=True))
        try:
            with (
                closing(run.events()) as events,
                Progress.shown("pictures", total) if self._targets.any else silent as progress,
            ):
                for event in events:
                    self._take(event, progress)
        except KeyboardInterrupt:
            if not self._targets.any:
                raise
            say("interrupted; what is finished is kept: run the same command again to go on")
            raise typer.Exit(130) from None
        self._sum_up(run, progress.rate)

    def _take(self, event: object, progress: Progress) -> None:
        from sira_cli.runs.events import Failed, Finished, Halved, Skipped

        if isinstance(event, Halved):
            note(f"out of memory with {event.before} pictures at once, now {event.batch_size}")
        elif isinstance(event, Skipped):
            if self._output.json:
                print(json.dumps(self._targets.record_before(event.picture, event.name), ensure_ascii=False))
            progress.advance(error=event.failed, worked=False)
        elif isinstance(event, Finished | Failed):
            self._print(event)
            progress.advance(error=isinstance(event, Failed))

    def _print(self, event: Finished | Failed) -> None:
        record = event.record
        failed = record.status == "error"
        if self._shown:
            print()
            self._shown = False
        elif not self._targets.any and not self._output.json and not failed:
            self._print_name(event.picture)
            self._print_text(record)
        if self._output.json:
            print(record.to_json(), flush=True)
        if failed:
            say(record.error)

    def _print_text(self, result: Result) -> None:
        if result.choices:
            chosen = next(choice for choice in result.choices if choice["choice"] == result.text)
            print(f"{result.text} ({chosen['probability']['contrast']:.1%})", flush=True)
        elif result.words and sys.stdout.isatty():
            from sira_cli.cli.strip import print_words

            print_words(result.text, result.words, legend=not self._legend_shown)
            self._legend_shown = True
        else:
            print(result.text, flush=True)

    def _show(self, picture: Picture, piece: str) -> None:
        if not self._shown:
            self._print_name(picture)
        print(piece if self._shown else piece.lstrip(), end="", flush=True)
        self._shown = True

    def _print_name(self, picture: Picture) -> None:
        if self._named:
            print(f"{picture.shown}: ", end="")

    def _sum_up(self, run: PictureRun, rate: float) -> None:
        counts = run.counts
        if not self._targets.any:
            if counts.error and counts.total > 1:
                say(f"{counts.error} of {counts.total} pictures failed")
            return
        parts = []
        if counts.worked or not counts.total:
            speed = f" in {in_words(run.seconds)} ({rate:.2f}/s)"
            parts.append(f"{counts.ok} of {counts.total} pictures done{speed}")
        if counts.ok_before:
            parts.append(f"{counts.ok_before} of {counts.total} pictures were done before")
        if counts.failed:
            again = " (--retry-errors tries them again)" if self._targets.output is not None else ""
            parts.append(f"{counts.failed} failed{again}")
        note(", ".join(parts) + (f": {self._targets.output}" if self._targets.output is not None else ""))
