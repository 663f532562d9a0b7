"""`sira calibrate`: what a method has to know about a model, made once. A module per command."""

from __future__ import annotations

import typer

app = typer.Typer(
    help="Make once what a method has to know about a model.", no_args_is_help=True, rich_markup_mode=None
)
