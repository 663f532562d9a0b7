"""Options of commands: one spelling everywhere, in groups, which are dataclasses of options.

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
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args, get_type_hints

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
        groups = {name: each.annotation for name, each in own.parameters.items() if is_dataclass(each.annotation)}
        parameters = [parameter for name, parameter in own.parameters.items() if name not in groups]
        parameters += [option for group in groups.values() for option in _options(group, without)]

        @functools.wraps(command)
        def run(**values: Any) -> Any:
            filled = {name: _filled(group, values, without) for name, group in groups.items()}
            return command(**values, **filled)

        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _options(group: Any, without: Sequence[str]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for each in fields(group):
        hint: Any = hints[each.name]
        if is_dataclass(hint):
            yield from () if each.name in without else _options(hint, without)
            continue
        kind, shared = (hint, each.metadata["option"]) if each.metadata else get_args(hint)
        option = copy.copy(shared)
        option.rich_help_panel = option.rich_help_panel or group.title
        named = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(each.name, named, default=each.default, annotation=Annotated[kind, option])


def _filled(group: Any, values: dict[str, Any], without: Sequence[str]) -> Any:
    """Return a group with its values, which are taken out of `values`."""
    hints, own = get_type_hints(group), {}
    for name in (each.name for each in fields(group) if each.name not in without):
        own[name] = _filled(hints[name], values, without) if is_dataclass(hints[name]) else values.pop(name)
    return group(**own)


def option(default: Any, about: str, *names: str, **how: Any) -> Any:
    """Return a field of a group: an option with its default and its help."""
    return field(default=default, metadata={"option": typer.Option(*names, help=about, **how)})


# --- options of their own

Dtype = Literal["auto", "float32", "bfloat16", "float16"]  # precision of the weights
Quantization = Literal["8bit", "4bit"]  # bits of the weights, by bitsandbytes


def preset_names(incomplete: str) -> list[str]:
    """Return the names of presets with this prefix, for the shell."""
    from sira_cli.models import presets

    return [name for name in presets.available() if name.startswith(incomplete)]


def complete_method(incomplete: str) -> list[str]:
    """Return the names of methods with this prefix, for the shell."""
    return [name for name in METHODS if name.startswith(incomplete)]


def read_batch_size(text: str) -> int | str:
    """Read `auto`, or a number >= 1."""
    if text != "auto" and not (text.isascii() and text.isdecimal() and int(text)):
        raise typer.BadParameter(f"{text}: expected a whole number from 1, or auto")
    return text if text == "auto" else int(text)


def batch_size_option(description: str) -> Any:
    """Return the option --batch-size of a command; its value is a `BatchSize` (`run/runner.py`)."""
    shown: dict[str, Any] = {"metavar": "N|auto", "show_default": False, "help": description}
    return typer.Option("-b", "--batch-size", parser=read_batch_size, **shown)


Verbose = Annotated[
    int, typer.Option("-v", "--verbose", count=True, show_default=False, help="Messages of libraries; -vv: tracebacks.")
]

Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Show errors only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")]
BatchSizeOption = Annotated[Any, batch_size_option("Pictures at once (default: auto on a GPU, else 1).")]

Depth = Annotated[int | None, typer.Option(help="Number of layers after the fork, K (default: the preset's).")]
Offline = Annotated[bool, typer.Option("--offline", hidden=True, help="As HF_HUB_OFFLINE=1.")]
Together = Annotated[bool, typer.Option("--together", help="One text about all pictures.")]
QuestionImages = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder with the files' images.")]
QuestionScenes = Annotated[
    bool, typer.Option("--scenes", help="Ask about drawn scenes (default with the bundled model).")
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a figure: .png, .pdf or .svg (extra `plot`).")]
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

    preset: str | None = option(
        None, "Preset or file (default: qwen2.5-vl-7b).", "-p", "--preset", metavar="NAME", autocompletion=preset_names
    )
    model: str | None = option(None, "Hugging Face id, ID@REVISION, or folder.", "-m", "--model", metavar="MODEL")
    device: str = option("auto", "auto, cpu, cuda, cuda:1 or mps.", metavar="DEVICE")
    settings: list[str] | None = option(
        None,
        "Any key of the preset, any setting of the method.",
        "--set",
        metavar="KEY=VALUE",
        autocompletion=complete,
    )
    offline: Offline = False

    @property
    def is_default(self) -> bool:
        """Whether the user has not chosen a model."""
        return not (self.preset or self.model or os.environ.get("SIRA_PRESET"))


@dataclass(frozen=True)
class ModelOptions(ResearchModelOptions):
    """Which model, where it runs, and how it is loaded."""

    dtype: Dtype | None = option(None, "auto, float32, bfloat16 or float16.", metavar="TYPE", show_choices=False)
    quantization: Quantization | None = option(
        None, "Language layers in 8bit or 4bit, by bitsandbytes.", metavar="BITS", show_choices=False
    )
    max_pixels: int | None = option(None, "Shrink larger pictures to N pixels (Qwen-VL).", metavar="N")


@dataclass(frozen=True)
class FewOptions:
    """The part of the pictures to take."""

    title: ClassVar[str] = "Pictures"

    recursive: bool = option(False, "Include subfolders.", "-r", "--recursive")
    limit: int | None = option(None, "Take only the first N pictures.", metavar="N", min=1)

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

    exclude: list[str] | None = option(None, "Leave out files and folders of this name.", metavar="GLOB")
    files_from: str | None = option(None, "More paths, one per line; - is stdin.", "--files-from", metavar="FILE")
    shard: str | None = option(None, "Part I of N, for N machines.", metavar="I/N")


@dataclass(frozen=True)
class GroupOptions(PathOptions):
    """Options for choosing pictures, and whether they are shown together."""

    image_column: str | None = option(None, "Column or .tar extension with the pictures.", metavar="NAME,...")
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
    sidecar: bool = option(False, "Write a text file next to each picture.", "--sidecar")
    caption_extension: str = option(".txt", "Extension of the text files.", metavar=".EXT")
    output_dir: Path | None = option(None, "Write these text files into a folder.", "--output-dir", metavar="DIR")
    overwrite: bool = option(False, "Start again: replace records and texts.", "--overwrite")
    retry_errors: RetryErrors = False
    fail_fast: FailFast = False
    json: bool = option(False, "Print one JSON record per picture.", "--json")
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
    engine: str = option(
        "local", "Decode here, with N workers on Ray, or in vLLM (docs/vllm.md).", metavar="local|ray[:N]|vllm"
    )

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

NAMES = ", ".join(METHODS)
TRACED = [name for name, method in METHODS.items() if Ability.TRACES in method.abilities]


@dataclass(frozen=True)
class DecodingOptions:
    """How the next token is picked. Options that are not given come from the preset or the method."""

    title: ClassVar[str] = "Decoding"

    method: str = option("sira", f"{NAMES}.", metavar="NAME", autocompletion=complete_method)
    k: int | None = option(None, "Number of layers after the fork, K.")
    alpha: float | None = option(None, "Strength of the contrast.")
    max_new_tokens: int | None = option(None, "Longest text, in tokens.", rich_help_panel="Text")
    temperature: float | None = option(None, "Sampling temperature; 0 takes the best token.")
    top_p: float | None = option(None, "Sample from this share of the probability.")
    seed: int | None = option(None, "Random seed for sampling.")
    system: str | None = option(None, "System prompt.", metavar="TEXT", rich_help_panel="Text")
    think: bool | None = option(None, "Let the model reason first.", "--think/--no-think")


@dataclass(frozen=True)
class MethodsOptions(DecodingOptions):
    """How the next token is picked, by one method or several."""

    method: str = option("sira", f"{NAMES}; all.", metavar="NAME,...", autocompletion=complete_method)


@dataclass(frozen=True)
class TraceDecodingOptions(DecodingOptions):
    """How the next token is picked, by a method that can be traced."""

    method: str = option("sira", f"{' or '.join(TRACED)}.", metavar="NAME")


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

    verify: Literal["flag", "guide"] | None = option(
        None, "Mark unseen objects (flag), or name only seen ones (guide).", metavar="MODE"
    )
    min_support: MinSupport = None
    objects: Objects = None

    def read(self) -> Verify | None:
        """Return the second look that the options ask for."""
        if self.verify is None:
            for name, value in asdict(self).items():
                if value is not None:
                    raise SettingsError(f"--{name.replace('_', '-')} is for a second look: also give --verify")
            return None
        from sira_cli.look.verify import Verify
        from sira_cli.look.words import find_words

        return Verify(self.min_support, find_words(self.objects), self.verify)


@dataclass(frozen=True)
class FlagOptions(VerifyOptions):
    """A second look that does not change texts."""

    verify: Literal["flag"] | None = option(None, "Mark objects that the model does not see.")


@dataclass(frozen=True)
class TextOptions:
    """The form of a text: its prefix, or JSON and tags instead of words."""

    title: ClassVar[str] = "Text"

    prefix: str | None = option(None, "Put before each text, such as a trigger word.", metavar="TEXT")
    schema: str | None = option(None, "JSON: FILE, or NAME: tags, labels, caption+tags, ...", metavar="FILE|NAME[:N]")
    tags: bool = option(False, "Tags instead of sentences: red car, dog, grass.", "--tags")

    def read_schema(self) -> Schema | None:
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
    verify: VerifyOptions = field(default_factory=VerifyOptions)
    selection: GroupOptions
    engine: EngineOptions
    output: OutputOptions
