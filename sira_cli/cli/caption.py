"""`sira caption`."""

from __future__ import annotations

from typing import Annotated

import typer

from sira_cli.cli.options.groups import ColumnsPrompt, Paths, RunOptions, with_options
from sira_cli.cli.pictures import run_pictures

EXAMPLES = """
sira caption photos/ -r -o photos/captions.jsonl -b 8 --verify flag
"""


@with_options()
def caption(
    *,
    paths: Paths = None,
    options: RunOptions,
    prompt: ColumnsPrompt = None,
    words: Annotated[
        bool, typer.Option("--words", rich_help_panel="Text", help="Score how well the picture supports each word.")
    ] = False,
) -> None:
    """Describe pictures."""
    run_pictures("caption", paths or [], prompt, options, words=words)
