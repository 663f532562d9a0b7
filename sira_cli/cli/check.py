"""`sira check`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from sira_cli.cli.checking import CheckTerminal
from sira_cli.cli.loading import engines_of
from sira_cli.cli.options.choosing import choose
from sira_cli.cli.options.common import (
    EngineOptions,
    FailFast,
    ModelOptions,
    PathOptions,
    Quiet,
    RecordsFile,
    RetryErrors,
    Verbose,
)
from sira_cli.cli.options.decoding import DecodingOptions
from sira_cli.cli.options.groups import with_options
from sira_cli.cli.options.verifying import MinSupport, Objects, note_threshold, with_objects
from sira_cli.cli.terminal.console import resumable, set_verbosity
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.data.captions.find import Captions
    from sira_cli.look.verify import Verify
    from sira_cli.models.preset import Preset
    from sira_cli.run.endpoint import Endpoint

EXAMPLES = """
sira check captions.csv -o checks.jsonl
sira check photos/ --min-support 0.3
sira check photos/ --endpoint http://localhost:11434/v1 --model qwen3-vl:8b
"""


@dataclass(frozen=True)
class CaptionOptions:
    """Locations of captions and their pictures."""

    title: ClassVar[str] = "Captions"

    caption_extension: Annotated[
        str, typer.Option(metavar=".EXT", help="File extension of captions next to pictures.")
    ] = ".txt"
    text_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column with the captions (default: text, caption, ...)."),
    ] = None
    image_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column that names the pictures (default: file_name, image, ...)."),
    ] = None
    images: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder that these names are relative to (default: the file's).")
    ] = None


@dataclass(frozen=True)
class LookOptions:
    """The second look at captions."""

    title: ClassVar[str] = "Second look"

    min_support: MinSupport = None
    objects: Objects = None

    def read(self) -> Verify:
        """Return the second look that the options ask for; `with_objects` adds its objects."""
        from sira_cli.look.verify import Verify

        return Verify(self.min_support)


@dataclass(frozen=True)
class RecordOptions:
    """Target of records, repetition of work, and amount of output."""

    title: ClassVar[str] = "Output"

    output: RecordsFile = None
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace existing records."),
    ] = False
    retry_errors: RetryErrors = False
    fail_fast: FailFast = False
    json: Annotated[bool, typer.Option("--json", help="Print one JSON record per caption.")] = False
    quiet: Quiet = False
    verbose: Verbose = 0


@with_options()
def check(
    context: typer.Context,
    *,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Pictures or folders with text files, files of captions, data sets."),
    ] = None,
    captions: CaptionOptions,
    model: ModelOptions,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            rich_help_panel="Model",
            help="Ask a server with OpenAI's protocol, such as http://localhost:11434/v1; --model is the name there, "
            "if it has several. Key: $OPENAI_API_KEY.",
        ),
    ] = None,
    look: LookOptions,
    selection: PathOptions,
    engine: EngineOptions,
    output: RecordOptions,
) -> None:
    """Ask the model about each object that existing captions name: is it in the picture?

    Captions are text files next to pictures, a .jsonl, .json, .csv or .tsv file, records of sira, or in a .tar,
    .parquet or .arrow file. They are never changed. The worst are shown in a table; -o keeps a record of each, and
    resumes a stopped run.
    """
    set_verbosity(output.quiet, output.verbose)
    if engine.on_ray and output.output is None:
        raise SettingsError("--engine ray writes files: give -o FILE")
    found = _captions(paths or [], captions, selection)
    _check_files(found, output.output)
    verify = look.read()
    if endpoint is not None:
        _check_remote(context, model, engine)
        server, preset = _server(endpoint, model)
    else:
        server, (preset, _) = None, choose(model, DecodingOptions())
    note_threshold(verify, preset)
    verify = with_objects(verify, look.objects)
    from sira_cli.pictures.left_out import Pictures
    from sira_cli.run.check_request import CheckRequest
    from sira_cli.run.run import Job, PictureRun

    with Job.opened(
        Pictures(found.pictures, found.unread),
        *CheckRequest.under(preset, verify),
        output=output.output,
        overwrite=output.overwrite,
        retry_errors=output.retry_errors,
    ) as job:
        terminal = CheckTerminal(job, as_json=output.json)
        terminal.say_found(found)
        if server is not None:
            from sira_cli.run.remote_run import remote_engine

            of = remote_engine(server, job)
        else:
            of = engines_of(model, engine).of(job)
        run = PictureRun(job, of, fail_fast=output.fail_fast)
        with resumable(job.targets.any, output.overwrite), closing(run.events()) as events:
            terminal.listen(events, len(found.pictures))
        terminal.sum_up(run)
    if run.counts.failed:
        raise typer.Exit(3)


def _server(address: str, model: ModelOptions) -> tuple[Endpoint, Preset]:
    """Return the server, and the preset with the model's name there."""
    from sira_cli.run.endpoint import Endpoint

    server = Endpoint(address, model.model)
    wording = replace(model, model=server.model if model.preset is None else None)
    preset, _ = choose(wording, DecodingOptions())
    server.system = preset.prompts.system
    return server, preset.model_copy(update={"model": server.model})


def _check_remote(context: typer.Context, *groups: Any) -> None:
    """Check that no option is given that is for a model here."""
    names = [
        each.name for group in groups for each in fields(group) if each.name not in ("model", "preset", "settings")
    ]
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            shown = name.replace("_", "-")
            raise SettingsError(f"--{shown} is for a model that is loaded here: leave it out with --endpoint")


def _captions(paths: list[str], where: CaptionOptions, selection: PathOptions) -> Captions:
    if not paths and selection.files_from is None:
        raise SettingsError("Missing argument 'PATH': a folder of pictures with captions, or a file of captions")
    from sira_cli.data.captions.find import check_pictures, find_captions

    named = selection.selected(paths)
    found = find_captions(
        named.all_paths(),
        recursive=named.recursive,
        exclude=named.exclude or (),
        shard=named.shard,
        limit=named.limit,
        **asdict(where),
    )
    check_pictures(found)
    return found


def _check_files(found: Captions, output: Path | None) -> None:
    """Check that records do not replace captions. A table is made from records next to it."""
    if output is None:
        return
    written = (output.resolve(), output.resolve().with_suffix(".jsonl"))
    for file in found.files:
        if file.resolve() in written:
            raise SettingsError(f"--output {output}: would replace the captions in {file}: give another name")
