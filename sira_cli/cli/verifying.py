"""The second look on the command line: its options, and what is shown of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from rich.text import Text

    from sira_cli.models.look.verify import Verify
    from sira_cli.models.records import Answer, Result

UNSUPPORTED = "bold red"


VerifyMode = Literal["flag", "rewrite"]  # what the second look changes: nothing, or the text


MinSupport = Annotated[
    float | None,
    typer.Option(metavar="X", min=0, max=1, help="Mark things with less support (default: the preset's)."),
]
Objects = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|spacy",
        help="Look for the things of FILE, one per line with synonyms behind commas; spacy: for all visible nouns "
        "(default: common objects).",
    ),
]


@dataclass(frozen=True)
class VerifyOptions:
    """A second look at what each text names."""

    title: ClassVar[str] = "Second look"

    verify: Annotated[
        VerifyMode | None,
        typer.Option(
            help="Ask the model about each thing that a text names: mark what it does not see (flag), or decode again "
            "without (rewrite)."
        ),
    ] = None
    min_support: MinSupport = None
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="With --verify rewrite, decode a text again at most N times (default: 3)."
        ),
    ] = None
    objects: Objects = None

    def read(self) -> Verify | None:
        """Return the second look that they ask for.

        Raises:
            SettingsError: there is something to set of a second look, but none.
            DataError: the file of things cannot be read.
        """
        if self.verify is None:
            if self.min_support is not None or self.objects is not None or self.rounds is not None:
                raise SettingsError("--min-support, --objects and --rounds are about a second look: give --verify, too")
            return None
        if self.rounds is not None and self.verify != "rewrite":
            raise SettingsError("--rounds is about texts that are decoded again: give --verify rewrite")
        from sira_cli.language.noun_phrases import find_words
        from sira_cli.models.look.verify import ROUNDS, Verify

        words = None if self.objects is None else find_words(self.objects)
        return Verify(self.min_support, words, self.verify, self.rounds or ROUNDS)


def unsupported(result: Answer | Result) -> list[dict[str, Any]]:
    """Return the things of a text that the picture does not support."""
    line = (result.verify or {}).get("min_support", 0.0)
    return [claim for claim in result.objects or () if claim["support"] < line]


def print_marked(result: Result) -> None:
    """Print a text; on a terminal with what is not supported in brackets, and red."""
    if not sys.stdout.isatty():
        print(result.text, flush=True)
        return
    from rich.console import Console

    spans = [span for claim in unsupported(result) for span in claim["spans"]]
    Console(highlight=False).print(marked(result.text, spans))


def marked(text: str, spans: Iterable[Sequence[int]]) -> Text:
    """Return a text with some of its parts in brackets, and red.

    Args:
        text: any.
        spans: start and end of each part.
    """
    from rich.text import Text

    shown, end = Text(), 0
    for first, last in sorted(tuple(span) for span in spans):
        shown.append(text[end:first]).append(f"[{text[first:last]}]", style=UNSUPPORTED)
        end = last
    return shown.append(text[end:])


def verdict(result: Answer | Result) -> str:
    """Return what the second look says of a text, in a line."""
    if result.draft is not None:
        taken = ", ".join(f"{each['thing']} ({each['support']:.2f})" for each in result.removed or ())
        rest = ", ".join(claim["thing"] for claim in unsupported(result))
        return f"rewritten without: {taken or 'nothing'}" + f"; still not supported: {rest}" * bool(rest)
    if doubted := unsupported(result):
        return "not supported: " + ", ".join(f"{claim['thing']} ({claim['support']:.2f})" for claim in doubted)
    if not result.objects:
        return "second look: nothing was recognised (--objects FILE: your own words)"
    count = len(result.objects)
    return f"second look: supported, {f'all {count} things' if count > 1 else 'the one thing'} that the text names"
