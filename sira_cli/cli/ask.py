"""`sira ask`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sira_cli.cli.options import DecodingOptions, ModelOptions, OutputOptions, with_options
from sira_cli.cli.pictures import run_pictures
from sira_cli.errors import SettingsError


@with_options(model=ModelOptions, decoding=DecodingOptions, output=OutputOptions)
def ask(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH", help="Pictures, folders of pictures; - reads one from stdin.", show_default=False
        ),
    ],
    question: Annotated[str, typer.Argument(help="One question about each picture.", show_default=False)],
    model: ModelOptions,
    decoding: DecodingOptions,
    output: OutputOptions,
) -> None:
    """Answer a question about pictures."""
    if Path(question).is_file():
        raise SettingsError(f"the question comes last, but {question} is a file: add the question in quotes")
    run_pictures("ask", paths, question, model, decoding, output)
