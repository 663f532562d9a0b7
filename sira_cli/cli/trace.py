"""`sira trace`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sira_cli.cli.console import say, set_verbosity
from sira_cli.cli.options import (
    DecodingOptions,
    Images,
    ModelOptions,
    Question,
    SelectionOptions,
    Verbose,
    check_file,
    choose_method,
    choose_preset,
    load_model,
    note_idle,
    with_options,
)
from sira_cli.cli.pictures import chosen
from sira_cli.cli.trace_target import Line, TraceTarget
from sira_cli.errors import PictureError, SettingsError, SiraError
from sira_cli.methods import check_two_streams

if TYPE_CHECKING:
    from sira_cli.analysis.trace.record import Asked, TraceOptions
    from sira_cli.models.lvlm import Lvlm
    from sira_cli.pictures.sources import Source


def _print_schema(wanted: bool) -> None:
    if wanted:
        from sira_cli.analysis.trace import SCHEMA

        print(SCHEMA.read_text(encoding="utf-8"), end="")
        raise typer.Exit


@with_options(model=ModelOptions, decoding=DecodingOptions, selection=SelectionOptions)
def trace(
    *,
    paths: Images = None,
    question: Question = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="What to ask for; default the preset's.")] = None,
    force: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Score this text instead of generating one.")
    ] = None,
    force_from: Annotated[
        Path | None,
        typer.Option(
            "--force-from", metavar="FILE", help="Score the texts of a .jsonl with file_name and text (or caption)."
        ),
    ] = None,
    model: ModelOptions,
    decoding: DecodingOptions,
    selection: SelectionOptions,
    top_k: Annotated[int, typer.Option("--top-k", metavar="N", min=1, help="Candidates of each view.")] = 10,
    track: Annotated[
        str, typer.Option(metavar="A,B,...", help="Words to look up at every step.", show_default=False)
    ] = "",
    full_logits: Annotated[
        Path | None,
        typer.Option("--full-logits", metavar="FILE", help="All logits of one picture, as .safetensors."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="JSON lines; default stdout.")
    ] = None,
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", metavar="DIR", help="A trace for each picture, in a tree.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
    batch_size: Annotated[
        int, typer.Option("-b", "--batch-size", metavar="N", min=1, help="Texts scored together.")
    ] = 1,
    schema: Annotated[
        bool, typer.Option("--schema", callback=_print_schema, is_eager=True, help="Print the lines' JSON Schema.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Errors only.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Write the logits of both streams and their contrast at every token.

    JSON lines: a run line, a line for each token, an end line with the words and their scores. On a
    terminal a strip instead, with -v and the candidates of each token.
    """
    set_verbosity(quiet, verbose)
    for one, other, names in (
        (question, prompt, "--question or --prompt"),
        (force, force_from, "--force or --force-from"),
        (output, output_dir, "--output or --output-dir"),
    ):
        if one is not None and other is not None:
            raise SettingsError(f"give {names}, not both")
    if force is not None and not force.strip():
        raise SettingsError("--force: the text is empty")
    work = _forced_from(force_from) if force_from is not None else None
    if work is None:
        work = [_Work(source, force) for source in chosen(paths or [], selection)]
    elif paths:
        raise SettingsError("--force-from names the pictures itself: leave out the paths")
    elif question is not None:
        raise SettingsError("--force-from has its own prompts, or --prompt: leave out --question")
    if full_logits is not None and len(work) != 1:
        raise SettingsError(f"--full-logits is for one picture, here are {len(work)}")
    method = choose_method(decoding)
    check_two_streams(method.name, "sira trace")
    preset = choose_preset(model, decoding, prompt=prompt)
    note_idle(decoding, preset)
    if preset.generation.num_beams > 1:
        raise SettingsError("a trace follows one text: leave out --num-beams")
    sink = TraceTarget([one.source for one in work], output, output_dir, overwrite)
    check_file("--full-logits", full_logits, overwrite)
    lvlm = load_model(preset, model, method)
    from sira_cli.analysis.trace.record import TraceOptions

    options = TraceOptions(top_k, tuple(word.strip() for word in track.split(",") if word.strip()), full_logits)
    ask = None if question is None else preset.prompts.asking(question)
    failed = _Run(lvlm, options, sink, batch_size, ask, prompt).do(work)
    if failed and len(work) > 1:
        say(f"{failed} of {len(work)} pictures failed")
    if failed:
        raise typer.Exit(3)


@dataclass(frozen=True)
class _Work:
    """A picture, and the text to score, if there is one."""

    source: Source
    text: str | None = None
    prompt: str = ""


class _Run:
    """The pictures one after the other, texts to be scored in batches."""

    def __init__(
        self, lvlm: Lvlm, options: TraceOptions, sink: TraceTarget, batch_size: int, ask: str | None, prompt: str | None
    ) -> None:
        self._lvlm, self._options, self._sink = lvlm, options, sink
        self._batch_size, self._ask, self._prompt = batch_size, ask, prompt

    def do(self, work: list[_Work]) -> int:
        """All of it; how many pictures failed."""
        failed = 0
        batch: list[tuple[Source, Asked]] = []
        for one in work:
            if self._sink.has(one.source):
                continue
            try:
                asked = self._asked(one)
            except PictureError as error:
                failed += self._fail(str(error))
                continue
            if asked.text is None:
                failed += self._generated(one.source, asked)
                continue
            batch.append((one.source, asked))
            if len(batch) == self._batch_size:
                failed += self._forced(batch)
                batch = []
        return failed + (self._forced(batch) if batch else 0)

    def _asked(self, one: _Work) -> Asked:
        from sira_cli.analysis.trace.record import Asked
        from sira_cli.pictures.opening import open_picture
        from sira_cli.pictures.sources import STDIN

        picture = open_picture(sys.stdin.buffer if one.source.path == STDIN else one.source.path)
        prompt = self._ask or self._prompt or one.prompt or self._lvlm.preset.prompts.caption
        task = "caption" if self._ask is None else "ask"
        return Asked(task, picture, self._sink.name(one.source), prompt, one.text)

    def _generated(self, source: Source, asked: Asked) -> int:
        from sira_cli.analysis.trace.record import trace_generated

        try:
            with self._sink.opened(source) as write:
                trace_generated(self._lvlm, asked, self._options, write)
        except SiraError:
            raise
        except Exception as error:  # outside of the block, so that no half trace takes its place in a tree
            return self._failed(asked, error)
        return 0

    def _forced(self, batch: list[tuple[Source, Asked]]) -> int:
        """Scored together; if that fails, one after the other."""
        from sira_cli.analysis.trace.record import trace_forced

        lines: list[list[Line]] = [[] for _ in batch]
        try:
            trace_forced(self._lvlm, [asked for _, asked in batch], self._options, [each.append for each in lines])
        except SiraError:
            raise
        except Exception as error:
            if len(batch) == 1:
                return self._failed(batch[0][1], error)
            return sum(self._forced([one]) for one in batch)
        for (source, _), trace in zip(batch, lines, strict=True):
            with self._sink.opened(source) as write:
                for line in trace:
                    write(line)
        return 0

    def _failed(self, asked: Asked, error: Exception) -> int:
        from sira_cli.models.lvlm import refused

        return self._fail(str(refused(asked.picture.name, error)))

    def _fail(self, message: str) -> int:
        say(message)
        self._sink.error(message)
        return 1


def _forced_from(path: Path) -> list[_Work]:
    """Texts and pictures of a file of records; failed records are left out.

    Raises:
        SettingsError: the file cannot be read, or a line is no such record.
    """
    from sira_cli.pictures.sources import Source

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--force-from {path}: cannot be read: {error}") from error
    work = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            name, text = record["file_name"], record["text"] if "text" in record else record["caption"]
            if record.get("status", "ok") == "ok":
                source = Source(str(path.parent / name), name)
                work.append(_Work(source, str(text), str(record.get("prompt", ""))))
        except (ValueError, KeyError, TypeError):
            raise SettingsError(
                f"--force-from {path}: line {number}: expected a JSON object with file_name and text (or caption)"
            ) from None
    if not work:
        raise SettingsError(f"--force-from {path}: holds no texts")
    return work
