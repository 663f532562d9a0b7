"""`sira eval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sira_cli.cli.eval.options import EvalOptions, check, check_folder
from sira_cli.cli.options.common import ModelOptions
from sira_cli.cli.options.decoding import MethodsOptions
from sira_cli.cli.options.groups import with_options
from sira_cli.cli.terminal.console import set_verbosity, spell
from sira_cli.errors import SettingsError
from sira_cli.eval.catalog import CARDS, benchmarks, find_cards, options_of_each

if TYPE_CHECKING:
    from sira_cli.eval.card import Card

ALL = "all"  # as NAME: every benchmark that a folder holds
EXAMPLES = """
sira eval pope coco_pope_*.json --images val2014/ --method sira,vcd -o pope/
sira eval chair annotations/ --answers captions.jsonl
sira eval all benchmarks/ -p llava-1.5-7b --method sira,vcd -o all/ --html all.html
"""


@with_options()
def evaluate(
    names: Annotated[
        str | None,
        typer.Argument(metavar="NAME,...", help=f"{', '.join(benchmarks())}; or all.", show_default=False),
    ] = None,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="The benchmark's files or folder (--list NAME).", show_default=False),
    ] = None,
    *,
    listed: Annotated[bool, typer.Option("--list", help="Show benchmarks: files, options, size, licence.")] = False,
    options: EvalOptions,
    model: ModelOptions,
    decoding: MethodsOptions,
) -> None:
    """Run and score benchmarks as their official scripts do.

    Give one benchmark's files with --images to ask the model, or with --answers to score answers. Several names, all,
    or one without either option: PATH is a folder that holds a folder per benchmark, and pictures in images/.
    """
    set_verbosity(options.quiet, options.verbose)
    cards = [] if names in (None, ALL) else find_cards([name.strip() for name in str(names).split(",")])
    if listed:
        _list(cards)
        return
    if names is None:
        raise SettingsError("NAME is missing: give a benchmark, such as pope, or all (sira eval --list shows them)")
    spell({option.name: "--option" for card in cards or benchmarks().values() for option in card.options})
    given = options_of_each(cards or list(benchmarks().values()), options.option or (), answered=bool(options.answers))
    if len(cards) == 1 and (options.images is not None or options.answers):
        _evaluate_one(cards[0], paths or [], given[cards[0].name], options, model, decoding)
        return
    from sira_cli.cli.eval.folder import evaluate_folder

    check_folder(paths or [], options)
    evaluate_folder((paths or [])[0], cards, given, options, model, decoding)


def _evaluate_one(
    card: Card,
    paths: list[Path],
    given: dict[str, str],
    options: EvalOptions,
    model: ModelOptions,
    decoding: MethodsOptions,
) -> None:
    from sira_cli.cli.eval.run import ask_or_read
    from sira_cli.eval.card import Asking

    files = card.files_in(paths)
    sources = check(options, model, decoding, files if card.several else ())
    asking = Asking(limit=options.limit, options=given, sources=sources, max_new_tokens=decoding.max_new_tokens)
    ask_or_read(card.open(files, asking), sources, options, model, decoding)


def _list(cards: list[Card]) -> None:
    """Print all benchmarks, or the named ones with their options."""
    for card in cards or CARDS.values():
        print(f"{card.name}: {card.title} ({card.source})")
        data = "coco_pope_*.json" if card.several else f"{card.folder or card.name}/"
        for name, value in (
            ("command", card.command or f"sira eval {card.name} {data} --images PICTURES/"),
            ("figures", card.figures),
            ("files", card.content),
            ("size", card.size),
            ("licence", card.licence),
            ("from", card.url),
        ):
            print(f"  {name:8} {value}")
        if not cards:
            continue
        print(f"  answers  {card.answers}; or sira's own")
        if card.note:
            print(f"  note     {card.note}")
        for option in card.options:
            values = "|".join(option.choices) or "TEXT"
            default = f" (default: {option.default.strip()})" if option.default else ""
            print(f"  --option {option.name}={values}\n           {option.help}{default}")
