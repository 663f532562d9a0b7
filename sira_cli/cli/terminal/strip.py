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
    strip = Text(text)
    doubted = []
    for word in words:
        telling = says_something(word["word"])
        core = bare(word["word"]) or word["word"]
        start = word["start"] + word["word"].index(core)
        style = DOUBT[doubt(word["grounding"])] if telling else PALE
        strip.stylize(style, start, start + len(core))
        if telling and word["grounding"] < DOUBTED:
            doubted.append((word["grounding"], core))
    line = _doubted_line(doubted)
    console = Console(highlight=False)
    console.print(strip)
    console.print(line)
    if legend:
        meaning = Text().append("grounding, the word's probability under the contrast: ", PALE)
        for degree, step in enumerate(STEPS, start=1):
            meaning.append(f"< {step:g}", DOUBT[degree]).append("  ")
        console.print(meaning.append("evidence, not proof; function words are pale", PALE))


def _doubted_line(doubted: list[tuple[float, str]]) -> Text:
    """Return the line of the words to doubt, by grounding."""
    if not doubted:
        return Text(f"no word to doubt: the grounding of all is {DOUBTED:g} or more", PALE)
    line = Text("doubt first: ", PALE)
    first = sorted(doubted, key=lambda word: word[0])[:LISTED]
    for number, (grounding, core) in enumerate(first):
        if number:
            line.append("  ")
        line.append(core, DOUBT[doubt(grounding)])
        line.append(f" {grounding:.2f}", PALE)
    if len(doubted) > LISTED:
        line.append(f"  and {len(doubted) - LISTED} more", PALE)
    return line


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
    shown = Text()
    end = 0
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
            lines = [f"{row['token'].strip()!r} {row[view]['logprob']:.2f}" for row in best]
            views.append(Text("\n".join(lines)))
        token = Text(repr(line["token"]))
        table.add_row(str(line["step"]), token, f"{line['delta']:+.2f}", f"{line['kl']:.3f}", *views)
    Console(highlight=False).print(table)
