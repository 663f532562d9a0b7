"""`sira report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sira_cli.cli.options.groups import Overwrite, Quiet, Verbose
from sira_cli.cli.terminal.console import Progress, note, set_verbosity
from sira_cli.cli.terminal.output import check_file
from sira_cli.errors import SettingsError

EXAMPLES = """
sira report captions.jsonl
sira report sira.jsonl --with greedy.jsonl -o both.html
sira report trace.jsonl -o trace.html
"""


def report(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="Records, or traces: one or several files or folders.", show_default=False),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="PAGE.html", help="The page (default: FILE.html).")
    ] = None,
    other: Annotated[
        Path | None, typer.Option("--with", metavar="OTHER.jsonl", help="Compare with the records of another run.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Show only the N most doubtful records.")
    ] = None,
    title: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Title of the page (default: the picture's or file's name).")
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Make an HTML page that needs no server: records as a gallery, the doubtful first, or traces.

    Texts can be corrected in a gallery, and saved as a file for sira export --corrections.
    """
    set_verbosity(quiet, verbose)
    page = output or Path(f"{files[0].with_suffix('')}.html")
    check_file("--output", page)
    if page.suffix.lower() not in (".html", ".htm"):
        raise SettingsError(f"--output {page}: expected a file that ends in .html")
    from sira_cli.analysis.page import make_page
    from sira_cli.files import write_whole

    with Progress.shown("pictures", 0) as progress:
        made = make_page(*files, other=other, title=title, limit=limit, on_picture=progress.reach)
    html = made.html.encode("utf-8", "backslashreplace")
    write_whole(page, html, overwrite=overwrite)
    note(f"{page}: {made.shows}, {len(html) / 1e6:.1f} MB; open it in a browser")
    for missing in made.notes:
        note(missing)
