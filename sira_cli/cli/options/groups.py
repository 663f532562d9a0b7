"""Options of commands: one spelling everywhere, in groups, which are dataclasses of annotated fields.

`@with_options()` gives a command the fields of its groups as options, under the group's title in the help, and hands it
one object per group instead of twenty arguments.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast, get_args, get_type_hints

import typer

from sira_cli.cli.options.setting import complete
from sira_cli.cli.terminal.console import set_verbosity
from sira_cli.cli.terminal.output import check_file
from sira_cli.errors import SettingsError
from sira_cli.methods import METHODS
from sira_cli.methods.base import Ability

if TYPE_CHECKING:
    from sira_cli.look.verify import Verify
    from sira_cli.models.schema import Schema
    from sira_cli.pictures.selection import Selection
    from sira_cli.run.output import Files


def with_options(*without: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the fields of each group among its parameters as options, after its own.

    A group may consist of groups; those named in `without` are left out, and have their default.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(command, eval_str=True)
        every = own.parameters.items()
        groups: dict[str, Any] = {name: each.annotation for name, each in every if is_dataclass(each.annotation)}
        parameters = [parameter for name, parameter in every if name not in groups]
        parameters += [option for group in groups.values() for option in _options(group, without)]

        @functools.wraps(command)
        def run(**values: Any) -> Any:
            for name, group in groups.items():
                values[name] = _filled(group, values, without)
            return command(**values)

        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _options(group: type[Any], without: Sequence[str]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for each in fields(group):
        hint = hints[each.name]
        if is_dataclass(hint):
            yield from () if each.name in without else _options(cast(type, hint), without)
            continue
        titled, kind = _titled(hint, group.title), inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(each.name, kind, default=each.default, annotation=titled)


def _filled(group: type[Any], values: dict[str, Any], without: Sequence[str]) -> Any:
    """Return a group with its values, which are taken out of `values`."""
    hints = get_type_hints(group)
    return group(
        **{
            each.name: _filled(hints[each.name], values, without)
            if is_dataclass(hints[each.name])
            else values.pop(each.name)
            for each in fields(group)
            if each.name not in without
        }
    )


def _titled(hint: Any, title: str) -> Any:
    """Return an annotated option under a title in the help, unless it names its own."""
    kind, option = get_args(hint)
    option = copy.copy(option)
    option.rich_help_panel = getattr(option, "rich_help_panel", None) or title
    return Annotated[kind, option]


# --- values

Dtype = Literal["auto", "float32", "bfloat16", "float16"]  # precision of the weights


Quantization = Literal["8bit", "4bit"]  # bits of the weights, by bitsandbytes


def complete_preset(incomplete: str) -> list[str]:
    """Return the names of presets with this prefix, for the shell."""
    from sira_cli.models import presets

    return [name for name in presets.available() if name.startswith(incomplete)]


def complete_method(incomplete: str) -> list[str]:
    """Return the names of methods with this prefix, for the shell."""
    return [name for name in METHODS if name.startswith(incomplete)]


# Options and arguments that are texts and may name files.
MAY_BE_PATHS = ("answers", "file", "files_from", "model", "name", "objects", "paths", "preset")
_ROOM = "-" * 20  # for suffixes of files next to it, such as `.records.jsonl`


def check_path(name: str, value: str | Path) -> None:
    """Check that a path can be looked up; whether it exists is checked when it is opened."""
    from sira_cli.errors import SettingsError
    from sira_cli.files import from_home, too_long

    text = str(value)
    if "://" in text:
        return
    if too_long(Path(text)) or (name != "paths" and not os.path.lexists(text) and too_long(Path(text + _ROOM))):
        raise typer.BadParameter(f"{text[:40]}...: is too long for a file's name ({len(os.fsencode(text))} bytes)")
    try:
        from_home(text)
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None


def read_batch_size(text: str) -> int | str:
    """Read `auto`, or a number >= 1."""
    if text == "auto":
        return text
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text}: expected a whole number from 1, or auto")
    return int(text)


def batch_size_option(description: str) -> Any:
    """Return the option --batch-size of a command; its value is a `BatchSize` (`run/batch.py`)."""
    return typer.Option(
        "-b", "--batch-size", metavar="N|auto", parser=read_batch_size, show_default=False, help=description
    )


Verbose = Annotated[
    int, typer.Option("-v", "--verbose", count=True, show_default=False, help="Messages of libraries; -vv: tracebacks.")
]

Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Show errors only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")]
BatchSizeOption = Annotated[Any, batch_size_option("Pictures at once (default: auto on a GPU, else 1).")]

Depth = Annotated[int | None, typer.Option(help="Number of layers after the fork, K (default: the preset's).")]
Offline = Annotated[bool, typer.Option("--offline", hidden=True, help="As HF_HUB_OFFLINE=1.")]
Together = Annotated[bool, typer.Option("--together", help="One text about all pictures.")]
Recursive = Annotated[bool, typer.Option("-r", "--recursive", help="Include subfolders.")]
QuestionImages = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder with the files' images.")]
QuestionScenes = Annotated[
    bool, typer.Option("--scenes", help="Ask about drawn scenes (default with the bundled model).")
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a figure: .png, .pdf or .svg (extra `plot`).")]
Host = Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")]
Port = Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="Port to listen on; 0: any free port.")]

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")]
RetryErrors = Annotated[bool, typer.Option("--retry-errors", help="Retry pictures that failed before.")]
FailFast = Annotated[bool, typer.Option("--fail-fast", hidden=True, help="Stop at the first picture that fails.")]

ReportFile = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE.json", help="Write the record that --json prints.")
]
RecordsFile = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Records: a .jsonl file or a folder.")
]

_PICTURES = "Pictures, folders, globs, URLs, .tar, .parquet; - is stdin."
Paths = Annotated[list[str] | None, typer.Argument(metavar="PATH", help=_PICTURES, show_default=False)]
Images = Annotated[list[str] | None, typer.Argument(metavar="IMAGE", help=_PICTURES, show_default=False)]
Question = Annotated[str | None, typer.Option("--question", help="Question to ask about each picture.")]
ColumnsPrompt = Annotated[
    str | None, typer.Option("--prompt", rich_help_panel="Text", help="Prompt; {NAME} stands for a column.")
]


@dataclass(frozen=True)
class ReportOptions:
    """Target and form of a report, and amount of output."""

    title: ClassVar[str] = "Options"

    output: ReportFile = None
    overwrite: Overwrite = False
    as_json: AsJson = False
    quiet: Quiet = False
    verbose: Verbose = 0

    def check(self) -> None:
        """Set the verbosity, and check the file to write, before anything is measured."""
        set_verbosity(self.quiet, self.verbose)
        check_file("--output", self.output, self.overwrite)


@dataclass(frozen=True)
class ResearchModelOptions:
    """Which model, and where it runs."""

    title: ClassVar[str] = "Model"

    preset: Annotated[
        str | None,
        typer.Option(
            "-p",
            "--preset",
            metavar="NAME",
            autocompletion=complete_preset,
            help="Preset or file (default: qwen2.5-vl-7b).",
        ),
    ] = None
    model: Annotated[
        str | None, typer.Option("-m", "--model", metavar="MODEL", help="Hugging Face id, ID@REVISION, or folder.")
    ] = None
    device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1 or mps.")] = "auto"
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            autocompletion=complete,
            help="Any key of the preset, any setting of the method.",
        ),
    ] = None
    offline: Offline = False

    @property
    def is_default(self) -> bool:
        """Whether the user has not chosen a model."""
        return not (self.preset or self.model or os.environ.get("SIRA_PRESET"))


@dataclass(frozen=True)
class ModelOptions(ResearchModelOptions):
    """Which model, where it runs, and how it is loaded."""

    dtype: Annotated[
        Dtype | None, typer.Option(metavar="TYPE", help="auto, float32, bfloat16 or float16.", show_choices=False)
    ] = None
    quantization: Annotated[
        Quantization | None,
        typer.Option(metavar="BITS", help="Language layers in 8bit or 4bit, by bitsandbytes.", show_choices=False),
    ] = None
    max_pixels: Annotated[
        int | None, typer.Option(metavar="N", help="Shrink larger pictures to N pixels (Qwen-VL).")
    ] = None


@dataclass(frozen=True)
class FewOptions:
    """The part of the pictures to take."""

    title: ClassVar[str] = "Pictures"

    recursive: Recursive = False
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Take only the first N pictures.")] = None

    def selected(self, paths: Sequence[str] | None, questions: Path | None = None) -> Selection:
        """Return the pictures that paths and these options name, or a file of questions."""
        given = asdict(self)
        if not paths and given.get("files_from") is None and questions is None:
            instead = ", or --files-from FILE" * ("files_from" in given)
            raise SettingsError(f"Missing argument 'PATH': a picture, a folder, a glob{instead}")
        from sira_cli.pictures.find import Shard
        from sira_cli.pictures.selection import Selection

        if given.get("shard") is not None:
            given["shard"] = Shard.parse(given["shard"])
        return Selection(paths or [], questions, **given)


@dataclass(frozen=True)
class PathOptions(FewOptions):
    """More paths, and the part of the pictures to take."""

    exclude: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Leave out files and folders of this name.")
    ] = None
    files_from: Annotated[
        str | None, typer.Option("--files-from", metavar="FILE", help="More paths, one per line; - is stdin.")
    ] = None
    shard: Annotated[str | None, typer.Option(metavar="I/N", help="Part I of N, for N machines.")] = None


@dataclass(frozen=True)
class GroupOptions(PathOptions):
    """Options for choosing pictures, and whether they are shown together."""

    image_column: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Column or .tar extension with the pictures.")
    ] = None
    together: Together = False


@dataclass(frozen=True)
class TraceSelection(FewOptions):
    """The part of the pictures to take, and whether they are shown together."""

    together: Together = False


@dataclass(frozen=True)
class OutputOptions:
    """Target of texts, repetition of work, and amount of output."""

    title: ClassVar[str] = "Output"

    output: RecordsFile = None
    sidecar: Annotated[bool, typer.Option("--sidecar", help="Write a text file next to each picture.")] = False
    caption_extension: Annotated[str, typer.Option(metavar=".EXT", help="Extension of the text files.")] = ".txt"
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", metavar="DIR", help="Write these text files into a folder.")
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start again: replace records and texts.")] = False
    retry_errors: RetryErrors = False
    fail_fast: FailFast = False
    json: Annotated[bool, typer.Option("--json", help="Print one JSON record per picture.")] = False
    quiet: Quiet = False
    verbose: Verbose = 0

    def files(self, method: str = "") -> Files:
        """Return the files that the options choose; a method is part of their names."""
        from sira_cli.run.output import Files

        places = self.output, self.sidecar, self.caption_extension, self.output_dir
        return Files(*places, self.overwrite, self.retry_errors, method)


@dataclass(frozen=True)
class EngineOptions:
    """Batch size and place of decoding."""

    title: ClassVar[str] = "Speed"

    batch_size: BatchSizeOption = None
    engine: Annotated[
        str,
        typer.Option(
            metavar="local|ray[:N]|vllm", help="Decode here, with N workers on Ray, or in vLLM (docs/vllm.md)."
        ),
    ] = "local"

    def __post_init__(self) -> None:
        name, _, workers = self.engine.partition(":")
        if self.engine not in ("local", "vllm") and (name != "ray" or (workers.strip("0") and not workers.isdecimal())):
            raise SettingsError(f"--engine {self.engine}: expected local, vllm, ray, or ray:N for N workers")

    @property
    def on_ray(self) -> bool:
        """Whether pictures are decoded on a Ray cluster."""
        return self.engine.startswith("ray")

    @property
    def on_vllm(self) -> bool:
        """Whether vLLM decodes."""
        return self.engine == "vllm"

    @property
    def workers(self) -> int | None:
        """Number of Ray workers; None: one per GPU, or one."""
        number = self.engine.partition(":")[2]
        return int(number) if number else None


# --- what decides a text

TRACED = [name for name, method in METHODS.items() if Ability.TRACES in method.abilities]


@dataclass(frozen=True)
class DecodingOptions:
    """How the next token is picked. Options that are not given come from the preset or the method."""

    title: ClassVar[str] = "Decoding"

    method: Annotated[
        str, typer.Option(metavar="NAME", autocompletion=complete_method, help=f"{', '.join(METHODS)}.")
    ] = "sira"
    k: Annotated[int | None, typer.Option(help="Number of layers after the fork, K.")] = None
    alpha: Annotated[float | None, typer.Option(help="Strength of the contrast.")] = None
    max_new_tokens: Annotated[int | None, typer.Option(rich_help_panel="Text", help="Longest text, in tokens.")] = None
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; 0 takes the best token.")] = None
    top_p: Annotated[float | None, typer.Option(help="Sample from this share of the probability.")] = None
    seed: Annotated[int | None, typer.Option(help="Random seed for sampling.")] = None
    system: Annotated[str | None, typer.Option(metavar="TEXT", rich_help_panel="Text", help="System prompt.")] = None
    think: Annotated[bool | None, typer.Option("--think/--no-think", help="Let the model reason first.")] = None


@dataclass(frozen=True)
class MethodsOptions(DecodingOptions):
    """How the next token is picked, by one method or several."""

    method: Annotated[
        str, typer.Option(metavar="NAME,...", autocompletion=complete_method, help=f"{', '.join(METHODS)}; all.")
    ] = "sira"


@dataclass(frozen=True)
class TraceDecodingOptions(DecodingOptions):
    """How the next token is picked, by a method that can be traced."""

    method: Annotated[str, typer.Option(metavar="NAME", help=f"{' or '.join(TRACED)}.")] = "sira"


@dataclass(frozen=True)
class TextOptions:
    """Changes to a decoded text. Options that are not given come from the preset's `text`."""

    title: ClassVar[str] = "Text"

    prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Put before each text, such as a trigger word.")
    ] = None


MinSupport = Annotated[
    float | None, typer.Option(metavar="X", min=0, max=1, help="Mark objects whose support is below X.")
]
Objects = Annotated[
    str | None, typer.Option(metavar="FILE|spacy|ask", help="Objects to look for: a list, nouns, or ask.")
]


@dataclass(frozen=True)
class VerifyOptions:
    """A second look at the objects that each text names."""

    title: ClassVar[str] = "Second look"

    verify: Annotated[
        Literal["flag", "guide"] | None,
        typer.Option(metavar="MODE", help="Mark unseen objects (flag), or name only seen ones (guide)."),
    ] = None
    min_support: MinSupport = None
    objects: Objects = None

    def read(self) -> Verify | None:
        """Return the second look that the options ask for."""
        if self.verify is None:
            for name, value in asdict(self).items():
                if value is not None:
                    raise SettingsError(f"--{name.replace('_', '-')} is for a second look: also give --verify")
            return None
        from sira_cli.look.noun_phrases import find_words
        from sira_cli.look.verify import Verify

        return Verify(self.min_support, find_words(self.objects), self.verify)


@dataclass(frozen=True)
class FlagOptions(VerifyOptions):
    """A second look that does not change texts."""

    verify: Annotated[Literal["flag"] | None, typer.Option(help="Mark objects that the model does not see.")] = None


@dataclass(frozen=True)
class SchemaOptions:
    """JSON instead of a text in words."""

    title: ClassVar[str] = "Text"

    schema: Annotated[
        str | None, typer.Option(metavar="FILE|NAME[:N]", help="JSON: FILE, or NAME: tags, labels, caption+tags, ...")
    ] = None
    tags: Annotated[bool, typer.Option("--tags", help="Tags instead of sentences: red car, dog, grass.")] = False

    def read(self) -> Schema | None:
        """Return the schema that the options ask for; None without one."""
        given = self.schema or ("tags" if self.tags else None)
        if given is None:
            return None
        from sira_cli.models.schema import Schema

        return Schema.of(given, tags=self.tags)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Everything that `caption` and `ask` take, in the order of their help; each leaves out one group."""

    model: ModelOptions
    decoding: MethodsOptions
    text: TextOptions
    schema: SchemaOptions
    verify: VerifyOptions = field(default_factory=VerifyOptions)
    selection: GroupOptions
    engine: EngineOptions
    output: OutputOptions
