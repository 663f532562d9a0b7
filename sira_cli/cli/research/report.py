"""`sira report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sira_cli.cli.options.common import Overwrite, Quiet, Verbose
from sira_cli.cli.terminal.console import note, set_verbosity
from sira_cli.cli.terminal.output import check_file
from sira_cli.errors import SettingsError

EXAMPLES = """
sira report trace.jsonl -o report.html
sira report greedy.jsonl sira.jsonl -o both.html
"""


def report(
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE", help="Files that `sira trace` wrote, or folders of such files."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Write the page to FILE.html.")],
    title: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Title of the page (default: the picture's name).",
        ),
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Make one HTML page that shows traces, several side by side."""
    set_verbosity(quiet, verbose)
    check_file("--output", output)
    from sira_cli.analysis.page.page import render
    from sira_cli.analysis.trace.read import read_traces, trace_files
    from sira_cli.files import write_whole

    files = [file for path in traces for file in trace_files(path)]
    if any(output.resolve() == file.resolve() for file in files):
        raise SettingsError(f"-o {output}: is one of the traces, expected a new file: -o FILE.html")
    found = [trace for file in files for trace in read_traces(file)]
    page = render(found, title).encode("utf-8", "backslashreplace")
    write_whole(output, page, overwrite=overwrite)
    note(f"{output}: {len(found)} trace{'s' * (len(found) > 1)}, {len(page) / 1e6:.1f} MB; open it in a browser")
