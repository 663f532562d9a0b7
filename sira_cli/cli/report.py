"""`sira report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sira_cli.cli.console import note, set_verbosity
from sira_cli.cli.options import Verbose, check_file
from sira_cli.errors import SettingsError

EXAMPLES = """
sira report trace.jsonl -o report.html
sira report greedy.jsonl sira.jsonl -o both.html
"""


def report(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE", help="Files that `sira trace` wrote.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The page to write: FILE.html.")],
    title: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Title of the page (default: the picture's name).",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Show errors only.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Make a page to look at traces: one HTML file, several traces side by side."""
    set_verbosity(quiet, verbose)
    if any(output.resolve() == path.resolve() for path in traces):
        raise SettingsError(f"-o {output}: is one of the traces, expected a new file: -o FILE.html")
    check_file("--output", output)
    from sira_cli.analysis.page.page import render
    from sira_cli.analysis.trace.read import read_traces
    from sira_cli.files import replacing

    found = [trace for path in traces for trace in read_traces(path)]
    page = render(found, title).encode("utf-8", "backslashreplace")
    with replacing(output) as file:
        file.write(page)
    note(f"{output}: {len(found)} trace{'s' * (len(found) > 1)}, {len(page) / 1e6:.1f} MB; open it in a browser")
