"""What `caption` and `ask` share: one prompt, many pictures; texts or records to stdout or into files."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sira_cli.cli.console import note, say, set_verbosity, verbosity, waiting
from sira_cli.cli.options import (
    DecodingOptions,
    Engine,
    EngineOptions,
    ModelOptions,
    OutputOptions,
    SelectionOptions,
    choose_method,
    choose_preset,
    load_model,
    loading,
    note_bundled,
    note_idle,
)
from sira_cli.cli.progress import Progress, in_words
from sira_cli.errors import PictureError, SettingsError, SiraError
from sira_cli.methods import check_compile, check_two_streams
from sira_cli.methods.base import Method

if TYPE_CHECKING:
    from sira_cli.models.presets import Preset
    from sira_cli.models.records import Result
    from sira_cli.pictures.sources import Source
    from sira_cli.runs.batch import BatchRun, Item
    from sira_cli.runs.ray_run import RayRun
    from sira_cli.runs.targets import Targets


def run_pictures(
    task: str,
    paths: Sequence[str],
    text: str | None,
    model: ModelOptions,
    decoding: DecodingOptions,
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
        text: the prompt (caption; None: the preset's) or the question (ask).
        words: score the words of each text.
        choices: pick one of these answers.

    Raises:
        typer.Exit: with 3 if some pictures failed, 130 if interrupted.
        SiraError: the run could not start, or not go on.
    """
    set_verbosity(output.quiet, output.verbose)
    sources = chosen(paths, selection)
    method = choose_method(decoding)
    for option, wanted in (("--words", words), ("--choices", bool(choices))):
        if wanted:
            check_two_streams(method.name, option)
    preset = choose_preset(model, decoding, prompt=text if task == "caption" else None)
    note_idle(decoding, preset)
    prompt = preset.prompts.caption if task == "caption" else preset.prompts.asking(text or "")

    from sira_cli.pictures.sources import STDIN
    from sira_cli.runs.targets import Targets, settings_of

    if choices and (len(choices) < 2 or not all(choices)):
        raise SettingsError(f"--choices {','.join(choices)!r}: expected two or more answers, such as Yes,No")
    if method.one_text and preset.generation.num_beams > 1:
        raise SettingsError(f"--method {method.name} follows one text a picture: leave out --num-beams")
    if words and preset.generation.num_beams > 1:
        raise SettingsError("--words follows one text: leave out --num-beams")
    if engine.compile:
        check_compile(method.name, preset.generation.num_beams, "--words" if words else "--choices" if choices else "")
    settings = settings_of(task, prompt, preset, method, model.quantization)
    settings |= {"words": words, "choices": list(choices)}
    targets = Targets(task, sources, output)
    if engine.engine == Engine.RAY and (targets.to_stdout or STDIN in paths):
        raise SettingsError("--engine ray reads files and writes files: give paths, and -o FILE or --output-dir DIR")
    try:
        targets.check(settings)
        run = _Run(targets, output, settings)
        asked = {"words": words, "choices": choices}
        pictures = _engine(task, prompt, preset, model, method, engine, targets, run.on_text, asked)
        failed = run.do(sources, pictures)
    finally:
        targets.close()
    if failed:
        raise typer.Exit(3)


def chosen(paths: Sequence[str], selection: SelectionOptions) -> list[Source]:
    """The pictures that the command line names. That there are none is known before a model is loaded.

    Raises:
        SettingsError: nothing is named, or in a way that cannot be followed.
        PictureError: none of them exists.
    """
    from sira_cli.pictures.opening import one_line
    from sira_cli.pictures.sources import STDIN, Shard, find_sources, read_list
    from sira_cli.pictures.stores import is_uri

    listed: list[str] = []
    if selection.files_from == STDIN:
        if STDIN in paths:
            raise SettingsError("stdin cannot be both a picture (-) and a list of pictures (--files-from -)")
        listed = read_list(sys.stdin.buffer.read())
    elif selection.files_from is not None:
        try:
            listed = read_list(Path(selection.files_from).read_bytes())
        except OSError as error:
            raise SettingsError(f"--files-from {selection.files_from}: cannot be read: {error.strerror}") from error
    elif not paths:
        raise SettingsError("Missing argument 'PATH': a picture, a folder, a glob, or --files-from FILE")
    if selection.files_from is not None and not paths and not listed:
        raise SettingsError(f"--files-from {selection.files_from}: names no pictures")
    sources = find_sources(
        [*paths, *listed],
        recursive=selection.recursive,
        shard=None if selection.shard is None else Shard.parse(selection.shard),
        limit=selection.limit,
    )
    if not sources or any(
        source.path == STDIN or is_uri(source.path) or os.path.lexists(source.path) for source in sources
    ):
        return sources
    others = f", nor any of the other {len(sources) - 1}" * (len(sources) > 1)
    raise PictureError(f"{one_line(sources[0].path)}: no such file{others}")


def _engine(
    task: str,
    prompt: str,
    preset: Preset,
    model: ModelOptions,
    method: Method,
    engine: EngineOptions,
    targets: Targets,
    on_text: Callable[[Item, str], None] | None,
    asked: dict[str, Any],
) -> BatchRun | RayRun:
    """Who decodes the pictures. On this machine the model is loaded now, on others by the workers."""
    if engine.engine == Engine.LOCAL:
        if engine.workers is not None:
            raise SettingsError("--workers is for --engine ray")
        lvlm = load_model(preset, model, method, engine.compile)
        from sira_cli.runs.batch import BatchRun

        return BatchRun(lvlm, task, prompt, batch_size=engine.batch_size, done=targets.done, on_text=on_text, **asked)
    with waiting("starting Ray"):
        from sira_cli.runs.ray_run import RayRun, Work

        work = Work(
            preset, loading(model, method, engine.compile), task, prompt, engine.batch_size, str(Path.cwd()), **asked
        )
        run = RayRun(work, workers=engine.workers, done=targets.done, quiet=verbosity() < 1)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ray has put its own in place of ours
    note_bundled(preset)
    return run


class _Run:
    """The pictures one after the other, and what is said about them."""

    def __init__(self, targets: Targets, output: OutputOptions, settings: dict[str, Any]) -> None:
        self._targets, self._output, self._settings = targets, output, settings
        self._done = dict.fromkeys(("ok", "error", "ok before", "error before"), 0)
        self._tokens = 0
        self._began = time.time()
        self._begun = False
        self._shown = False  # a part of the current text
        self._legend_shown = False
        self._named = False  # whether texts need their picture's name

    @property
    def on_text(self) -> Callable[[Item, str], None] | None:
        """Shows a text while it is made, if it goes to a terminal."""
        shown = self._targets.to_stdout and sys.stdout.isatty() and not self._output.json
        return self._show if shown and not self._output.no_stream else None

    def do(self, sources: list[Source], engine: BatchRun | RayRun) -> int:
        """The whole run; how many pictures failed, those of earlier runs included."""
        total = len(sources)
        self._engine = engine
        self._named = total > 1
        if (blank := engine.blank()) is not None:
            self._begin(blank, total)
        try:
            silent = nullcontext(Progress("", total, silent=True))
            with silent if self._targets.to_stdout else Progress.shown("pictures", total) as progress:
                stopped = self._all(sources, progress)
            self._begin(None, total)
            if not stopped:
                self._targets.finish(sources)
        except KeyboardInterrupt:
            if self._targets.to_stdout:
                raise
            self._report("interrupted", total)
            say("interrupted; what is finished is kept: run the same command again to go on")
            raise typer.Exit(130) from None
        except SiraError:
            with suppress(SiraError):  # the disk may be full
                self._report("failed", total)
            raise
        self._report("stopped" if stopped else "finished", total)
        self._sum_up(total)
        return self._done["error"] + self._done["error before"]

    def _begin(self, like: Result | None, total: int) -> None:
        """Before anything is written: whether results like this one belong into the files."""
        if not self._begun:
            self._targets.begin(like)
            self._begun = True
            self._report("running", total)

    def _all(self, sources: list[Source], progress: Progress) -> bool:
        """Every picture; whether --fail-fast stopped before the end."""
        kept = [source for source in sources if self._targets.keeps(source)]
        if kept:
            self._done["ok before"] += len(kept)
            progress.advance(len(kept), worked=False)
        todo = {source.path: source for source in sources}
        for source in kept:
            del todo[source.path]
        items = self._engine.results((source.path, self._targets.name(source)) for source in todo.values())
        try:
            for item in items:
                self._begin(item.result, len(sources))
                failed = self._take(todo[item.path], item, progress)
                if failed and self._output.fail_fast:
                    return True
        finally:
            items.close()
        return False

    def _take(self, source: Source, item: Item, progress: Progress) -> bool:
        """Keep and show one picture's result; whether it failed, now and not in an earlier run."""
        result = item.result
        self._targets.write(source, item.name, result)
        if result is None:
            failed = self._targets.failed_before(item.name)
            self._done["error before" if failed else "ok before"] += 1
            progress.advance(error=failed, worked=False)
            return False
        self._done[result.status] += 1
        self._tokens += result.output_tokens
        if self._shown:
            print()
            self._shown = False
        elif self._targets.to_stdout and not self._output.json and result.status == "ok":
            self._print_name(item)
            self._print_text(result)
        if self._output.json:
            print(result.to_json(), flush=True)
        if result.status == "error":
            say(result.error)
        progress.advance(error=result.status == "error")
        return result.status == "error"

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

    def _show(self, item: Item, piece: str) -> None:
        if not self._shown:
            self._print_name(item)
        print(piece if self._shown else piece.lstrip(), end="", flush=True)
        self._shown = True

    def _print_name(self, item: Item) -> None:
        from sira_cli.pictures.opening import one_line

        if self._named:
            print(f"{one_line(item.path)}: ", end="")

    def _report(self, state: str, total: int) -> None:
        if not self._begun:
            return
        from sira_cli.runs.run_record import run_report

        pictures = {"all": total, **self._done}
        report = run_report(state, self._settings, self._engine.facts(), pictures, self._tokens, self._began)
        self._targets.write_report(report)

    def _sum_up(self, total: int) -> None:
        done, seconds = self._done, time.time() - self._began
        if self._targets.to_stdout:
            if done["error"] and total > 1:
                say(f"{done['error']} of {total} pictures failed")
            return
        parts = []
        if self._worked or not total:
            speed = f" in {in_words(seconds)} ({self._worked / seconds:.2f}/s)"
            parts.append(f"{done['ok']} of {total} pictures done{speed}")
        if done["ok before"]:
            parts.append(f"{done['ok before']} of {total} pictures were done before")
        if failed := done["error"] + done["error before"]:
            again = " (--retry-errors tries them again)" if self._targets.ledger else ""
            parts.append(f"{failed} failed{again}")
        note(", ".join(parts) + (f": {self._targets.ledger.path}" if self._targets.ledger else ""))

    @property
    def _worked(self) -> int:
        return self._done["ok"] + self._done["error"]
