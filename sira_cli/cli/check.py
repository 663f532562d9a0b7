"""`sira check`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sira_cli.cli.loading import engine_of
from sira_cli.cli.options import groups
from sira_cli.cli.options.choosing import choose_preset
from sira_cli.cli.options.groups import EngineOptions, ModelOptions, argument, option
from sira_cli.cli.terminal.console import note, run_records, say
from sira_cli.cli.terminal.output import MORE_WORDS, note_threshold
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.models.preset import Preset
    from sira_cli.pictures.captions import Captions
    from sira_cli.run.endpoint import Endpoint

WORST = 20  # rows of the table


@dataclass(frozen=True)
class CaptionOptions(groups.Group, title="Captions"):
    """Locations of captions and their pictures."""

    caption_extension: str = option(".txt", "File extension of captions next to pictures.", metavar=".EXT")
    text_column: str | None = option(None, "Column with the captions (default: text, caption, ...).", metavar="NAME")
    image_column: str | None = option(
        None, "Column that names the pictures (default: file_name, image, ...).", metavar="NAME"
    )
    images: Path | None = option(None, "Folder that these names are relative to (default: the file's).", metavar="DIR")


@dataclass(frozen=True)
class RecordOptions(groups.Group, title="Output"):
    """Target of records, and repetition of work."""

    output: groups.RecordsFile = None
    overwrite: bool = option(False, "Replace existing records.", "--overwrite")
    retry_errors: groups.RetryErrors = False
    fail_fast: groups.FailFast = False
    json: bool = option(False, "Print one JSON record per caption.", "--json")


_ENDPOINT = (
    "Ask a server with OpenAI's protocol, such as http://localhost:11434/v1; --model is the name there, if it has "
    "several. Key: $OPENAI_API_KEY."
)


@groups.with_options(
    """
sira check captions.csv -o checks.jsonl
sira check photos/ --min-support 0.3
sira check photos/ --endpoint http://localhost:11434/v1 --model qwen3-vl:8b
""",
    "verify",
    loudness="Output",
)
def check(
    *,
    paths: list[str] | None = argument("PATH", "Pictures or folders with text files, files of captions, data sets."),
    captions: CaptionOptions,
    model: ModelOptions,
    endpoint: str | None = option(None, _ENDPOINT, metavar="URL", rich_help_panel="Model"),
    look: groups.VerifyOptions,
    selection: groups.PathOptions,
    engine: EngineOptions,
    output: RecordOptions,
) -> None:
    """Ask the model about each object that existing captions name: is it in the picture?

    Captions are text files next to pictures, a .jsonl, .json, .csv or .tsv file, records of sira, or in a .tar,
    .parquet or .arrow file. They are never changed. The worst are shown in a table; -o keeps a record of each, and
    resumes a stopped run.
    """
    if engine.on_ray and output.output is None:
        raise SettingsError("--engine ray writes files: give -o FILE")
    if not paths and selection.files_from is None:
        raise SettingsError("Missing argument 'PATH': a folder of pictures with captions, or a file of captions")
    from sira_cli.look.claims import Verify
    from sira_cli.look.finders import find_words
    from sira_cli.pictures.captions import find_captions
    from sira_cli.pictures.find import Pictures
    from sira_cli.run.check import Check
    from sira_cli.run.output import Files, Output
    from sira_cli.run.run import run

    named = selection.selected(paths)
    found = find_captions(
        named.all_paths(),
        recursive=named.recursive,
        exclude=named.exclude or (),
        shard=named.shard,
        limit=named.limit,
        **asdict(captions),
    )
    if output.output is not None:
        _check_output(output.output, found)
    server, preset = _server(endpoint, model, engine)
    verify = Verify(look.min_support, find_words(look.objects))
    note_threshold(verify, preset)
    pictures = Pictures(found.pictures, found.unread)
    task = Check.under(preset, verify).about(pictures)
    files = Files(output.output, overwrite=output.overwrite, retry_errors=output.retry_errors)
    with Output(task, pictures, files) as kept:
        _note_left_out(found)
        summary = Summary()
        counts = kept.counts
        events = run(task, pictures, server or engine_of(model, engine, pictures), kept, fail_fast=output.fail_fast)
        for record in run_records(events, kept, output.overwrite):
            summary.add(record)
            if output.json:
                print(json.dumps(record, ensure_ascii=False), flush=True)
        summary.show(float(task.how["min_support"]), as_json=output.json)
        if counts.failed:
            again = " (--retry-errors tries them again)" if kept.any else ""
            say(f"{counts.failed} of {counts.total} failed{again}")
        if kept.path is not None:
            before = f", {counts.ok_before} of them before" if counts.ok_before else ""
            note(f"{counts.ok + counts.ok_before} checked{before}: {kept.path}")
    if counts.failed:
        raise typer.Exit(3)


def _check_output(output: Path, found: Captions) -> None:
    """Check that no file of captions would be replaced; a table is made from records next to it."""
    written = output.resolve(), output.resolve().with_suffix(".jsonl")
    for file in found.files:
        if file.resolve() in written:
            raise SettingsError(f"--output {output}: would replace the captions in {file}: give another name")


def _note_left_out(found: Captions) -> None:
    """Note the files and records without a caption to check."""
    from sira_cli.pictures.find import left_out_message

    if found.unread:
        note(left_out_message(found.unread))
    if found.without:
        note(f"left out: {_number(found.without, 'picture')} without a caption")
    if found.failed:
        note(f"left out: {_number(found.failed, 'record')} of pictures that failed")


def _server(address: str | None, model: ModelOptions, engine: EngineOptions) -> tuple[Endpoint | None, Preset]:
    """Return the server, if one is given, and the preset, with the model's name there."""
    if address is None:
        return None, choose_preset(model)
    for name in groups.given(model, engine):
        if name not in ("model", "preset", "set"):
            raise SettingsError(f"--{name} is for a model that is loaded here: leave it out with --endpoint")
    from sira_cli.run.endpoint import Endpoint

    server = Endpoint(address, model.model)
    preset = choose_preset(replace(model, model=server.model if model.preset is None else None))
    server.system = preset.prompts.system
    return server, preset.model_copy(update={"model": server.model})


@dataclass
class Summary:
    """Counts over records of checks; `objects` and `below` count each once per caption."""

    captions: int = 0
    objects: int = 0
    below: int = 0  # the threshold
    unrecognised: int = 0  # captions that name no object of the word list
    without_probabilities: int = 0  # captions checked by a server that gives none
    doubted: list[tuple[float, str, str]] = field(default_factory=list)  # least support, picture, objects below

    def add(self, record: Mapping[str, Any]) -> None:
        """Count a record of a check."""
        from sira_cli.look.claims import unsupported

        if record["status"] != "ok":
            return
        below = sorted((float(one["support"]), str(one["thing"])) for one in unsupported(record))
        self.captions += 1
        self.objects += len(record["objects"])
        self.below += len(below)
        self.unrecognised += not record["objects"]
        self.without_probabilities += record["verify"].get("source") == "answer"
        if below:
            things = ", ".join(f"{thing} {support:.2f}" for support, thing in below)
            self.doubted.append((below[0][0], record["file_name"], things))

    def show(self, threshold: float, *, as_json: bool) -> None:
        """Print a table of the captions with an object below the threshold, and the totals (as JSON: on stderr)."""
        below = f"{self.below} of them, in {_number(len(self.doubted), 'caption')}, below {threshold:g}"
        lines = [f"{_number(self.captions, 'caption')}, {_number(self.objects, 'object')}: {below}"]
        if self.unrecognised:
            lines.append(f"{_number(self.unrecognised, 'caption')} with nothing recognised ({MORE_WORDS})")
        if self.without_probabilities:
            lines.append("the server tells no probabilities: support is 1 for yes and 0 for no")
        lines = lines if self.captions else ["no caption was checked"]
        if as_json:
            note("; ".join(lines))
            return
        if self.doubted:
            from rich.text import Text

            from sira_cli.cli.terminal.output import new_list, table_console

            table = new_list("picture", "support", "not supported")
            for support, name, things in sorted(self.doubted, key=lambda doubted: doubted[0])[:WORST]:
                table.add_row(Text(name), f"{support:.2f}", Text(things))
            table_console().print(table)
            print(f"... and {len(self.doubted) - WORST} more\n" if len(self.doubted) > WORST else "")
        print("\n".join(lines))


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
