"""What commands print of results, tables and files; imports rich only when it is needed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.cli.terminal.console import note, verbosity, with_options_named
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sira_cli.look.claims import Verify
    from sira_cli.models.preset import Preset
    from sira_cli.models.texts import Answer
    from sira_cli.run.records import Result

MORE_WORDS = "--objects FILE: your own words; --objects ask: the model's"


def table_console() -> Console:
    """Return a console for tables on stdout, where brackets are brackets; in a file, nothing is wrapped."""
    from rich.console import Console

    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 10_000)


def new_table(*names: str, figures: Iterable[str] = (), title: str | None = None, tight: bool = False) -> Table:
    """Return an empty table: columns of names, then columns of figures, which are never cut off; `tight`: narrow."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(*names, box=SIMPLE_HEAD, title=title, title_justify="left", title_style="")
    table.collapse_padding = tight
    table.pad_edge = not tight
    for head in figures:
        table.add_column(head, justify="right", overflow="fold")
    return table


def new_list(*names: str, edge: bool = True) -> Table:
    """Return an empty table without lines; rows begin with a space if it has an `edge`."""
    from rich.table import Table

    return Table(*names, box=None, pad_edge=edge, header_style="bold")


def print_tables(parts: Iterable[Any]) -> None:
    """Print the tables and lines of a report's `table()`."""
    out = table_console()
    for part in parts:
        if isinstance(part, str):
            out.print(with_options_named(part), soft_wrap=True)
            continue
        for each in _folded(part, out.width):
            table = new_table(*each.names, figures=each.figures, title=each.title, tight=each.tight)
            for head in each.words:
                table.add_column(head)
            for section in each.sections:
                for number, row in enumerate(section, start=1):
                    style = "bold" if row is each.chosen or len(row) == 1 else None
                    table.add_row(*row, style=style, end_section=number == len(section))
            out.print(table)


def _folded(table: Any, width: int) -> list[Any]:
    """Split a table of one column of names into tables that fit a width, each with these names and some figures."""
    heads = [*table.names, *table.figures]
    widths = [_column_width(table, heads, column) for column in range(len(heads))]
    if len(table.names) != 1 or table.words or sum(widths) <= width:
        return [table]
    blocks: list[list[int]] = []  # columns of figures
    used = 0
    for column in range(1, len(heads)):
        if not blocks or used + widths[column] > width:
            blocks.append([])
            used = widths[0]
        blocks[-1].append(column)
        used += widths[column]
    return [_with_columns(table, heads, block) for block in blocks]


def _column_width(table: Any, heads: Sequence[str], column: int) -> int:
    """Return the width of a column with its gap; a cell may have several lines, and a row fewer cells."""
    cells = [heads[column]]
    for section in table.sections:
        cells += [row[column] for row in section if column < len(row)]
    longest = max(len(line) for cell in cells for line in cell.split("\n"))
    return longest + (2 if table.tight else 3)


def _with_columns(table: Any, heads: Sequence[str], columns: Sequence[int]) -> Any:
    """Return a table with the names and some columns of figures only."""
    sections = []
    for section in table.sections:
        sections.append([[row[place] for place in [0, *columns] if place < len(row)] for row in section])
    return replace(table, figures=[heads[place] for place in columns], sections=sections)


def save_plot(report: Any, path: Path) -> None:
    """Write the figure of a report's `draw()`, in the format of the file's suffix."""
    from sira_cli.files import replacing

    if verbosity() < 1:
        logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it logs about its font cache
    with replacing(path) as file:
        report.draw().savefig(file, format=path.suffix.lower().removeprefix("."), dpi=150)


def show_report(report: Any, as_json: bool, path: Path | None = None, plot: Path | None = None) -> None:
    """Print a report, as JSON or as tables, and write it and its figure to files, if these are given."""
    if path is not None:
        report.save(path)
    if as_json:
        print(report.to_json())
    else:
        print_tables(report.table())
    if plot is not None:
        save_plot(report, plot)


def check_file(option: str, file: Path | None, overwrite: bool = True) -> None:
    """Check that a file can be written, before a model is loaded."""
    from sira_cli.files import check_folder, check_unprotected

    if file is None:
        return
    if file.is_dir():
        raise SettingsError(f"{option} {file}: is a folder, expected a file")
    if file.exists() and not overwrite:
        raise SettingsError(f"{option} {file}: exists: give another, or --overwrite")
    check_unprotected(file)
    check_folder(file.parent, f"give another {option}")


def check_plot(path: Path | None, overwrite: bool) -> None:
    """Check the file of --plot, before anything is measured."""
    from sira_cli.analysis.experiment import check_format

    check_file("--plot", path, overwrite)
    if path is not None:
        check_format(path)


def check_preset_file(path: Path | None, overwrite: bool) -> None:
    """Check the file of --write-preset, before anything is measured."""
    check_file("--write-preset", path, overwrite)
    if path is not None and path.suffix not in (".yaml", ".yml"):
        raise SettingsError(f"--write-preset {path}: expected a name that ends in .yaml")


def save_preset(preset: Preset, path: Path, description: str, holds: str) -> None:
    """Write a preset, named after its file, that works from any folder, and report its content."""
    from sira_cli.files import from_home, write_whole
    from sira_cli.models import presets

    folder = from_home(preset.model)
    model = str(folder.resolve()) if folder.is_dir() else preset.model
    changes = {"name": path.stem, "description": description, "model": model}
    write_whole(path, presets.to_yaml(preset.model_copy(update=changes)).encode())
    note(f"{path}: {holds}; use it with --preset {path}")


def note_threshold(verify: Verify, preset: Preset) -> None:
    """Note that a threshold is not measured, and how to measure it."""
    if verify.min_support is None and preset.verify.min_support == type(preset.verify)().min_support:
        threshold = f"the threshold of {verify.threshold(preset):g} is not measured for {preset.model}"
        note(f"{threshold}: `sira calibrate support --controls` finds one without labels; --min-support X sets one")


def unsupported(result: Answer | Result) -> list[Mapping[str, Any]]:
    """Return the objects of a text that the picture does not support."""
    from sira_cli.look import claims

    return claims.unsupported({"objects": result.objects, "verify": result.verify})


def verdict(result: Answer | Result) -> str:
    """Return the second look's verdict on a text, as one line."""
    if result.candidates is not None:
        forbidden = ", ".join(result.forbidden or ()) or "none"
        told = f"looked first at {len(result.candidates)} objects; not supported: {forbidden}"
        if result.added:
            told += f"; not in its first caption: {', '.join(result.added)}"
        return told
    doubted = unsupported(result)
    if doubted:
        named = ", ".join(f"{one['thing']} ({one['support']:.2f})" for one in doubted)
        return f"{_chosen(result)}not supported: {named}"
    if not result.objects:
        return f"second look: nothing was recognised ({MORE_WORDS})"
    count = len(result.objects)
    named = f"all {count} objects" if count > 1 else "the one object"
    return f"{_chosen(result)}second look: supported, {named} that the text names"


def _chosen(result: Answer | Result) -> str:
    """Return the words that say which of several captions a text is; nothing if it is the only one."""
    verify = result.verify or {}
    if verify.get("mode") != "best":
        return ""
    which = "its own caption" if result.draft is None else "a sample"
    return f"the best of {verify['captions']} is {which}; "
