"""A text as a coloured strip on the terminal, which marks words to doubt."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from sira_cli.cli.terminal.output import new_list
from sira_cli.look.claims import DOUBTED, STEPS, bare, doubt, says_something

# Okabe and Ito's blue and vermilion, which colour-blind readers tell apart; marks carry the same without colour.
DOUBT = ("", "black on #fbe9df", "black on #f3c6a8 italic", "black on #e8935a italic", "black on #d55e00 italic bold")
PALE = "dim"
LISTED = 8  # words to doubt that are named below a text


def word_style(word: dict[str, Any]) -> str:
    """Return the style of a word; function words and the like are pale."""
    if not says_something(word["word"]):
        return PALE
    return DOUBT[doubt(word["grounding"])]


def print_words(text: str, words: list[dict[str, Any]], *, legend: bool = True) -> None:
    """Print a text with coloured words, and below it the words to doubt."""
    strip = Text(text)
    for word in words:
        start, end = word["start"], word["end"]
        if core := bare(word["word"]):
            start += word["word"].index(core)
            end = start + len(core)
        strip.stylize(word_style(word), start, end)
    console = Console(highlight=False)
    console.print(strip)
    console.print(_doubted(words))
    if legend:
        console.print(_legend())


def print_candidates(tokens: list[dict[str, Any]]) -> None:
    """Print a table of token lines: the picked token, and the three best candidates of each view.

    Grounding is a score of words, so tokens are not coloured by it.
    """
    table = new_list("step", "token", "\u0394", "KL", "full", "CF", "contrast")
    for line in tokens:
        views = []
        for view in ("full", "cf", "contrast"):
            best = sorted(line["top"], key=lambda row: row[view]["rank"])[:3]
            views.append(Text("\n".join(f"{row['token'].strip()!r} {row[view]['logprob']:.2f}" for row in best)))
        table.add_row(
            str(line["step"]), Text(repr(line["token"])), f"{line['delta']:+.2f}", f"{line['kl']:.3f}", *views
        )
    Console(highlight=False).print(table)


def _doubted(words: list[dict[str, Any]]) -> Text:
    """List the least grounded content words, strongest doubt first."""
    telling = [word for word in words if says_something(word["word"])]
    found = sorted((word for word in telling if word["grounding"] < DOUBTED), key=lambda word: float(word["grounding"]))
    if not found:
        return Text(f"no word to doubt: the grounding of all is {DOUBTED:g} or more", style="dim")
    line = Text().append("doubt first: ", "dim")
    for number, word in enumerate(found[:LISTED]):
        line.append("  " * bool(number)).append(bare(word["word"]), DOUBT[doubt(word["grounding"])])
        line.append(f" {word['grounding']:.2f}", "dim")
    return line.append(f"  and {len(found) - LISTED} more" if len(found) > LISTED else "", "dim")


def _legend() -> Text:
    legend = Text().append("grounding, the word's probability under the contrast: ", "dim")
    for degree, step in enumerate(STEPS, start=1):
        legend.append(f"< {step:g}", DOUBT[degree]).append("  ")
    return legend.append("evidence, not proof; function words are pale", "dim")
