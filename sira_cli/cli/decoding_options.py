"""Options that decide a text: the method, its settings, and changes to the decoded text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import typer

from sira_cli.cli.option_values import OnLoop, complete_method
from sira_cli.methods import METHODS
from sira_cli.methods.base import Ability

TRACED = [name for name, method in METHODS.items() if Ability.TRACES in method.abilities]


def _other_settings() -> str:
    """List the settings of methods that have no option of their own, for the help of --set."""
    named = {
        name: [setting for setting in method.own_settings() if setting not in ("alpha", "beta")]
        for name, method in METHODS.items()
    }
    return "; ".join(f"{name}: {', '.join(settings)}" for name, settings in named.items() if settings)


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
    alpha: Annotated[
        float | None, typer.Option(help="Contrast strength (default: for sira the preset's, else the method's).")
    ] = None
    max_new_tokens: Annotated[int | None, typer.Option(help="Length limit of a text, in tokens.")] = None
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; 0 takes the best token.")] = None
    top_p: Annotated[float | None, typer.Option(help="Sample from this share of the probability.")] = None
    seed: Annotated[int | None, typer.Option(help="Random seed for sampling.")] = None
    num_beams: Annotated[int | None, typer.Option(help="Number of search beams.")] = None
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System prompt (without one: the chat template's).")
    ] = None
    think: Annotated[
        bool | None,
        typer.Option("--think/--no-think", help="Let the model reason first, apart from the text."),
    ] = None
    beta: Annotated[
        float | None, typer.Option(help="Plausibility cut-off, 0 to 1 (default: the method's; not for sira).")
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help=f"Other settings of the method. {_other_settings()}."),
    ] = None
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Penalise repeated tokens; 1: off, 1.1 is typical.")
    ] = None
    no_repeat_ngram_size: Annotated[
        int | None, typer.Option(metavar="N", help="Never repeat N tokens in a row; 0: off.")
    ] = None
    on_loop: Annotated[
        OnLoop | None, typer.Option(help="End a text that repeats itself; keep, trim or retry it (default: off).")
    ] = None


@dataclass(frozen=True)
class MethodsOptions(DecodingOptions):
    """How the next token is picked, by one method or several."""

    method: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            autocompletion=complete_method,
            help=f"{', '.join(METHODS)}; several (A,B) or all.",
        ),
    ] = "sira"


@dataclass(frozen=True)
class TraceDecodingOptions(DecodingOptions):
    """How the next token is picked, by a method that can be traced."""

    method: Annotated[str, typer.Option(metavar="NAME", help=f"{' or '.join(TRACED)}.")] = "sira"
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Other settings of the method.")
    ] = None


@dataclass(frozen=True)
class TextOptions:
    """Changes to a decoded text. Options that are not given come from the preset's `text`."""

    title: ClassVar[str] = "Text"

    prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Put before each text, such as a trigger word.")
    ] = None
    suffix: Annotated[str | None, typer.Option(metavar="TEXT", help="Put after each text.")] = None
    max_sentences: Annotated[int | None, typer.Option(metavar="N", help="Keep the first N sentences of each text.")] = (
        None
    )
    complete_sentences: Annotated[
        bool | None,
        typer.Option(
            "--complete-sentences/--no-complete-sentences",
            help="Drop a last sentence cut off by --max-new-tokens.",
        ),
    ] = None
