"""A text as a coloured strip on the terminal: which words the image supports, and which it does not."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

# Okabe and Ito's blue and vermilion, which colour-blind readers tell apart; marks carry the same without colour.
STEPS = (  # least delta, style
    (4.0, "black on #56b4e9 underline bold"),
    (1.0, "black on #b8ddf5 underline"),
    (-1.0, ""),
    (-4.0, "black on #f3c6a8 italic"),
    (float("-inf"), "black on #d55e00 italic bold"),
)


def style_of(delta: float) -> str:
    """Return the style of a piece of text with this delta."""
    return next(style for least, style in STEPS if delta >= least)


def print_words(text: str, words: list[dict[str, Any]], *, legend: bool = True) -> None:
    """Print a text with its words marked by their summed delta."""
    strip = Text(text)
    for word in words:
        strip.stylize(style_of(word["delta"]), word["start"], word["end"])
    console = Console(highlight=False)
    console.print(strip)
    if legend:
        console.print(_legend())


def print_candidates(tokens: list[dict[str, Any]], shown: int = 3) -> None:
    """Print a table of token lines: what was picked, and what each view would have picked."""
    table = Table("step", "token", "\u0394", "KL", *("full", "CF", "contrast"), box=None, header_style="bold")
    for line in tokens:
        views = []
        for view in ("full", "cf", "contrast"):
            best = sorted(line["top"], key=lambda row: row[view]["rank"])[:shown]
            views.append(Text("\n".join(f"{row['token'].strip()!r} {row[view]['logprob']:.2f}" for row in best)))
        chosen = Text(repr(line["token"]), style=style_of(line["delta"]))
        table.add_row(str(line["step"]), chosen, f"{line['delta']:+.2f}", f"{line['kl']:.3f}", *views)
    Console(highlight=False).print(table)


def _legend() -> Text:
    legend = Text("\u0394 = full - CF logits: ", style="dim")
    for delta, meaning in ((4, ">= 4"), (1, ">= 1 the picture argues for it"), (-2, "<= -1 against"), (-5, "< -4")):
        legend.append(meaning, style_of(delta)).append("  ")
    return legend.append("unmarked: the text alone says as much", style="dim")
