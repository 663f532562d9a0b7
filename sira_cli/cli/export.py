"""`sira export`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from sira_cli.cli.options.groups import Quiet, Verbose
from sira_cli.cli.terminal.console import note, set_verbosity
from sira_cli.cli.terminal.output import check_file
from sira_cli.errors import SettingsError

EXAMPLES = """
sira export captions.jsonl --csv captions.csv
sira export captions.jsonl --corrections corrections.jsonl --sidecar
sira export captions.jsonl --exiftool args.txt && exiftool -@ args.txt
"""


def export(
    records: Annotated[
        Path, typer.Argument(metavar="FILE.jsonl", help="Records of caption, ask or check.", show_default=False)
    ],
    corrections: Annotated[
        Path | None,
        typer.Option("--corrections", metavar="FILE", help="First put in the texts corrected on the report's page."),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE.jsonl", help="Write records.")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE.csv", help="Write a table.")] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE.parquet", help="Write a table (pyarrow).")
    ] = None,
    sidecar: Annotated[bool, typer.Option("--sidecar", help="Write a text file next to each picture.")] = False,
    caption_extension: Annotated[str, typer.Option(metavar=".EXT", help="Extension of the text files.")] = ".txt",
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", metavar="DIR", help="Write these text files into a folder.")
    ] = None,
    exiftool: Annotated[
        Path | None,
        typer.Option("--exiftool", metavar="ARGS", help="Write arguments for ExifTool, which makes XMP sidecars."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="With --exiftool: replace descriptions that exist.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files, also text files.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Write records in other forms: tables, text files, or arguments for ExifTool.

    The sidecars of ExifTool are photo.jpg.xmp, or photo.xmp where that exists. Keywords are added to those of the
    picture and its sidecars, and a description that one of them has stays.
    """
    set_verbosity(quiet, verbose)
    files = {"--output": output, "--csv": csv, "--parquet": parquet, "--exiftool": exiftool}
    targets = {option: path for option, path in files.items() if path is not None}
    _check(records, corrections, targets, overwrite)
    sidecar = sidecar or output_dir is not None
    if not targets and not sidecar:
        raise SettingsError(f"{records}: nothing to write: give -o, --csv, --parquet, --sidecar or --exiftool")
    from sira_cli.analysis.export import Export

    found = Export(records, corrections)
    if output is not None:
        found.write_records(output)
    for table in filter(None, (csv, parquet)):
        found.write_table(table)
    for option, path in targets.items():
        if option != "--exiftool":
            note(f"records in {path}: {len(found)}")
    if sidecar:
        _note_all(found.write_sidecars(caption_extension, output_dir, overwrite=overwrite), "text files")
    if exiftool is not None:
        _note_all(
            found.write_arguments(exiftool, replace=replace), f"texts in {exiftool}, for `exiftool -@ {exiftool}`"
        )


def _check(records: Path, corrections: Path | None, targets: dict[str, Path], overwrite: bool) -> None:
    """Check that no output has a name for another form, or replaces an input or, unless asked, an existing file."""
    inputs = {path.resolve() for path in (records, corrections) if path is not None}
    for option, path in targets.items():
        ending = {"--output": ".jsonl", "--csv": ".csv", "--parquet": ".parquet"}.get(option)
        if ending is not None and path.suffix.lower() != ending:
            raise SettingsError(f"{option} {path}: expected a file that ends in {ending}")
        if path.resolve() in inputs:
            raise SettingsError(f"{option} {path}: is read by this command: give another file")
        check_file(option, path, overwrite)


def _note_all(counts: Counter[str], what: str) -> None:
    from sira_cli.analysis.export import WRITTEN

    note(f"{what}: {counts.pop(WRITTEN)}")
    for reason, number in counts.items():
        note(f"left out: {reason}: {number}")
