"""All benchmarks of `sira eval`, the source of `--list` and of the table in the documents."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from sira_cli.errors import SettingsError
from sira_cli.eval import (
    dash_b,
    hallusion,
    haloquest,
    mme,
    mmhal,
    naturalbench,
    phd,
    pope_card,
    repope,
)
from sira_cli.eval.amber import card as amber_card
from sira_cli.eval.card import Card
from sira_cli.eval.chair import card as chair_card

CARDS = {
    card.name: card
    for card in (
        *(pope_card.CARD, repope.CARD, chair_card.CARD, amber_card.CARD, dash_b.CARD, naturalbench.CARD),
        *(hallusion.CARD, phd.CARD, mme.CARD, mmhal.CARD, haloquest.CARD),
    )
}


def benchmarks() -> dict[str, Card]:
    """Return the cards of benchmarks that can be named, without those that are part of another one."""
    return {name: card for name, card in CARDS.items() if card.read is not None}


def find_cards(names: Sequence[str]) -> list[Card]:
    """Return the cards of benchmarks.

    Raises:
        SettingsError: no such benchmark, it is part of another one, or it is named twice.
    """
    known = benchmarks()
    for number, name in enumerate(names):
        if name in CARDS and name not in known:
            raise SettingsError(f"{name}: is part of another benchmark: {CARDS[name].command}")
        if name not in known:
            raise SettingsError(f"{name}: no benchmark has this name: {_instead(name, ['all', *known])}")
        if name in names[:number]:
            raise SettingsError(f"{name}: is named twice: name it once")
    return [known[name] for name in names]


def options_of_each(
    cards: Sequence[Card], given: Sequence[str], *, answered: bool = False
) -> dict[str, dict[str, str]]:
    """Return the options of every benchmark, by its name.

    Args:
        cards: of the benchmarks.
        given: `NAME=VALUE` for all that have this option, or `BENCHMARK.NAME=VALUE` for one.
        answered: whether answers in files are scored, instead of asking a model.

    Raises:
        SettingsError: no such option, no such value, or an option is given twice.
    """
    found: dict[str, dict[str, str]] = {card.name: {} for card in cards}
    for text in given:
        target, equals, value = text.partition("=")
        only, _, name = target.rpartition(".")
        if not equals:
            raise SettingsError(f"`option=` {text}: expected NAME=VALUE, such as rule=strict")
        named = [card for card in cards if only in ("", card.name)]
        if not named:
            raise SettingsError(f"`option=` {text}: {only} is not among the benchmarks: {', '.join(found)}")
        having = {card.name: option for card in named for option in card.options if option.name == name}
        if not having:
            raise SettingsError(f"`option=` {text}: {_unknown(name, named)}")
        for benchmark, option in having.items():
            option.check(value)
            if option.asks and answered:
                raise SettingsError(f"`option=` {text}: is for runs: leave it out, or give `images=`, not `answers=`")
            if option.asks and not value.strip():
                raise SettingsError(f"`option=` {text}: is empty: give a text, or leave it out")
            if name in found[benchmark]:
                raise SettingsError(f"`option=` {text}: {name} is given twice")
            found[benchmark][name] = value
    return found


def _unknown(name: str, cards: Sequence[Card]) -> str:
    benchmarks = ", ".join(card.name for card in cards)
    known = sorted({option.name for card in cards for option in card.options})
    if not known:
        return f"{benchmarks}: takes no options"
    return f"no such option of {benchmarks}: {_instead(name, known)}"


def _instead(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"expected {', '.join(known)}"
