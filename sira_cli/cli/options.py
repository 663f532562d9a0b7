"""Options that several commands share: one spelling everywhere.

A group is a dataclass of annotated fields. `with_options(Group)` gives a command the group's fields as
options and hands it one object instead of twenty arguments.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from sira_cli.errors import SettingsError
from sira_cli.methods import METHODS, find
from sira_cli.methods.base import Method

if TYPE_CHECKING:
    from sira_cli.models.lvlm import Lvlm
    from sira_cli.models.presets import Preset


class Dtype(StrEnum):
    """Precision of the weights."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Engine(StrEnum):
    """Who does the work."""

    LOCAL = "local"
    RAY = "ray"


class Quantization(StrEnum):
    """Weights in fewer bits."""

    BITS4 = "4bit"
    BITS8 = "8bit"


Verbose = Annotated[
    int,
    typer.Option(
        "-v", "--verbose", count=True, show_default=False, help="Show the libraries' messages; -vv: tracebacks."
    ),
]


_PICTURES = "Pictures, folders, globs; - reads a picture from stdin."
Paths = Annotated[list[str] | None, typer.Argument(metavar="PATH", help=_PICTURES, show_default=False)]
Images = Annotated[list[str] | None, typer.Argument(metavar="IMAGE", help=_PICTURES, show_default=False)]
Question = Annotated[str | None, typer.Option("-q", "--question", help="What to ask about each picture.")]


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and where it runs."""

    preset: Annotated[
        str | None,
        typer.Option("-p", "--preset", help="Preset name or file; default $SIRA_PRESET, else qwen2.5-vl-7b."),
    ] = None
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Hugging Face id or folder, instead of a preset.")
    ] = None
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the model.")] = None
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto"
    dtype: Annotated[Dtype | None, typer.Option(help="Precision of the weights; default the preset's.")] = None
    quantization: Annotated[Quantization | None, typer.Option(help="Load in fewer bits (extra `quant`).")] = None
    offline: Annotated[bool, typer.Option("--offline", help="Never ask the hub.")] = False
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
    ] = False


@dataclass(frozen=True)
class DecodingOptions:
    """How the next token is picked. What is not given is the preset's."""

    method: Annotated[str, typer.Option(help=f"Decoder: {', '.join(METHODS)}.")] = "sira"
    k: Annotated[
        int | None,
        typer.Option(help="Layers after the fork, K. Default, here and below: the preset's, or the method's."),
    ] = None
    alpha: Annotated[float | None, typer.Option(help="Contrast strength.")] = None
    beta: Annotated[float | None, typer.Option(help="Plausibility cut-off, off in the paper.")] = None
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest answer.")] = None
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling.")] = None
    seed: Annotated[int | None, typer.Option(help="For sampling.")] = None
    num_beams: Annotated[int | None, typer.Option(help="Beam search.")] = None


@dataclass(frozen=True)
class SelectionOptions:
    """Which pictures, beside the paths."""

    recursive: Annotated[bool, typer.Option("-r", "--recursive", help="Subfolders too.")] = False
    files_from: Annotated[
        str | None,
        typer.Option("--files-from", metavar="FILE", help="More paths, one a line; - is stdin."),
    ] = None
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first so many.")] = None
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Only part I of N, for so many machines: 1/8, ..., 8/8.")
    ] = None


@dataclass(frozen=True)
class OutputOptions:
    """Where texts go, what is done again, and how much is said."""

    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Records: .jsonl, or a folder for it; a .csv or .parquet is made from one.",
        ),
    ] = None
    sidecar: Annotated[bool, typer.Option("--sidecar", help="A text file beside each picture.")] = False
    caption_extension: Annotated[str, typer.Option(help="Of those text files.")] = ".txt"
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", help="A tree for those text files, instead of beside the pictures.")
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start anew; replace text files.")] = False
    retry_errors: Annotated[bool, typer.Option("--retry-errors", help="Try again what failed in an earlier run.")] = (
        False
    )
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first picture that fails.")] = False
    json: Annotated[bool, typer.Option("--json", help="One JSON record per picture on stdout.")] = False
    no_stream: Annotated[bool, typer.Option("--no-stream", help="Print a text when it is complete.")] = False
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Errors only.")] = False
    verbose: Verbose = 0


@dataclass(frozen=True)
class EngineOptions:
    """How many pictures are worked on at once, where, and how fast."""

    batch_size: Annotated[
        int, typer.Option("-b", "--batch-size", metavar="N", min=1, help="Pictures decoded together.")
    ] = 1
    engine: Annotated[Engine, typer.Option(help="ray: on the workers of a Ray cluster (extra `ray`).")] = Engine.LOCAL
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Of Ray; default one a GPU, without any one.")
    ] = None
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile decoding steps: a slow start, then faster (sira, greedy).")
    ] = False


def choose_method(decoding: DecodingOptions) -> Method:
    """The decoder, with those of its settings that the options change.

    Raises:
        SettingsError: there is no such method, or it has not what is given for it.
    """
    given = {field.name: getattr(decoding, field.name) for field in fields(decoding)}
    method = find(given.pop("method"))
    return method.with_settings(**{name: value for name, value in given.items() if method.owns(name)})


def names_of(methods: str) -> list[str]:
    """Of several methods with commas between them."""
    return [name.strip() for name in methods.split(",")]


def choose_preset(model: ModelOptions, decoding: DecodingOptions, **settings: Any) -> Preset:
    """The preset in force, with what the options change, but for what is the method's.

    Raises:
        SettingsError: --preset and --model together, or a value that is not valid.
    """
    if model.preset is not None and model.model is not None:
        raise SettingsError("give --preset or --model, not both")
    from sira_cli.models import presets

    if model.model is not None:
        preset = presets.for_model(model.model)
    else:
        preset = presets.find(model.preset or os.environ.get("SIRA_PRESET") or presets.DEFAULT)
    method = find(decoding.method)
    names = [field.name for field in fields(decoding) if field.name != "method" and not method.owns(field.name)]
    given = {name: getattr(decoding, name) for name in names}
    return preset.with_settings(revision=model.revision, dtype=model.dtype, **given, **settings)


def note_idle(decoding: DecodingOptions, preset: Preset) -> None:
    """Say which of the options change nothing under any of the methods."""
    from sira_cli.cli.console import note

    seeded = any(find(name).seeded for name in names_of(decoding.method))
    if preset.generation.temperature == 0 and (
        decoding.top_p is not None or (decoding.seed is not None and not seeded)
    ):
        note(f"--top-p {'changes' if seeded else 'and --seed change'} nothing at temperature 0")


def load_model(preset: Preset, model: ModelOptions, method: str | Method, compiled: bool = False) -> Lvlm:
    """The model of a preset; `compiled`: its decoding steps are.

    Raises:
        SettingsError: a value that is not valid.
        ModelNotFoundError: the weights are not here and cannot be fetched.
    """
    from sira_cli.cli.console import announce, silence_transformers, waiting
    from sira_cli.models import presets

    if preset.model != presets.BUNDLED:
        # Before torch is imported: a model that cannot be had is known within a second.
        from sira_cli.models.hub import find_checkpoint

        find_checkpoint(
            preset.model,
            preset.revision,
            offline=model.offline,
            code=model.trust_remote_code,
            expected_gb=preset.download_gb,
            on_download=announce,
        )
    with waiting(f"loading {preset.name or preset.model}"):
        from sira_cli.models.loading import load

        silence_transformers()
        lvlm = load(preset, **loading(model, method, compiled))
    note_bundled(preset)
    return lvlm


def note_bundled(preset: Preset) -> None:
    """What to know about the model that comes along."""
    from sira_cli.cli.console import note
    from sira_cli.models import presets

    if preset.model == presets.BUNDLED:
        note("the bundled model knows drawn scenes only; photographs need another preset")


def loading(model: ModelOptions, method: str | Method, compiled: bool = False) -> dict[str, Any]:
    """The arguments of `sira_cli.load` but for the preset."""
    return {
        "method": method,
        "device": model.device,
        "quantization": model.quantization,
        "offline": model.offline,
        "trust_remote_code": model.trust_remote_code,
        "compile": compiled,
    }


def check_file(option: str, file: Path | None, overwrite: bool = True) -> None:
    """Whether a file can be written, before a model is loaded.

    Raises:
        SettingsError: it is a folder, its folder is not there, or it is there and not to be overwritten.
    """
    if file is not None and file.is_dir():
        raise SettingsError(f"{option} {file}: is a folder, expected a file")
    if file is not None and not file.parent.is_dir():
        raise SettingsError(f"{option} {file}: the folder {file.parent} does not exist: make it first")
    if file is not None and file.exists() and not overwrite:
        raise SettingsError(f"{option} {file}: exists: give another, or --overwrite")


def with_options(**groups: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the fields of each group as options; it receives one object per group, by these names."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(command, eval_str=True)
        parameters = [parameter for name, parameter in own.parameters.items() if name not in groups]
        for group in groups.values():
            hints = get_type_hints(group, include_extras=True)
            parameters += [
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
                )
                for field in fields(group)
            ]

        @functools.wraps(command)
        def run(**values: Any) -> Any:
            for name, group in groups.items():
                values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
            return command(**values)

        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate
