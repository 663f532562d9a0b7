"""`sira caption`."""

from __future__ import annotations

from typing import Annotated

import typer

from sira_cli.cli.options import DecodingOptions, ModelOptions, OutputOptions, with_options
from sira_cli.cli.pictures import run_pictures


@with_options(model=ModelOptions, decoding=DecodingOptions, output=OutputOptions)
def caption(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH", help="Pictures, folders of pictures; - reads one from stdin.", show_default=False
        ),
    ],
    model: ModelOptions,
    decoding: DecodingOptions,
    output: OutputOptions,
    prompt: Annotated[str | None, typer.Option("--prompt", help="What to ask for; default the preset's.")] = None,
) -> None:
    """Describe pictures."""
    run_pictures("caption", paths, prompt, model, decoding, output)
