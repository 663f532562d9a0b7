"""Options that several commands share: one spelling everywhere.

A group is a dataclass of annotated fields, for `with_options` (`cli/options/groups.py`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from sira_cli.cli.options.setting import complete
from sira_cli.cli.options.values import (
    Dtype,
    Quantization,
    complete_preset,
    read_batch_size,
)
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.pictures.find import Shard
    from sira_cli.pictures.selection import Selection
    from sira_cli.run.output import Files


def batch_size_option(description: str) -> Any:
    """Return the option --batch-size of a command; its value is a `BatchSize` (`run/batch.py`)."""
    return typer.Option(
        "-b", "--batch-size", metavar="N|auto", parser=read_batch_size, show_default=False, help=description
    )


Verbose = Annotated[
    int,
    typer.Option(
        "-v",
        "--verbose",
        count=True,
        show_default=False,
        help="Messages of libraries; -vv: tracebacks.",
    ),
]

Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Show errors only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")]
BatchSizeOption = Annotated[
    Any,
    batch_size_option("Pictures at once (default: auto on a GPU, else 1)."),
]

Depth = Annotated[int | None, typer.Option(help="Number of layers after the fork, K (default: the preset's).")]
Offline = Annotated[bool, typer.Option("--offline", hidden=True, help="As HF_HUB_OFFLINE=1.")]
Together = Annotated[bool, typer.Option("--together", help="One text about all pictures.")]
Recursive = Annotated[bool, typer.Option("-r", "--recursive", help="Include subfolders.")]
QuestionImages = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder with the files' images.")]
QuestionScenes = Annotated[
    bool,
    typer.Option("--scenes", help="Ask about drawn scenes (default with the bundled model)."),
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
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Records: a .jsonl file or a folder."),
]

_PICTURES = "Pictures, folders, globs, URLs, .tar, .parquet; - is stdin."
Paths = Annotated[list[str] | None, typer.Argument(metavar="PATH", help=_PICTURES, show_default=False)]
Images = Annotated[list[str] | None, typer.Argument(metavar="IMAGE", help=_PICTURES, show_default=False)]
Question = Annotated[str | None, typer.Option("--question", help="Question to ask about each picture.")]
ColumnsPrompt = Annotated[
    str | None,
    typer.Option("--prompt", rich_help_panel="Text", help="Prompt; {NAME} stands for a column."),
]


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
        str | None,
        typer.Option("-m", "--model", metavar="MODEL", help="Hugging Face id, ID@REVISION, or folder."),
    ] = None
    device: Annotated[
        str,
        typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1 or mps."),
    ] = "auto"
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

    @property
    def loading(self) -> dict[str, Any]:
        """The options that are settings of a preset; None where they are not given."""
        return {}


@dataclass(frozen=True)
class ModelOptions(ResearchModelOptions):
    """Which model, where it runs, and how it is loaded."""

    dtype: Annotated[
        Dtype | None, typer.Option(metavar="TYPE", help="auto, float32, bfloat16 or float16.", show_choices=False)
    ] = None
    quantization: Annotated[
        Quantization | None,
        typer.Option(
            metavar="BITS",
            help="Language layers in 8bit or 4bit, by bitsandbytes.",
            show_choices=False,
        ),
    ] = None
    max_pixels: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Shrink larger pictures to N pixels (Qwen-VL).",
        ),
    ] = None

    @property
    def loading(self) -> dict[str, Any]:
        """The options that are settings of a preset; None where they are not given."""
        return {"dtype": self.dtype, "quantization": self.quantization, "max_pixels": self.max_pixels}


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
        from sira_cli.pictures.selection import Selection

        return Selection(paths or [], questions, **given | {"shard": self.part})

    @property
    def part(self) -> Shard | None:
        """The part of --shard, for N machines."""
        return None


@dataclass(frozen=True)
class PathOptions(FewOptions):
    """More paths, and the part of the pictures to take."""

    exclude: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Leave out files and folders of this name.")
    ] = None
    files_from: Annotated[
        str | None,
        typer.Option("--files-from", metavar="FILE", help="More paths, one per line; - is stdin."),
    ] = None
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Part I of N, for N machines."),
    ] = None

    @property
    def part(self) -> Shard | None:
        """The part of --shard."""
        from sira_cli.pictures.find import Shard

        return None if self.shard is None else Shard.parse(self.shard)


@dataclass(frozen=True)
class SelectionOptions(PathOptions):
    """Options for choosing pictures, in addition to the paths."""

    image_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Column or .tar extension with the pictures.",
        ),
    ] = None


@dataclass(frozen=True)
class GroupOptions(SelectionOptions):
    """Options for choosing pictures, and whether they are shown together."""

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
        Path | None,
        typer.Option("--output-dir", metavar="DIR", help="Write these text files into a folder."),
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
