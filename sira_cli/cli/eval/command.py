"""`sira eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sira_cli.cli.eval.options import EvalOptions, check, check_folder
from sira_cli.cli.options.common import ModelOptions
from sira_cli.cli.options.decoding import MethodsOptions
from sira_cli.cli.options.groups import with_options
from sira_cli.cli.terminal.console import set_verbosity, spell
from sira_cli.eval.benchmark import Card
from sira_cli.eval.cards import CARDS, find_cards, options_of_each

EXAMPLES = """
sira eval pope coco_pope_*.json --images val2014/ --method sira,vcd -o pope/
sira eval chair annotations/ --answers captions.jsonl
sira eval pope,chair,amber benchmarks/ -p llava-1.5-7b --method sira,vcd -o all/
"""


@with_options()
def evaluate(
    names: Annotated[
        str | None,
        typer.Argument(metavar="NAME,...", help=f"{', '.join(CARDS)}.", show_default=False),
    ] = None,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="The benchmark's files or folder.", show_default=False),
    ] = None,
    *,
    options: EvalOptions,
    model: ModelOptions,
    decoding: MethodsOptions,
) -> None:
    """Run and score POPE, CHAIR and AMBER as their official scripts do.

    Give one benchmark's files with --images to ask the model, or with --answers to score answers. Several names, or one
    without either option: PATH is a folder that holds pope/, coco/ or amber/, and the pictures in images/.
    """
    set_verbosity(options.quiet, options.verbose)
    cards = [] if names is None else find_cards([name.strip() for name in names.split(",")])
    if not paths and options.images is None and not options.answers:
        _list(cards)
        return
    spell({option.name: "--option" for card in cards for option in card.options})
    given = options_of_each(cards, options.option or (), answered=bool(options.answers))
    from sira_cli.cli.eval.run import ask_each, ask_or_read
    from sira_cli.eval.benchmark import Asking

    if len(cards) == 1 and (options.images is not None or options.answers):
        (card,) = cards
        files = card.files_in(paths or [])
        sources = check(options, model, decoding, files if card.several else ())
        asking = Asking(options.limit, given[card.name], sources, decoding.max_new_tokens)
        ask_or_read(card.open(files, asking), sources, options, model, decoding)
        return
    ask_each(cards, check_folder(paths or [], options), given, options, model, decoding)


def _list(cards: list[Card]) -> None:
    """Print all benchmarks, or the named ones with their options."""
    for card in cards or CARDS.values():
        print(f"{card.name}: {card.title} ({card.source})")
        data = "coco_pope_*.json" if card.several else f"{card.folder}/"
        for name, value in (
            ("command", f"sira eval {card.name} {data} --images PICTURES/"),
            ("figures", card.figures),
            ("files", card.files),
            ("size", card.size),
            ("licence", card.licence),
            ("from", card.url),
        ):
            print(f"  {name:8} {value}")
        if not cards:
            continue
        print(f"  answers  {card.answers}; sira's own; or lmms-eval's samples")
        if card.note:
            print(f"  note     {card.note}")
        for option in card.options:
            values = "|".join(option.choices) or "TEXT"
            default = f" (default: {option.default.strip()})" if option.default else ""
            print(f"  --option {option.name}={values}\n           {option.help}{default}")
