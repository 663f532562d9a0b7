"""Options that several commands share: one spelling everywhere.

A group is a dataclass of annotated fields, for `with_options` (`cli/option_groups.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from sira_cli.cli.option_values import (
    AnswerFormat,
    ColorBy,
    Dtype,
    Engine,
    FolderFormat,
    Quantization,
    complete_preset,
    read_batch_size,
)
from sira_cli.errors import SettingsError


def batch_size_option(description: str) -> Any:
    """Return the option --batch-size of a command; the type of its value is `BatchSize` of `runs/batch_size.py`."""
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
        help="Show library messages; -vv also shows tracebacks.",
    ),
]

Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Show errors only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")]
BatchSizeOption = Annotated[
    Any,
    batch_size_option("Pictures decoded together; auto: as many as fit into memory (default: auto on a GPU, else 1)."),
]

Depth = Annotated[int | None, typer.Option(help="Number of layers after the fork, K (default: the preset's).")]
Offline = Annotated[bool, typer.Option("--offline", help="Never contact the Hugging Face hub.")]
Recursive = Annotated[bool, typer.Option("-r", "--recursive", help="Include subfolders.")]
AllowPrivate = Annotated[
    bool, typer.Option("--allow-private", help="Also download from addresses that are not public.")
]
QuestionImages = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder with the files' images.")]
QuestionScenes = Annotated[
    bool,
    typer.Option("--scenes", help="Ask about drawn validation scenes, without files (default with the bundled model)."),
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a figure: .png, .pdf or .svg (extra `plot`).")]
Host = Annotated[str, typer.Option(metavar="HOST", help="Address to listen at.")]
Port = Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="Port to listen at; 0: a free one.")]

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")]
RetryErrors = Annotated[bool, typer.Option("--retry-errors", help="Retry pictures that failed in an earlier run.")]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Stop at the first picture that fails.")]

ReportFile = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE.json", help="Write the record that --json prints.")
]
RecordsFile = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write records to FILE.jsonl or a folder; .csv and .parquet are made from such records.",
    ),
]

_PICTURES = "Pictures, folders, globs, URIs, URLs, or .tar, .parquet and .arrow files; - reads one picture from stdin."
Paths = Annotated[list[str] | None, typer.Argument(metavar="PATH", help=_PICTURES, show_default=False)]
Images = Annotated[list[str] | None, typer.Argument(metavar="IMAGE", help=_PICTURES, show_default=False)]
Question = Annotated[str | None, typer.Option("--question", help="Question to ask about each picture.")]
Prompt = Annotated[str | None, typer.Option("--prompt", help="Prompt for the model (default: the preset's).")]
ColumnsPrompt = Annotated[
    str | None,
    typer.Option("--prompt", help="Prompt; {NAME} stands for a column (default: the preset's)."),
]
Colors = Annotated[ColorBy, typer.Option("--color-by", help="Score that colours words on a terminal.")]


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and where it runs."""

    title: ClassVar[str] = "Model"

    preset: Annotated[
        str | None,
        typer.Option(
            "-p",
            "--preset",
            metavar="NAME",
            autocompletion=complete_preset,
            help="Preset name or file (default: $SIRA_PRESET, or qwen2.5-vl-7b).",
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option("-m", "--model", metavar="MODEL", help="Hugging Face id or folder, instead of a preset."),
    ] = None
    device: Annotated[
        str,
        typer.Option(metavar="DEVICE", help="cpu, cuda, cuda:1, mps or auto: several GPUs if one is too small."),
    ] = "auto"
    dtype: Annotated[Dtype | None, typer.Option(help="Precision of the weights (default: the preset's).")] = None
    quantization: Annotated[
        Quantization | None,
        typer.Option(help="Bits of the language layers (extra `quant`); 4bit: nf4, computed in bfloat16."),
    ] = None
    max_pixels: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Shrink larger pictures to N pixels, if image tokens depend on the size, as in Qwen-VL (default: "
            "the preset's).",
        ),
    ] = None
    min_pixels: Annotated[
        int | None,
        typer.Option(metavar="N", help="Enlarge smaller pictures to N pixels, likewise."),
    ] = None
    revision: Annotated[
        str | None, typer.Option(metavar="REVISION", help="Model's branch, tag or commit (default: main).")
    ] = None
    offline: Offline = False
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code",
            help="Run a model's own Python code, if transformers lacks the model; the structure must be a usual one: "
            "not MiniCPM-V, Molmo or Phi-3.5-vision.",
        ),
    ] = False


@dataclass(frozen=True)
class PathOptions:
    """Further paths, and which part of the pictures to take."""

    title: ClassVar[str] = "Pictures"

    recursive: Recursive = False
    files_from: Annotated[
        str | None,
        typer.Option("--files-from", metavar="FILE", help="Read more paths from FILE, one per line; - is stdin."),
    ] = None
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Take only the first N pictures.")] = None
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Take part I of N, for N machines: 1/8, ..., 8/8."),
    ] = None


@dataclass(frozen=True)
class SelectionOptions(PathOptions):
    """Options for choosing pictures, in addition to the paths."""

    image_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Column with pictures, or their extension in a .tar file; several: shown together (default: by type).",
        ),
    ] = None
    id_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column that names the rows (default: row numbers).")
    ] = None
    allow_private: AllowPrivate = False


@dataclass(frozen=True)
class GroupOptions(SelectionOptions):
    """Options for choosing pictures, and whether they are shown together."""

    together: Annotated[
        bool, typer.Option("--together", help="Show all pictures at once: one text about all of them.")
    ] = False


@dataclass(frozen=True)
class OutputOptions:
    """Where texts go, what is repeated, and how much is printed."""

    title: ClassVar[str] = "Output"

    output: RecordsFile = None
    output_format: Annotated[
        FolderFormat | None, typer.Option(help="Format of the folder, per file of a data set.")
    ] = None
    sidecar: Annotated[bool, typer.Option("--sidecar", help="Write a text file next to each picture.")] = False
    caption_extension: Annotated[str, typer.Option(metavar=".EXT", help="Extension of these text files.")] = ".txt"
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", metavar="DIR", help="Write one text file per picture into this folder."),
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start again: replace records and text files.")] = False
    retry_errors: RetryErrors = False
    fail_fast: FailFast = False
    json: Annotated[bool, typer.Option("--json", help="Print one JSON record per picture.")] = False
    no_stream: Annotated[bool, typer.Option("--no-stream", help="Print each text when it is complete.")] = False
    quiet: Quiet = False
    verbose: Verbose = 0


@dataclass(frozen=True)
class AnswerOutputOptions(OutputOptions):
    """Where answers go; those to a file of questions have a format of their own."""

    output_format: Annotated[
        AnswerFormat | None,
        typer.Option(help="Format of the folder, per file of a data set; llava: answers to --questions."),
    ] = None  # type: ignore[assignment] # wider, and read only, as the class is frozen


@dataclass(frozen=True)
class WorkerOptions:
    """How many pictures are decoded at once, and where."""

    title: ClassVar[str] = "Speed"

    batch_size: BatchSizeOption = None
    engine: Annotated[Engine, typer.Option(help="Decode on this machine, or on a Ray cluster (extra `ray`).")] = "local"
    workers: Annotated[int | None, typer.Option(metavar="N", min=1, help="Ray workers (default: 1 per GPU, or 1).")] = (
        None
    )

    def __post_init__(self) -> None:
        if self.engine == "local" and self.workers is not None:
            raise SettingsError("--workers is for --engine ray")


@dataclass(frozen=True)
class EngineOptions(WorkerOptions):
    """How many pictures are decoded at once, where, and whether compiled."""

    compile: Annotated[
        bool,
        typer.Option("--compile", help="Compile the decoding steps: a slow start, then faster (sira and greedy)."),
    ] = False
