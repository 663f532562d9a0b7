"""Options of `sira eval`: parsed into one object, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from sira_cli.cli.options.common import BatchSizeOption, ModelOptions, Quiet, RetryErrors, Verbose
from sira_cli.cli.options.decoding import DecodingOptions
from sira_cli.cli.terminal.output import check_file
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.eval.benchmark import AnswerFiles


Look = Literal["guide"]  # the second look that changes captions


@dataclass(frozen=True)
class EvalOptions:
    """Sources of answers, and output of figures."""

    title: ClassVar[str] = "Answers and figures"

    images: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Ask about the pictures in this folder.")] = None
    answers: Annotated[
        list[str] | None,
        typer.Option(metavar="[LABEL=]FILE...", help="Score these answers, sira's own or others."),
    ] = None
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME.]KEY=VALUE", help="An option of a benchmark: rule=vcd, or pope.rule=vcd."),
    ] = None
    verify: Annotated[
        Look | None, typer.Option(help="Also caption under each --method with a second look (CHAIR, AMBER).")
    ] = None
    batch_size: BatchSizeOption = None
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Only N questions per file (POPE), or N pictures."),
    ] = None
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Ask only part I of N; score all with --answers."),
    ] = None
    no_controls: Annotated[
        bool, typer.Option("--no-controls", help="Leave out the controls greedy and greedy+apc.")
    ] = False
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FOLDER",
            help="Keep answers here, to resume a stopped run, and report.json.",
        ),
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start again: replace existing answers.")] = False
    retry_errors: RetryErrors = False
    details: Annotated[Path | None, typer.Option(metavar="FILE.jsonl", help="Write how each answer was counted.")] = (
        None
    )
    paper: Annotated[bool, typer.Option("--paper", help="Also show the paper's figures for the same model.")] = False
    json: Annotated[bool, typer.Option("--json", help="Print JSON: one object per benchmark.")] = False
    quiet: Quiet = False
    verbose: Verbose = 0


def check(
    options: EvalOptions, model: ModelOptions, decoding: DecodingOptions, questions: Sequence[Path] = ()
) -> Sequence[AnswerFiles]:
    """Check the options for one benchmark, and return the files to score; empty if the model is to be asked."""
    if options.images is not None and options.answers:
        raise SettingsError("give --images FOLDER to ask the model, or --answers FILE to score answers: one of the two")
    if options.answers and (idle := _of_runs(options, model, decoding)):
        raise SettingsError(f"{idle[0]} is for runs: leave it out, or give --images instead of --answers")
    _check(options)
    if not options.answers:
        return ()
    from sira_cli.eval.answers import find_files

    return find_files(options.answers, questions)


def check_folder(paths: Sequence[Path], options: EvalOptions) -> Path:
    """Check the options for a folder of benchmarks, and return it."""
    if len(paths) != 1:
        raise SettingsError(
            "give one benchmark's files with --images FOLDER to ask the model or --answers FILE to score answers, "
            f"or one PATH, a folder of benchmarks: got {len(paths)}"
        )
    single = ("images", "answers", "shard", "details")
    if given := [name for name in single if getattr(options, name)]:
        raise SettingsError(
            f"--{given[0]} is for one benchmark: name it, and give --images or --answers; or leave it out"
        )
    _check(options)
    if not paths[0].is_dir():
        raise SettingsError(f"{paths[0]}: is not a folder")
    return paths[0]


def _of_runs(options: EvalOptions, model: ModelOptions, decoding: DecodingOptions) -> list[str]:
    """Return the given options that have no effect on answers from files. (--paper needs the model's name.)"""
    names = ["verify", "batch_size", "shard", "overwrite", "retry_errors"]
    idle: list[tuple[Any, Field[Any]]] = [(options, field) for field in fields(options) if field.name in names]
    idle += [(model, field) for field in fields(model) if field.name not in ("preset", "model")]
    idle += [(decoding, field) for field in fields(decoding)]
    given = [field.name for group, field in idle if getattr(group, field.name) != field.default]
    return ["--set" if name == "settings" else f"--{name.replace('_', '-')}" for name in given]


def _check(options: EvalOptions) -> None:
    if options.shard is not None:
        from sira_cli.pictures.find import Shard

        Shard.parse(options.shard)
    if options.details is not None:
        _check_details(options.details, options.output)
    if options.output is not None and (options.output.is_file() or options.output.suffix == ".jsonl"):
        raise SettingsError(f"--output {options.output}: expected a folder: a run writes several files")
    if options.shard is not None and options.output is None:
        raise SettingsError("--shard needs --output FOLDER")


def _check_details(path: Path, output: Path | None) -> None:
    """Check that --details replaces only earlier details, not answers or a benchmark's files."""
    if path.parent != output or path.is_dir():  # the output folder itself is created if needed
        check_file("--details", path)
    if path.suffix != ".jsonl":
        raise SettingsError(f"--details {path}: expected a name that ends in .jsonl")
    if path.exists():
        from sira_cli.pictures.rows import read_rows

        _, row = next(read_rows(path), ("", {"method": "", "part": ""}))
        if not {"method", "part"} <= row.keys() or "schema" in row:
            raise SettingsError(f"--details {path}: holds something other than details of sira eval: give another")
