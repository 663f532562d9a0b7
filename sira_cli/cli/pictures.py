"""What `caption` and `ask` share: one prompt, many pictures; texts or records to stdout or into files."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sira_cli.cli.console import note, say, set_verbosity
from sira_cli.cli.options import (
    DecodingOptions,
    ModelOptions,
    OutputOptions,
    SelectionOptions,
    choose_preset,
    load_model,
)
from sira_cli.cli.progress import Progress, in_words
from sira_cli.errors import PictureError, SettingsError, SiraError

if TYPE_CHECKING:
    from sira_cli.batch import Item
    from sira_cli.cli.targets import Targets
    from sira_cli.lvlm import Lvlm
    from sira_cli.sources import Source


def run_pictures(
    task: str,
    paths: Sequence[str],
    text: str | None,
    model: ModelOptions,
    decoding: DecodingOptions,
    selection: SelectionOptions,
    output: OutputOptions,
) -> None:
    """Decode every picture. One bad picture is reported and the others go on.

    What can be known before the model is loaded is checked before: the pictures, the files to write,
    whether those hold what this run would write.

    Args:
        task: `caption` or `ask`.
        paths: pictures, folders and globs; `-` is stdin.
        text: the prompt (caption; None: the preset's) or the question (ask).

    Raises:
        typer.Exit: with 3 if some pictures failed, 130 if interrupted.
        SiraError: the run could not start, or not go on.
    """
    set_verbosity(output.quiet, output.verbose)
    sources = _sources(paths, selection)
    preset = choose_preset(model, decoding, prompt=text if task == "caption" else None)
    prompt = preset.prompts.caption if task == "caption" else preset.prompts.ask.replace("{question}", text or "")

    from sira_cli.cli.targets import Targets, settings_of
    from sira_cli.presets import BUNDLED

    settings = settings_of(task, prompt, preset, decoding.method, model.quantization)
    targets = Targets(sources, output)
    try:
        targets.check(settings)
        lvlm = load_model(preset, model, decoding.method)
        if preset.model == BUNDLED:
            note("the bundled model knows drawn scenes only; photographs need another preset")
        failed = _Run(task, prompt, lvlm, targets, output, settings).do(sources)
    finally:
        targets.close()
    if failed:
        raise typer.Exit(3)


def _sources(paths: Sequence[str], selection: SelectionOptions) -> list[Source]:
    """The pictures. That there is nothing to do is known before a model is loaded."""
    from sira_cli.images import one_line
    from sira_cli.sources import STDIN, Shard, find_sources, read_list

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
    if sources and not any(source.path == STDIN or os.path.lexists(source.path) for source in sources):
        others = f", nor any of the other {len(sources) - 1}" * (len(sources) > 1)
        raise PictureError(f"{one_line(sources[0].path)}: no such file{others}")
    return sources


class _Run:
    """The pictures one after the other, and what is said about them."""

    def __init__(
        self, task: str, prompt: str, lvlm: Lvlm, targets: Targets, output: OutputOptions, settings: dict[str, Any]
    ) -> None:
        from sira_cli.batch import BatchRun

        self._lvlm, self._targets, self._output, self._settings = lvlm, targets, output, settings
        self._done = dict.fromkeys(("ok", "error", "ok before", "error before"), 0)
        self._tokens = 0
        self._began = time.time()
        # A text that goes to a terminal is shown while it is made.
        streams = targets.to_stdout and sys.stdout.isatty() and not output.json and not output.no_stream
        self._shown = False  # a part of the current text
        self._named = False  # whether texts need their picture's name
        self._batches = BatchRun(
            lvlm,
            task,
            prompt,
            batch_size=output.batch_size,
            skip=targets.skip,
            on_text=self._show if streams else None,
        )

    def do(self, sources: list[Source]) -> int:
        """The whole run; how many pictures failed, those of earlier runs included."""
        total = len(sources)
        self._named = total > 1
        self._targets.begin(self._batches.blank())
        try:
            self._report("running", total)
            silent = nullcontext(Progress("", total, silent=True))
            with silent if self._targets.to_stdout else Progress.shown("pictures", total) as progress:
                stopped = self._all(sources, progress)
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

    def _all(self, sources: list[Source], progress: Progress) -> bool:
        """Every picture; whether --fail-fast stopped before the end."""
        kept = [source for source in sources if self._targets.keeps(source)]
        if kept:
            self._done["ok before"] += len(kept)
            progress.advance(len(kept), worked=False)
        skipped = {source.path for source in kept}
        todo = [source for source in sources if source.path not in skipped]
        items = self._batches.results((source.path, self._targets.name(source)) for source in todo)
        try:
            for source, item in zip(todo, items, strict=True):
                failed = self._take(source, item, progress)
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
            print(result.text, flush=True)
        if self._output.json:
            print(result.to_json(), flush=True)
        if result.status == "error":
            say(result.error)
        progress.advance(error=result.status == "error")
        return result.status == "error"

    def _show(self, item: Item, piece: str) -> None:
        if not self._shown:
            self._print_name(item)
        print(piece if self._shown else piece.lstrip(), end="", flush=True)
        self._shown = True

    def _print_name(self, item: Item) -> None:
        from sira_cli.images import one_line

        if self._named:
            print(f"{one_line(item.path)}: ", end="")

    def _report(self, state: str, total: int) -> None:
        from sira_cli.cli.run_report import run_report

        pictures = {"all": total, **self._done}
        report = run_report(
            state, self._settings, self._lvlm, self._batches.batch_size, pictures, self._tokens, self._began
        )
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
