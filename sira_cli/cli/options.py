"""Options that several commands share: one spelling everywhere.

A group is a dataclass of annotated fields, for `with_options` (`cli/option_groups.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from sira_cli.cli.option_values import (
    ColorBy,
    Dtype,
    Engine,
    OnLoop,
    OutputFormat,
    Quantization,
    complete_method,
    complete_preset,
    read_batch_size,
)
from sira_cli.errors import SettingsError
from sira_cli.methods import METHODS


def _other_settings() -> str:
    """List the settings of methods that have no option of their own, for the help of --set."""
    named = {
        name: [setting for setting in method.own_settings() if setting not in ("alpha", "beta")]
        for name, method in METHODS.items()
    }
    return ", ".join(f"{setting} ({name})" for name, settings in named.items() for setting in settings)


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
        help="Show messages of the libraries; -vv also shows tracebacks.",
    ),
]

Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Show errors only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")]
BatchSizeOption = Annotated[
    Any,
    batch_size_option(
        "Number of pictures decoded together; auto: as many as fit into memory (default: auto on a GPU, else 1)."
    ),
]

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")]
RetryErrors = Annotated[bool, typer.Option("--retry-errors", help="Try again what failed in an earlier run.")]
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
        help="Write records to FILE.jsonl or into a folder; .csv and .parquet are made from such records.",
    ),
]

_PICTURES = "Pictures, folders, globs, URIs, URLs, or .tar, .parquet and .arrow files; - reads one picture from stdin."
Paths = Annotated[list[str] | None, typer.Argument(metavar="PATH", help=_PICTURES, show_default=False)]
Images = Annotated[list[str] | None, typer.Argument(metavar="IMAGE", help=_PICTURES, show_default=False)]
Question = Annotated[str | None, typer.Option("-q", "--question", help="Question to ask about each picture.")]
Prompt = Annotated[str | None, typer.Option("--prompt", help="Prompt for the model (default: the preset's).")]
ColumnsPrompt = Annotated[
    str | None,
    typer.Option("--prompt", help="Prompt for the model; {NAME} stands for a column (default: the preset's)."),
]
Colors = Annotated[ColorBy, typer.Option("--color-by", help="Score that colours the words of a text on a terminal.")]


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
        typer.Option("-m", "--model", metavar="MODEL", help="Hugging Face model id or folder, instead of a preset."),
    ] = None
    revision: Annotated[
        str | None, typer.Option(metavar="REVISION", help="Branch, tag or commit of the model (default: main).")
    ] = None
    device: Annotated[
        str,
        typer.Option(metavar="DEVICE", help="Device: auto (several GPUs if one is too small), cpu, cuda, cuda:1, mps."),
    ] = "auto"
    dtype: Annotated[Dtype | None, typer.Option(help="Precision of the weights (default: the preset's).")] = None
    max_pixels: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Shrink larger pictures to N pixels, for models whose image tokens follow from the size, such as "
            "Qwen-VL (default: the preset's).",
        ),
    ] = None
    min_pixels: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Enlarge smaller pictures to N pixels, for such models (default: the preset's)."
        ),
    ] = None
    quantization: Annotated[
        Quantization | None,
        typer.Option(help="Load the language layers in fewer bits (extra `quant`): 4bit is nf4, computed in bfloat16."),
    ] = None
    offline: Annotated[bool, typer.Option("--offline", help="Never contact the Hugging Face hub.")] = False
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code",
            help="Run Python code that comes with a model that transformers does not have. Only models of the usual "
            "structure then work: not MiniCPM-V, Molmo or Phi-3.5-vision.",
        ),
    ] = False


@dataclass(frozen=True)
class DecodingOptions:
    """How the next token is picked. What is not given comes from the preset or from the method."""

    title: ClassVar[str] = "Decoding"

    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=complete_method,
            help=f"Decoding method: {', '.join(METHODS)}; caption, ask and eval take several, with commas between, "
            "or all.",
        ),
    ] = "sira"
    k: Annotated[int | None, typer.Option(help="Number of layers after the fork, K (default: the preset's).")] = None
    alpha: Annotated[
        float | None, typer.Option(help="Contrast strength (default: the preset's for sira, else the method's).")
    ] = None
    beta: Annotated[
        float | None,
        typer.Option(help="Plausibility cut-off, from 0 to 1 (default: the method's; sira has none)."),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help=f"Any other setting of the method: {_other_settings()}."),
    ] = None
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System prompt (default: the preset's, or the chat template's).")
    ] = None
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Length limit of a text, in tokens (default: the preset's).")
    ] = None
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature; 0 takes the best token (default: the preset's).")
    ] = None
    top_p: Annotated[
        float | None, typer.Option(help="Sample from this share of the probability (default: the preset's).")
    ] = None
    seed: Annotated[int | None, typer.Option(help="Random seed for sampling (default: the preset's).")] = None
    num_beams: Annotated[int | None, typer.Option(help="Number of search beams (default: the preset's).")] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(help="Make tokens of the text so far less likely; above 1, such as 1.1 (default: off)."),
    ] = None
    no_repeat_ngram_size: Annotated[
        int | None, typer.Option(metavar="N", help="Never repeat N tokens in a row (default: off).")
    ] = None
    on_loop: Annotated[
        OnLoop | None,
        typer.Option(help="End a text that repeats itself, and keep it, trim it or decode it again (default: off)."),
    ] = None
    think: Annotated[
        bool | None,
        typer.Option(
            "--think/--no-think",
            help="Let the model reason before it answers, apart from the text (default: the preset's, off).",
        ),
    ] = None


@dataclass(frozen=True)
class TextOptions:
    """What is done to a text once it is decoded. What is not given comes from the preset's `text`."""

    title: ClassVar[str] = "Text"

    prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Put this before each text, such as a trigger word.")
    ] = None
    suffix: Annotated[str | None, typer.Option(metavar="TEXT", help="Put this behind each text.")] = None
    max_sentences: Annotated[int | None, typer.Option(metavar="N", help="Cut each text off behind N sentences.")] = None
    complete_sentences: Annotated[
        bool | None,
        typer.Option(
            "--complete-sentences/--no-complete-sentences",
            help="Drop the unfinished last sentence of a text that --max-new-tokens ended.",
        ),
    ] = None


@dataclass(frozen=True)
class PathOptions:
    """Which paths, beside those of the command line, and which part of what they name."""

    title: ClassVar[str] = "Pictures"

    recursive: Annotated[bool, typer.Option("-r", "--recursive", help="Include subfolders.")] = False
    files_from: Annotated[
        str | None,
        typer.Option("--files-from", metavar="FILE", help="Read more paths from FILE, one per line; - is stdin."),
    ] = None
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Take only the first N pictures.")] = None
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Take part I of N, to share the work among N machines: 1/8, ..., 8/8."),
    ] = None


@dataclass(frozen=True)
class SelectionOptions(PathOptions):
    """Which pictures, beside the paths."""

    image_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Column with the pictures, or their extension in a .tar file (default: found by type)."
        ),
    ] = None
    id_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column that names the rows of a table (default: their numbers).")
    ] = None
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="Download pictures from addresses that are not public, too.")
    ] = False


@dataclass(frozen=True)
class OutputOptions:
    """Where texts go, what is done again, and how much is said."""

    title: ClassVar[str] = "Output"

    output: RecordsFile = None
    output_format: Annotated[
        OutputFormat | None,
        typer.Option(help="What to write into a folder per file of a data set; llava: answers to --questions."),
    ] = None
    sidecar: Annotated[bool, typer.Option("--sidecar", help="Write a text file beside each picture.")] = False
    caption_extension: Annotated[str, typer.Option(metavar=".EXT", help="File extension of these text files.")] = ".txt"
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", metavar="DIR", help="Write the text files into this folder instead.")
    ] = None
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew: replace existing records and text files.")
    ] = False
    retry_errors: RetryErrors = False
    fail_fast: FailFast = False
    json: Annotated[bool, typer.Option("--json", help="Print one JSON record per picture.")] = False
    no_stream: Annotated[bool, typer.Option("--no-stream", help="Print each text when it is complete.")] = False
    quiet: Quiet = False
    verbose: Verbose = 0


@dataclass(frozen=True)
class WorkerOptions:
    """How many pictures are decoded at once, and where."""

    title: ClassVar[str] = "Speed"

    batch_size: BatchSizeOption = None
    engine: Annotated[
        Engine, typer.Option(help="Where to decode: on this machine, or on a Ray cluster (extra `ray`).")
    ] = "local"
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of Ray workers (default: one per GPU, or one).")
    ] = None

    def __post_init__(self) -> None:
        if self.engine == "local" and self.workers is not None:
            raise SettingsError("--workers is for --engine ray")


@dataclass(frozen=True)
class EngineOptions(WorkerOptions):
    """How many pictures are decoded at once, where, and how fast."""

    compile: Annotated[
        bool,
        typer.Option("--compile", help="Compile the decoding steps: a slow start, then faster (sira and greedy)."),
    ] = False
