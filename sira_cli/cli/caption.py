"""`sira caption`."""

from __future__ import annotations

from typing import Annotated

import typer

from sira_cli.cli.options.common import (
    ClipOptions,
    ColumnsPrompt,
    EngineOptions,
    GroupOptions,
    ModelOptions,
    OutputOptions,
    Paths,
)
from sira_cli.cli.options.decoding import MethodsOptions, TextOptions
from sira_cli.cli.options.groups import with_options
from sira_cli.cli.options.schemas import SchemaOptions
from sira_cli.cli.options.verifying import VerifyOptions
from sira_cli.cli.pictures import run_pictures

EXAMPLES = """
sira caption photo.jpg
sira caption photos/ -r -o photos/captions.jsonl -b 8
sira caption photos/ -o captions.jsonl --verify flag
"""


@with_options(
    model=ModelOptions,
    decoding=MethodsOptions,
    text=TextOptions,
    schema=SchemaOptions,
    verify=VerifyOptions,
    selection=GroupOptions,
    clips=ClipOptions,
    engine=EngineOptions,
    output=OutputOptions,
)
def caption(
    *,
    paths: Paths = None,
    model: ModelOptions,
    decoding: MethodsOptions,
    text: TextOptions,
    schema: SchemaOptions,
    verify: VerifyOptions,
    selection: GroupOptions,
    clips: ClipOptions,
    engine: EngineOptions,
    output: OutputOptions,
    prompt: ColumnsPrompt = None,
    words: Annotated[
        bool, typer.Option("--words", rich_help_panel="Text", help="Score how well the picture supports each word.")
    ] = False,
) -> None:
    """Describe pictures."""
    run_pictures(
        "caption",
        paths or [],
        prompt,
        model,
        decoding,
        text,
        selection,
        clips,
        engine,
        output,
        words=words,
        schema=schema,
        verify=verify,
    )
