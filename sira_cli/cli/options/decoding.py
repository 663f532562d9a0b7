"""Options that decide a text: the method, its settings, and changes to the decoded text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import typer

from sira_cli.cli.options.values import complete_method
from sira_cli.methods import METHODS
from sira_cli.methods.base import Ability

TRACED = [name for name, method in METHODS.items() if Ability.TRACES in method.abilities]


@dataclass(frozen=True)
class DecodingOptions:
    """How the next token is picked. Options that are not given come from the preset or the method."""

    title: ClassVar[str] = "Decoding"

    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=complete_method,
            help=f"{', '.join(METHODS)}.",
        ),
    ] = "sira"
    k: Annotated[int | None, typer.Option(help="Number of layers after the fork, K.")] = None
    alpha: Annotated[float | None, typer.Option(help="Strength of the contrast.")] = None
    max_new_tokens: Annotated[int | None, typer.Option(rich_help_panel="Text", help="Longest text, in tokens.")] = None
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; 0 takes the best token.")] = None
    top_p: Annotated[float | None, typer.Option(help="Sample from this share of the probability.")] = None
    seed: Annotated[int | None, typer.Option(help="Random seed for sampling.")] = None
    system: Annotated[str | None, typer.Option(metavar="TEXT", rich_help_panel="Text", help="System prompt.")] = None
    think: Annotated[
        bool | None,
        typer.Option("--think/--no-think", help="Let the model reason first."),
    ] = None


@dataclass(frozen=True)
class MethodsOptions(DecodingOptions):
    """How the next token is picked, by one method or several."""

    method: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            autocompletion=complete_method,
            help=f"{', '.join(METHODS)}; all.",
        ),
    ] = "sira"


@dataclass(frozen=True)
class TraceDecodingOptions(DecodingOptions):
    """How the next token is picked, by a method that can be traced."""

    method: Annotated[str, typer.Option(metavar="NAME", help=f"{' or '.join(TRACED)}.")] = "sira"


@dataclass(frozen=True)
class TextOptions:
    """Changes to a decoded text. Options that are not given come from the preset's `text`."""

    title: ClassVar[str] = "Text"

    prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Put before each text, such as a trigger word.")
    ] = None
