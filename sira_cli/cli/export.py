"""`sira export`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from sira_cli.cli.options.groups import Quiet, Verbose, option, with_options
from sira_cli.cli.terminal.console import note, set_verbosity
from sira_cli.cli.terminal.output import check_file
from sira_cli.errors import SettingsError

EXAMPLES = """
sira export captions.jsonl --csv captions.csv
sira export captions.jsonl --corrections corrections.jsonl --sidecar
sira export captions.jsonl --exiftool args.txt && exiftool -@ args.txt
"""
ENDINGS = {"output": ".jsonl", "csv": ".csv", "parquet": ".parquet", "exiftool": ""}  # of the files of these options


@dataclass(frozen=True)
class ExportOptions:
    """The forms that records get, and where they go."""

    title: ClassVar[str] = "Options"

    corrections: Path | None = option(None, "First put in the texts corrected on the report's page.", metavar="FILE")
    output: Path | None = option(None, "Write records.", "-o", "--output", metavar="FILE.jsonl")
    csv: Path | None = option(None, "Write a table.", metavar="FILE.csv")
    parquet: Path | None = option(None, "Write a table (pyarrow).", metavar="FILE.parquet")
    sidecar: bool = option(False, "Write a text file next to each picture.", "--sidecar")
    caption_extension: str = option(".txt", "Extension of the text files.", metavar=".EXT")
    output_dir: Path | None = option(None, "Write these text files into a folder.", metavar="DIR")
    exiftool: Path | None = option(None, "Write arguments for ExifTool, which makes XMP sidecars.", metavar="ARGS")
    replace: bool = option(False, "With --exiftool: replace descriptions that exist.", "--replace")
    overwrite: bool = option(False, "Replace existing files, also text files.", "--overwrite")
    quiet: Quiet = False
    verbose: Verbose = 0

    @property
    def targets(self) -> dict[str, Path]:
        """The files to write, by option."""
        return {f"--{name}": path for name in ENDINGS if (path := getattr(self, name)) is not None}

    def check(self, records: Path) -> None:
        """Check that no output has a name for another form, or replaces an input or, unless asked, an existing file."""
        inputs = {path.resolve() for path in (records, self.corrections) if path is not None}
        for name, path in self.targets.items():
            ending = ENDINGS[name[2:]]
            if ending and path.suffix.lower() != ending:
                raise SettingsError(f"{name} {path}: expected a file that ends in {ending}")
            if path.resolve() in inputs:
                raise SettingsError(f"{name} {path}: is read by this command: give another file")
            check_file(name, path, self.overwrite)
        if not self.targets and not self.sidecar and self.output_dir is None:
            raise SettingsError(f"{records}: nothing to write: give -o, --csv, --parquet, --sidecar or --exiftool")


@with_options()
def export(
    *,
    records: Annotated[
        Path, typer.Argument(metavar="FILE.jsonl", help="Records of caption, ask or check.", show_default=False)
    ],
    given: ExportOptions,
) -> None:
    """Write records in other forms: tables, text files, or arguments for ExifTool.

    The sidecars of ExifTool are photo.jpg.xmp, or photo.xmp where that exists. Keywords are added to those of the
    picture and its sidecars, and a description that one of them has stays.
    """
    set_verbosity(given.quiet, given.verbose)
    given.check(records)
    from sira_cli.analysis.export import Export

    found = Export(records, given.corrections)
    if given.output is not None:
        found.write_records(given.output)
    for table in filter(None, (given.csv, given.parquet)):
        found.write_table(table)
    for name, path in given.targets.items():
        if name != "--exiftool":
            note(f"records in {path}: {len(found)}")
    if given.sidecar or given.output_dir is not None:
        counts = found.write_sidecars(given.caption_extension, given.output_dir, overwrite=given.overwrite)
        _note_all(counts, "text files")
    if (args := given.exiftool) is not None:
        _note_all(found.write_arguments(args, replace=given.replace), f"texts in {args}, for `exiftool -@ {args}`")


def _note_all(counts: Counter[str], what: str) -> None:
    from sira_cli.analysis.export import WRITTEN

    note(f"{what}: {counts.pop(WRITTEN)}")
    for reason, number in counts.items():
        note(f"left out: {reason}: {number}")
