"""`sira trace`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sira_cli.cli.console import note, say, set_verbosity, verbosity
from sira_cli.cli.options import (
    DecodingOptions,
    ModelOptions,
    SelectionOptions,
    Verbose,
    choose_method,
    choose_preset,
    load_model,
    with_options,
)
from sira_cli.cli.pictures import chosen
from sira_cli.errors import PictureError, SettingsError, SiraError
from sira_cli.methods import check_two_streams

if TYPE_CHECKING:
    from sira_cli.lvlm import Lvlm
    from sira_cli.sidecars import Sidecars
    from sira_cli.sources import Source
    from sira_cli.trace.record import Asked, TraceOptions

Line = dict[str, Any]


def _print_schema(wanted: bool) -> None:
    if wanted:
        from sira_cli.trace import SCHEMA

        print(SCHEMA.read_text(encoding="utf-8"), end="")
        raise typer.Exit


@with_options(model=ModelOptions, decoding=DecodingOptions, selection=SelectionOptions)
def trace(
    *,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE", help="Pictures, folders, globs; - reads a picture from stdin.", show_default=False
        ),
    ] = None,
    question: Annotated[str | None, typer.Option("-q", "--question", help="What to ask about each picture.")] = None,
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
    if preset.generation.num_beams > 1:
        raise SettingsError("a trace follows one text: leave out --num-beams")
    sink = _Sink([one.source for one in work], output, output_dir, overwrite)
    _check_file("--full-logits", full_logits, overwrite)
    lvlm = load_model(preset, model, method)
    from sira_cli.presets import BUNDLED
    from sira_cli.trace.record import TraceOptions

    if preset.model == BUNDLED:
        note("the bundled model knows drawn scenes only; photographs need another preset")
    options = TraceOptions(top_k, tuple(word.strip() for word in track.split(",") if word.strip()), full_logits)
    ask = None if question is None else preset.prompts.ask.replace("{question}", question)
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
        self, lvlm: Lvlm, options: TraceOptions, sink: _Sink, batch_size: int, ask: str | None, prompt: str | None
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
        from sira_cli.images import open_picture
        from sira_cli.sources import STDIN
        from sira_cli.trace.record import Asked

        picture = open_picture(sys.stdin.buffer if one.source.path == STDIN else one.source.path)
        prompt = self._ask or self._prompt or one.prompt or self._lvlm.preset.prompts.caption
        task = "caption" if self._ask is None else "ask"
        return Asked(task, picture, self._sink.name(one.source), prompt, one.text)

    def _generated(self, source: Source, asked: Asked) -> int:
        from sira_cli.trace.record import trace_generated

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
        from sira_cli.trace.record import trace_forced

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
        from sira_cli.lvlm import refused

        return self._fail(str(refused(asked.picture.name, error)))

    def _fail(self, message: str) -> int:
        say(message)
        self._sink.error(message)
        return 1


class _Sink:
    """Where the lines go: stdout, a file for all, a file for each picture, or a strip on the terminal."""

    def __init__(self, sources: list[Source], output: Path | None, output_dir: Path | None, overwrite: bool) -> None:
        _check_file("--output", output, overwrite)
        self._output, self._overwrite = output, overwrite
        self._legend = True
        self._sidecars: Sidecars | None = None
        if output_dir is not None:
            from sira_cli.sidecars import Sidecars

            self._sidecars = Sidecars(sources, extension=".trace.jsonl", output_dir=output_dir, overwrite=overwrite)
        if output is not None:
            output.unlink(missing_ok=True)
        self._strip = output is None and output_dir is None and sys.stdout.isatty()

    def name(self, source: Source) -> str:
        """A picture's name in its trace: relative to the file."""
        import os

        from sira_cli.remote import is_uri, public
        from sira_cli.sources import STDIN

        file = self._output if self._sidecars is None else self._sidecars.place(source)
        if is_uri(source.path):
            return public(source.path)
        if file is None or source.path == STDIN:
            return source.path
        return Path(os.path.relpath(Path(source.path).absolute(), file.parent.resolve())).as_posix()

    def has(self, source: Source) -> bool:
        """Whether an earlier run has written this trace to its end."""
        return self._sidecars is not None and self._sidecars.keeps(source)

    @contextmanager
    def opened(self, source: Source | None) -> Iterator[Callable[[Line], None]]:
        """What writes the lines of one trace; of no picture: to stdout, or the file for all.

        Raises:
            SiraError: they cannot be written.
        """
        from sira_cli.files import cannot_write, replacing

        if self._strip and source is not None:
            lines: list[Line] = []
            yield lines.append
            self._show(source, lines)
            return
        if self._output is None and self._sidecars is None:
            yield lambda line: print(_json(line), flush=True)
            return
        path = self._output or self._place(source)
        try:
            # A file for all grows line by line; one of many appears when it is complete.
            with self._output.open("ab") if self._output is not None else replacing(path) as file:

                def write(line: Line) -> None:
                    file.write(_json(line).encode() + b"\n")
                    file.flush()

                yield write
        except OSError as error:
            raise cannot_write(path, error) from error

    def error(self, message: str) -> None:
        """A picture without a trace; in a tree it has no file, and is tried again."""
        if self._sidecars is None and not self._strip:
            end = {"type": "end", "status": "error", "error": message, "text": "", "finish_reason": "error"}
            counts = {"output_tokens": 0, "duration_ms": 0.0, "words": [], "tracked": []}
            with self.opened(None) as write:
                write(end | counts)

    def _place(self, source: Source | None) -> Path:
        assert self._sidecars is not None
        assert source is not None
        place = self._sidecars.place(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def _show(self, source: Source, lines: list[Line]) -> None:
        from sira_cli.cli.strip import print_candidates, print_words
        from sira_cli.images import one_line

        print(f"{one_line(source.path)}:")
        print_words(lines[-1]["text"], lines[-1]["words"], legend=self._legend)
        self._legend = False
        if verbosity() >= 1:
            print_candidates([line for line in lines if line["type"] == "token"])


def _check_file(option: str, file: Path | None, overwrite: bool) -> None:
    """Before the model is loaded."""
    if file is None:
        return
    if file.is_dir() or not file.parent.is_dir():
        raise SettingsError(f"{option} {file}: expected a file in a folder that exists")
    if file.exists() and not overwrite:
        raise SettingsError(f"{option} {file}: exists: give another, or --overwrite")


def _forced_from(path: Path) -> list[_Work]:
    """Texts and pictures of a file of records; failed records are left out.

    Raises:
        SettingsError: the file cannot be read, or a line is no such record.
    """
    from sira_cli.sources import Source

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


def _json(line: Line) -> str:
    return json.dumps(line, ensure_ascii=False, allow_nan=False)
