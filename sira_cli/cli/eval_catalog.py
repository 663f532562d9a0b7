"""`sira eval --list`, and the commands of benchmarks that need no option of their own but their data folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from sira_cli.cli.decoding_options import MethodsOptions
from sira_cli.cli.eval_options import EvalOptions, check
from sira_cli.cli.eval_run import evaluate
from sira_cli.cli.help import Variadic
from sira_cli.cli.option_groups import with_options
from sira_cli.cli.options import ModelOptions
from sira_cli.eval.card import Asking, Card, Wording
from sira_cli.eval.catalog import CARDS

HELP = """{title} ({source}): {figures}.

--method takes several methods, such as sira,vcd; greedy and greedy+apc are added as controls. Answer files hold
{answers}, one file per method; or they are sira's own. {note}
"""
EXAMPLES = """
sira eval {name} --data {name}/ --images {images} --method sira,vcd -o answers/
sira eval {name} --data {name}/ --answers answers/
"""


def list_benchmarks(wanted: bool) -> None:
    """Print what exists, what must be downloaded, how large it is and under which licence, and stop."""
    if not wanted:
        return
    for card in CARDS.values():
        print(f"{card.name}: {card.title} ({card.source})")
        for name, value in (
            ("command", card.command or f"sira eval {card.name}"),
            ("figures", card.figures),
            ("files", card.content),
            ("size", card.size),
            ("licence", card.licence),
            ("from", card.url),
        ):
            print(f"  {name:8} {value}")
    raise typer.Exit


def add_commands(app: typer.Typer) -> None:
    """Add --list, and a command for every benchmark that is read from its data folder alone."""
    app.callback()(_root)
    for card in CARDS.values():
        if card.read is not None:
            images = f"{card.name}/{card.pictures}".removesuffix("/.") if card.pictures else "val2014/"
            epilog = EXAMPLES.format(name=card.name, images=images)
            app.command(card.name, cls=Variadic, epilog=epilog, short_help=card.help)(_command(card))


def _root(
    listed: Annotated[
        bool,
        typer.Option(
            "--list",
            help="Show what exists, what must be downloaded, how large it is, under which licence.",
            callback=list_benchmarks,
            is_eager=True,
        ),
    ] = False,
) -> None:
    pass


def _command(card: Card) -> Callable[..., Any]:
    def command(
        *,
        data: Path,
        wording: Annotated[
            Wording, typer.Option(help="How to ask: in the benchmark's words, or in those of sira eval pope.")
        ] = "official",
        options: EvalOptions,
        model: ModelOptions,
        decoding: MethodsOptions,
    ) -> None:
        given = check(options, model, decoding)
        assert card.read is not None
        evaluate(card.read(data, Asking(wording, options.limit)), given)

    command.__doc__ = HELP.format(**{name: getattr(card, name) for name in card.__dataclass_fields__}).strip()
    command.__annotations__["data"] = Annotated[
        Path, typer.Option(metavar="FOLDER", help=f"The folder with {card.content}.")
    ]
    return with_options(options=EvalOptions, model=ModelOptions, decoding=MethodsOptions)(command)
