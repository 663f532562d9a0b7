"""Options of commands: one spelling everywhere, in groups, which are dataclasses of options.

`@with_options(examples)` gives a command the fields of its groups as options, under the group's title in the help, and
hands it one object per group instead of twenty arguments.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args, get_type_hints

import typer

from sira_cli.cli.options.setting import keys as all_keys
from sira_cli.cli.terminal.output import check_file
from sira_cli.errors import SettingsError
from sira_cli.methods import METHODS
from sira_cli.methods.base import Ability

if TYPE_CHECKING:
    from sira_cli.look.claims import Verify
    from sira_cli.models.schema import Schema
    from sira_cli.pictures.selection import Selection
    from sira_cli.run.output import Files


def with_options(examples: str, *without: str, loudness: str = "Options") -> Callable[..., Callable[..., Any]]:
    """Make a command, whose help ends with examples, of a function.

    It takes the function's own options and arguments, then those of each group among its parameters, but for what is
    named in `without`, and last -q and -v, in the group `loudness` (empty: neither).
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(command, eval_str=True)
        groups = {name: each.annotation for name, each in own.parameters.items() if is_dataclass(each.annotation)}
        parameters = [
            _parameter(name, each.annotation, each.default)
            for name, each in own.parameters.items()
            if name not in groups
        ]
        parameters += [each for group in groups.values() for each in _parameters(group, without)]
        loud = [_parameter(name, *each, loudness) for name, each in LOUDNESS.items() if loudness]

        @functools.wraps(command)
        def run(**values: Any) -> Any:
            filled = {name: _filled(group, values, without) for name, group in groups.items()}
            return command(**{name: value for name, value in values.items() if name not in LOUDNESS}, **filled)

        run.__signature__ = own.replace(parameters=parameters + loud)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters + loud}
        run.examples = examples  # type: ignore[attr-defined]
        return run

    return decorate


def _parameters(group: Any, without: Sequence[str]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for each in fields(group):
        if each.name in without:
            continue
        hint = hints[each.name]
        if is_dataclass(hint):
            yield from _parameters(hint, without)
        else:
            default = each if each.metadata else each.default
            yield _parameter(each.name, hint, default, group.title)


def _parameter(name: str, kind: Any, default: Any, title: str | None = None) -> inspect.Parameter:
    """Return a parameter for Typer: its option is in the default, or in the type."""
    if isinstance(default, Field):
        shared = default.metadata["option"]
        default = default.default
    else:
        kind, shared = get_args(kind)
    shown = copy.copy(shared)
    shown.rich_help_panel = shown.rich_help_panel or title
    default = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, shown])


def _filled(group: Any, values: dict[str, Any], without: Sequence[str]) -> Any:
    """Return a group with its values, which are taken out of `values`."""
    hints = get_type_hints(group)
    own = {}
    for each in fields(group):
        if each.name in without:
            continue
        is_group = is_dataclass(hints[each.name])
        own[each.name] = _filled(hints[each.name], values, without) if is_group else values.pop(each.name)
    return group(**own)


def option(default: Any, about: str, *names: str, **how: Any) -> Any:
    """Return an option of a group or command, with its default and its help."""
    return field(default=default, metadata={"option": typer.Option(*names, help=about, **how)})


def argument(metavar: str, about: str, *, required: bool = False) -> Any:
    """Return an argument of a command; None where it is not given."""
    how: dict[str, Any] = {"metavar": metavar, "help": about, "show_default": False}
    return field(default=MISSING if required else None, metadata={"option": typer.Argument(**how)})


def given(*groups: Any) -> list[str]:
    """Return the options of groups that differ from their default, as they are typed, but for the dashes."""
    names = [each.name for group in groups for each in fields(group) if getattr(group, each.name) != each.default]
    return ["set" if name == "settings" else name.replace("_", "-") for name in names]


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return the completion of one of some names, for the shell."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


# --- options of their own


def read_batch_size(text: str) -> int | str:
    """Read `auto`, or a number >= 1."""
    if text != "auto" and not (text.isascii() and text.isdecimal() and int(text)):
        raise typer.BadParameter(f"{text}: expected a whole number from 1, or auto")
    return text if text == "auto" else int(text)


def batches(about: str) -> Any:
    """Return the option --batch-size; its value is a `BatchSize` (`run/runner.py`)."""
    return option(None, about, "-b", "--batch-size", parser=read_batch_size, metavar="N|auto")


def _preset_names() -> Iterable[str]:
    from sira_cli.models import presets

    return presets.available()


_VERBOSE = "Messages of libraries; -vv: tracebacks."
LOUDNESS = {
    "quiet": (bool, option(False, "Show errors only.", "-q", "--quiet")),
    "verbose": (int, option(0, _VERBOSE, "-v", "--verbose", count=True, show_default=False)),
}
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")]
Offline = Annotated[bool, typer.Option("--offline", hidden=True, help="As HF_HUB_OFFLINE=1.")]
Together = Annotated[bool, typer.Option("--together", help="One text about all pictures.")]
QuestionImages = Annotated[
    str | None, typer.Option(metavar="FOLDER|URL", help="Folder with the files' images, or the URL of one.")
]
CaptionImages = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder with the file's images.")]
_ABOUT_SCENES = "Ask about drawn scenes (default with the bundled model)."
QuestionScenes = Annotated[bool, typer.Option("--scenes", help=_ABOUT_SCENES)]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a figure: .png, .pdf or .svg (extra `plot`).")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")]
RetryErrors = Annotated[bool, typer.Option("--retry-errors", help="Retry pictures that failed before.")]
FailFast = Annotated[bool, typer.Option("--fail-fast", hidden=True, help="Stop at the first picture that fails.")]
_RECORDS = "Records: a .jsonl file or a folder."
RecordsFile = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help=_RECORDS)]
Question = Annotated[str | None, typer.Option("--question", help="Question to ask about each picture.")]
PICTURES = "Pictures, folders, globs, URLs, .tar, .parquet; - is stdin."
_MIN_SUPPORT = "Mark objects whose support is below X."
MinSupport = Annotated[float | None, typer.Option(metavar="X", min=0, max=1, help=_MIN_SUPPORT)]
_OBJECTS = "Objects to look for: a list, nouns, or ask."
Objects = Annotated[str | None, typer.Option(metavar="FILE|spacy|ask", help=_OBJECTS)]


class Group:
    """A group of options, with its title in the help."""

    title: ClassVar[str] = "Options"

    def __init_subclass__(cls, title: str = "") -> None:
        cls.title = title or cls.title


@dataclass(frozen=True)
class ReportOptions(Group):
    """Target and form of a report."""

    output: Path | None = option(*(None, "Write the record that --json prints.", "-o", "--output"), metavar="FILE.json")
    overwrite: Overwrite = False
    as_json: AsJson = False

    def __post_init__(self) -> None:
        check_file("--output", self.output, self.overwrite)


@dataclass(frozen=True)
class ResearchModelOptions(Group, title="Model"):
    """Which model, and where it runs."""

    preset: str | None = option(
        *(None, "Preset or file (default: qwen2.5-vl-7b).", "-p", "--preset"),
        metavar="NAME",
        autocompletion=completing(_preset_names),
    )
    model: str | None = option(None, "Hugging Face id, ID@REVISION, or folder.", "-m", "--model", metavar="MODEL")
    device: str = option("auto", "auto, cpu, cuda, cuda:1 or mps.", metavar="DEVICE")
    settings: list[str] | None = option(
        *(None, "Any key of the preset, any setting of the method.", "--set"),
        metavar="KEY=VALUE",
        autocompletion=completing(lambda: [f"{key}=" for key in all_keys()]),
    )
    offline: Offline = False


@dataclass(frozen=True)
class ModelOptions(ResearchModelOptions):
    """Which model, where it runs, and how it is loaded."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = option(
        None, "auto, float32, bfloat16 or float16.", metavar="TYPE", show_choices=False
    )
    quantization: Literal["8bit", "4bit"] | None = option(
        None, "Language layers in 8bit or 4bit, by bitsandbytes.", metavar="BITS", show_choices=False
    )
    max_pixels: int | None = option(None, "Shrink larger pictures to N pixels (Qwen-VL).", metavar="N")


@dataclass(frozen=True)
class FewOptions(Group, title="Pictures"):
    """The part of the pictures to take."""

    recursive: bool = option(False, "Include subfolders.", "-r", "--recursive")
    limit: int | None = option(None, "Take only the first N pictures.", metavar="N", min=1)

    def selected(self, paths: Sequence[str] | None, questions: Path | None = None) -> Selection:
        """Return the pictures that paths and these options name, or a file of questions."""
        own = dict(vars(self))
        if not paths and own.get("files_from") is None and questions is None:
            instead = ", or --files-from FILE" if "files_from" in own else ""
            raise SettingsError(f"Missing argument 'PATH': a picture, a folder, a glob{instead}")
        from sira_cli.models.presets import available
        from sira_cli.pictures.find import Shard
        from sira_cli.pictures.selection import Selection

        for path in paths or ():
            if path in available() and not os.path.lexists(path):
                raise SettingsError(f"{path}: no such file; the preset is -p {path}")
        if own.get("shard") is not None:
            own["shard"] = Shard.parse(own["shard"])
        return Selection(paths or [], questions, **own)


@dataclass(frozen=True)
class PathOptions(FewOptions):
    """More paths, and the part of the pictures to take."""

    exclude: list[str] | None = option(None, "Leave out files and folders of this name.", metavar="GLOB")
    files_from: str | None = option(None, "More paths, one per line; - is stdin.", metavar="FILE")
    shard: str | None = option(None, "Part I of N, for N machines.", metavar="I/N")


@dataclass(frozen=True)
class GroupOptions(PathOptions):
    """Options for choosing pictures, and whether they are shown together."""

    image_column: str | None = option(None, "Column or .tar extension with the pictures.", metavar="NAME,...")
    together: Together = False


@dataclass(frozen=True)
class OutputOptions(Group, title="Output"):
    """Target of texts, and repetition of work."""

    output: RecordsFile = None
    sidecar: bool = option(False, "Write a text file next to each picture.", "--sidecar")
    caption_extension: str = option(".txt", "Extension of the text files.", metavar=".EXT")
    output_dir: Path | None = option(None, "Write these text files into a folder.", metavar="DIR")
    overwrite: bool = option(False, "Start again: replace records and texts.", "--overwrite")
    retry_errors: RetryErrors = False
    fail_fast: FailFast = False
    json: bool = option(False, "Print one JSON record per picture.", "--json")

    def files(self, method: str = "") -> Files:
        """Return the files that the options choose; a method is part of their names."""
        from sira_cli.run.output import Files

        places = self.output, self.sidecar, self.caption_extension, self.output_dir
        return Files(*places, self.overwrite, self.retry_errors, method)


@dataclass(frozen=True)
class EngineOptions(Group, title="Speed"):
    """Batch size and place of decoding."""

    batch_size: Any = batches("Pictures at once (default: auto on a GPU, else 1).")
    engine: str = option(
        "local", "Decode here, with N workers on Ray, or in vLLM (docs/vllm.md).", metavar="local|ray[:N]|vllm"
    )

    def __post_init__(self) -> None:
        if not re.fullmatch(r"local|vllm|ray(:0*[1-9][0-9]*)?", self.engine):
            raise SettingsError(f"--engine {self.engine}: expected local, vllm, ray, or ray:N for N workers")

    @property
    def on_ray(self) -> bool:
        """Whether pictures are decoded on a Ray cluster."""
        return self.engine.startswith("ray")

    @property
    def workers(self) -> int | None:
        """Number of Ray workers; None: one per GPU, or one."""
        number = self.engine.partition(":")[2]
        return int(number) if number else None


# --- what decides a text

TRACED = [name for name, method in METHODS.items() if Ability.TRACES in method.abilities]


@dataclass(frozen=True)
class DecodingOptions(Group, title="Decoding"):
    """How the next token is picked. Options that are not given come from the preset or the method."""

    method: str = option("sira", f"{', '.join(METHODS)}.", metavar="NAME", autocompletion=completing(lambda: METHODS))
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

    method: str = option(
        "sira", f"{', '.join(METHODS)}; all.", metavar="NAME,...", autocompletion=completing(lambda: METHODS)
    )


@dataclass(frozen=True)
class TraceDecodingOptions(DecodingOptions):
    """How the next token is picked, by a method that can be traced."""

    method: str = option("sira", f"{' or '.join(TRACED)}.", metavar="NAME")


@dataclass(frozen=True)
class VerifyOptions(Group, title="Second look"):
    """A second look at the objects that each text names."""

    verify: Literal["flag", "guide", "best"] | None = option(
        None,
        "Mark unseen objects (flag), name only seen ones (guide), or take the best of several captions (best).",
        metavar="MODE",
    )
    min_support: MinSupport = None
    objects: Objects = None

    def read(self) -> Verify | None:
        """Return the second look that the options ask for."""
        if self.verify is None:
            for name in given(self):
                raise SettingsError(f"--{name} is for a second look: also give --verify")
            return None
        from sira_cli.look.claims import Verify
        from sira_cli.look.finders import find_words

        return Verify(self.min_support, find_words(self.objects), self.verify)


@dataclass(frozen=True)
class FlagOptions(VerifyOptions):
    """A second look that does not change texts."""

    verify: Literal["flag"] | None = option(None, "Mark objects that the model does not see.")


@dataclass(frozen=True)
class TextOptions(Group, title="Text"):
    """The form of a text: its prefix, or JSON and tags instead of words."""

    prefix: str | None = option(None, "Put before each text, such as a trigger word.", metavar="TEXT")
    schema: str | None = option(None, "JSON: FILE, or NAME: tags, labels, caption+tags, ...", metavar="FILE|NAME[:N]")
    tags: bool = option(False, "Tags instead of sentences: red car, dog, grass.", "--tags")

    def read_schema(self) -> Schema | None:
        """Return the schema that the options ask for; None without one."""
        name = self.schema or ("tags" if self.tags else None)
        if name is None:
            return None
        from sira_cli.models.schema import Schema

        return Schema.of(name, tags=self.tags)


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
