"""Texts on the terminal, with words to doubt in colour."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from sira_cli.cli.terminal.output import new_list, unsupported
from sira_cli.look.claims import DOUBTED, STEPS, bare, doubt, says_something

if TYPE_CHECKING:
    from sira_cli.run.records import Result

# Okabe and Ito's blue and vermilion, which colour-blind readers tell apart; marks carry the same without colour.
DOUBT = ("", "black on #fbe9df", "black on #f3c6a8 italic", "black on #e8935a italic", "black on #d55e00 italic bold")
PALE = "dim"
LISTED = 8  # words to doubt that are named below a text


def print_words(text: str, words: list[dict[str, Any]], *, legend: bool = True) -> None:
    """Print a text with coloured words, function words and the like pale, and below it the words to doubt."""
    strip, doubted = Text(text), []
    for word in words:
        telling, core = says_something(word["word"]), bare(word["word"]) or word["word"]
        start = word["start"] + word["word"].index(core)
        strip.stylize(DOUBT[doubt(word["grounding"])] if telling else PALE, start, start + len(core))
        if telling and word["grounding"] < DOUBTED:
            doubted.append((word["grounding"], core))
    line = Text(style="" if doubted else PALE)
    line.append("doubt first: " if doubted else f"no word to doubt: the grounding of all is {DOUBTED:g} or more", PALE)
    for number, (grounding, core) in enumerate(sorted(doubted, key=lambda each: each[0])[:LISTED]):
        line.append("  " * bool(number)).append(core, DOUBT[doubt(grounding)]).append(f" {grounding:.2f}", PALE)
    line.append(f"  and {len(doubted) - LISTED} more" if len(doubted) > LISTED else "", PALE)
    console = Console(highlight=False)
    console.print(strip)
    console.print(line)
    if legend:
        meaning = Text().append("grounding, the word's probability under the contrast: ", PALE)
        for degree, step in enumerate(STEPS, start=1):
            meaning.append(f"< {step:g}", DOUBT[degree]).append("  ")
        console.print(meaning.append("evidence, not proof; function words are pale", PALE))


def print_marked(result: Result) -> None:
    """Print a text; on a terminal, unsupported words are coloured by doubt, and in brackets."""
    if not sys.stdout.isatty() or not result.objects:
        print(result.text, flush=True)
        return
    parts = [
        (*span, DOUBT[doubt(claim["support"], (result.verify or {})["min_support"])])
        for claim in unsupported(result)
        for span in claim["spans"]
    ]
    Console(highlight=False).print(marked(result.text, parts))


def marked(text: str, parts: Iterable[tuple[int, int, str]]) -> Text:
    """Return a text with some parts styled and in brackets."""
    shown, end = Text(), 0
    for first, last, style in sorted(parts):
        shown.append(text[end:first]).append(f"[{text[first:last]}]", style=style)
        end = last
    return shown.append(text[end:])


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
        numbers = f"{line['delta']:+.2f}", f"{line['kl']:.3f}"
        table.add_row(str(line["step"]), Text(repr(line["token"])), *numbers, *views)
    Console(highlight=False).print(table)
