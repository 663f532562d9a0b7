"""What is made of records: `sira compare`, `sira report` and `sira export`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sira_cli.cli.options.groups import Group, Overwrite, argument, option, with_options
from sira_cli.cli.terminal.console import Progress, note, say
from sira_cli.cli.terminal.output import check_file, new_list, table_console
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.analysis.compare import Comparison, Pair

ENDINGS = {
    "output": ".jsonl",
    "csv": ".csv",
    "parquet": ".parquet",
    "exiftool": "",
}  # of the files that `export` writes


@with_options(
    """
sira compare captions-greedy.jsonl captions-sira.jsonl
sira compare monday.jsonl tuesday.jsonl --json
""",
    loudness="",
)
def compare(
    a: Path = argument("A.jsonl", "Records of a run.", required=True),
    b: Path = argument("B.jsonl", "Records of another run.", required=True),
    json: bool = option(False, "Print the whole comparison as JSON.", "--json"),
) -> None:
    """Show what differs between two runs over the same pictures, per picture and in total."""
    from sira_cli.analysis import compare as comparing

    comparison = comparing.compare(a, b)
    if json:
        print(dumps(comparison.to_record(), ensure_ascii=False))
        return
    for pair in comparison.changed:
        _print_pair(pair)
    _print_sums(comparison)


def _print_pair(pair: Pair) -> None:
    """Print a picture's name, and both texts as one with marked differences: by colour, else as in git."""
    from rich.text import Text

    from sira_cli.analysis.compare import differences

    console = table_console()
    print(pair.name)
    if not pair.ok:
        for name, record in (("A", pair.a), ("B", pair.b)):
            print(f"  {name}: {record['text'] or record['error']}")
    elif console.color_system is None:
        print(f"  {pair.marked()}")
    else:
        line = Text("  ")
        for equal, a, b in differences(pair.a["text"], pair.b["text"]):
            if equal:
                line.append(b)
            else:
                line.append(a, "red strike").append(b, "green bold")
        console.print(line)
    print()


def _print_sums(comparison: Comparison) -> None:
    a, b = (file.path.stem for file in comparison.files)
    if a == b:
        a, b = (str(file.path) for file in comparison.files)
    only_a = len(comparison.only_a)
    only_b = len(comparison.only_b)
    rows: dict[str, tuple[Any, Any]] = {
        **comparison.settings,
        "pictures": (comparison.both + only_a, comparison.both + only_b),
        "only in this run": (only_a, only_b),
        **{f"ended by {reason}": counts for reason, counts in comparison.finish_reasons.items()},
        **{name: (f"{first:.1f}", f"{second:.1f}") for name, (first, second) in comparison.figures.items()},
    }
    table = new_list("", a, b)
    for name, values in rows.items():
        table.add_row(name, *map(_shown, values))
    table_console().print(table)
    print(f"\n{comparison.equal} of {comparison.both} texts are equal")


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


@with_options(
    """
sira report captions.jsonl
sira report sira.jsonl --with greedy.jsonl -o both.html
sira report trace.jsonl -o trace.html
"""
)
def report(
    files: list[Path] = argument("FILE", "Records, or traces: one or several files or folders.", required=True),
    output: Path | None = option(None, "The page (default: FILE.html).", "-o", "--output", metavar="PAGE.html"),
    other: Path | None = option(None, "Compare with the records of another run.", "--with", metavar="OTHER.jsonl"),
    limit: int | None = option(None, "Show only the N most doubtful records.", min=1, metavar="N"),
    overwrite: Overwrite = False,
) -> None:
    """Make an HTML page that needs no server: records as a gallery, the doubtful first, or traces.

    Texts can be corrected in a gallery, and saved as a file for sira export --corrections.
    """
    page = output or Path(f"{files[0].with_suffix('')}.html")
    check_file("--output", page)
    if page.suffix.lower() not in (".html", ".htm"):
        raise SettingsError(f"--output {page}: expected a file that ends in .html")
    from sira_cli.analysis.page import make_page
    from sira_cli.files import write_whole

    with Progress.on_terminal("pictures", 0) as progress:
        made = make_page(*files, other=other, limit=limit, on_picture=progress.reach)
    html = made.html.encode("utf-8", "backslashreplace")
    write_whole(page, html, overwrite=overwrite)
    note(f"{page}: {made.shows}, {len(html) / 1e6:.1f} MB; open it in a browser")
    for missing in made.notes:
        note(missing)


@dataclass(frozen=True)
class ExportOptions(Group):
    """The forms that records get, and where they go."""

    best: bool = option(False, "Only the best supported of a picture's captions, as --verify best.", "--best")
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


@with_options(
    """
sira export captions.jsonl --csv captions.csv
sira export checks.jsonl --best -o best.jsonl
sira export captions.jsonl --corrections corrections.jsonl --sidecar
sira export captions.jsonl --exiftool args.txt && exiftool -@ args.txt
"""
)
def export(
    *, records: Path = argument("FILE.jsonl", "Records of caption, ask or check.", required=True), given: ExportOptions
) -> None:
    """Write records in other forms: tables, text files, or arguments for ExifTool.

    The sidecars of ExifTool are photo.jpg.xmp, or photo.xmp where that exists. Keywords are added to those of the
    picture and its sidecars, and a description that one of them has stays.
    """
    inputs = {path.resolve() for path in (records, given.corrections) if path is not None}
    targets = {name: path for name in ENDINGS if (path := getattr(given, name)) is not None}
    for name, path in targets.items():
        if not path.name.lower().endswith(ENDINGS[name]):
            raise SettingsError(f"--{name} {path}: expected a file that ends in {ENDINGS[name]}")
        if path.resolve() in inputs:
            raise SettingsError(f"--{name} {path}: is read by this command: give another file")
        check_file(f"--{name}", path, given.overwrite)
    if not targets and not given.sidecar and given.output_dir is None:
        raise SettingsError(f"{records}: nothing to write: give -o, --csv, --parquet, --sidecar or --exiftool")
    from sira_cli.analysis.export import Export

    found = Export(records, given.corrections, best=given.best)
    if given.output is not None:
        found.write_records(given.output)
    for table in filter(None, (given.csv, given.parquet)):
        found.write_table(table)
    for name, path in targets.items():
        if name != "exiftool":
            note(f"records in {path}: {len(found)}")
    if given.sidecar or given.output_dir is not None:
        counts = found.write_sidecars(given.caption_extension, given.output_dir, overwrite=given.overwrite)
        _note_all(counts, "text files")
    args = given.exiftool
    if args is not None:
        _note_all(found.write_arguments(args, replace=given.replace), f"texts in {args}, for `exiftool -@ {args}`")
    if given.corrections is not None:
        for name, reason in found.missed.items():
            say(f"{name}: its correction did not arrive: {reason}")
        note(f"corrections: {len(found.corrections) - len(found.missed)} of {len(found.corrections)} arrived")
        if found.missed:
            raise typer.Exit(3)


def _note_all(counts: Counter[str], what: str) -> None:
    from sira_cli.analysis.export import WRITTEN

    note(f"{what}: {counts.pop(WRITTEN)}")
    for reason, number in counts.items():
        note(f"left out: {reason}: {number}")
