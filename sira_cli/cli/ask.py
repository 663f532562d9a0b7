"""`sira ask`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from sira_cli.cli.options.groups import Paths, RunOptions, with_options
from sira_cli.cli.pictures import run_pictures
from sira_cli.errors import SettingsError

EXAMPLES = """
sira ask photo.jpg "Is there a dog in the image?"
sira ask photos/ "Is there a dog?" --choices Yes,No -o answers.jsonl
sira ask photos/ --questions questions.jsonl -o answers.jsonl -b 8
"""


@with_options("verify")
def ask(
    *,
    paths: Paths = None,
    question: Annotated[
        str | None, typer.Argument(help="The question to ask about each picture.", show_default=False)
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Questions from a .jsonl, .json, .csv, .tsv or .parquet file about pictures in PATH.",
        ),
    ] = None,
    choices: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Print the likeliest of these answers.")
    ] = None,
    options: RunOptions,
) -> None:
    """Answer a question about pictures."""
    given = tuple(choice.strip() for choice in choices.split(",")) if choices is not None else ()
    if questions is not None:
        paths, question = [*(paths or []), *([] if question is None else [question])], None
    elif question is None:
        raise SettingsError("Missing argument 'QUESTION': the question to ask, or --questions FILE")
    else:
        _check_order(paths or [], question)
    run_pictures("ask", paths or [], question, options, choices=given, questions=questions)


def _check_order(paths: list[str], question: str) -> None:
    """Check that one question comes last."""
    if os.path.exists(question):  # noqa: PTH110 (a Path would raise for a long question)
        kind = "folder" if os.path.isdir(question) else "file"  # noqa: PTH112
        raise SettingsError(f"the question comes last, but {question} is a {kind}: add the question in quotes")
    for path in paths:
        if path.rstrip().endswith("?") and not os.path.lexists(path):
            raise SettingsError(f"{path!r} is not a picture: give one question at a time, after pictures")
