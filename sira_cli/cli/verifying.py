"""The second look on the command line: options and display."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from sira_cli.cli.console import note
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from rich.text import Text

    from sira_cli.models.look.verify import Verify
    from sira_cli.models.preset import Preset
    from sira_cli.models.records import Answer, Result

UNSUPPORTED = "bold red"


VerifyMode = Literal["flag", "rewrite"]  # what the second look changes: nothing, or the text


MinSupport = Annotated[
    float | None,
    typer.Option(metavar="X", min=0, max=1, help="Mark objects with less support (default: the preset's)."),
]
Objects = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|spacy",
        help="Look for the objects in FILE, one per line with synonyms after commas; spacy: for all visible nouns "
        "(default: common objects).",
    ),
]


@dataclass(frozen=True)
class FlagOptions:
    """A second look that leaves each text as it is."""

    title: ClassVar[str] = "Second look"

    verify: Annotated[
        Literal["flag"] | None,
        typer.Option(help="Ask the model about each object that a text names, and mark those it does not see."),
    ] = None
    min_support: MinSupport = None
    objects: Objects = None

    def read(self) -> Verify | None:
        """Return the second look that the options ask for.

        Raises:
            SettingsError: options of a second look are given without --verify.
            DataError: the file of objects cannot be read.
        """
        return VerifyOptions(self.verify, self.min_support, None, self.objects).read()


@dataclass(frozen=True)
class VerifyOptions:
    """A second look at the objects that each text names."""

    title: ClassVar[str] = "Second look"

    verify: Annotated[
        VerifyMode | None,
        typer.Option(
            help="Ask the model about each object that a text names: mark those it does not see (flag), or decode "
            "again without them (rewrite)."
        ),
    ] = None
    min_support: MinSupport = None
    rounds: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Most rewrite attempts per text (default: 3)."),
    ] = None
    objects: Objects = None

    def read(self) -> Verify | None:
        """Return the second look that the options ask for; errors as `FlagOptions.read`."""
        if self.verify is None:
            if self.min_support is not None or self.objects is not None or self.rounds is not None:
                raise SettingsError("--min-support, --objects and --rounds are for a second look: also give --verify")
            return None
        if self.rounds is not None and self.verify != "rewrite":
            raise SettingsError("--rounds is for texts that are decoded again: give --verify rewrite")
        from sira_cli.language.noun_phrases import find_words
        from sira_cli.models.look.verify import ROUNDS, Verify

        words = None if self.objects is None else find_words(self.objects)
        return Verify(self.min_support, words, self.verify, self.rounds or ROUNDS)


def note_line(verify: Verify, preset: Preset) -> None:
    """Note a line that is not measured, and how to measure it."""
    if verify.min_support is None and preset.verify == type(preset.verify)():
        line = f"the line of {verify.line(preset):g} is not measured for {preset.model}"
        note(f"{line}: `sira calibrate support --controls` finds one without labels; --min-support X sets one")


def unsupported(result: Answer | Result) -> list[dict[str, Any]]:
    """Return the objects in a text that the picture does not support."""
    line = (result.verify or {}).get("min_support", 0.0)
    return [claim for claim in result.objects or () if claim["support"] < line]


def print_marked(result: Result) -> None:
    """Print a text; on a terminal, unsupported words are red and in brackets."""
    if not sys.stdout.isatty():
        print(result.text, flush=True)
        return
    from rich.console import Console

    spans = [span for claim in unsupported(result) for span in claim["spans"]]
    Console(highlight=False).print(marked(result.text, spans))


def marked(text: str, spans: Iterable[Sequence[int]]) -> Text:
    """Return a text with some parts red and in brackets.

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
    """Return the second look's verdict on a text, as one line."""
    if result.draft is not None:
        taken = ", ".join(f"{each['thing']} ({each['support']:.2f})" for each in result.removed or ())
        rest = ", ".join(claim["thing"] for claim in unsupported(result))
        return f"rewritten without: {taken or 'nothing'}" + f"; still not supported: {rest}" * bool(rest)
    if doubted := unsupported(result):
        return "not supported: " + ", ".join(f"{claim['thing']} ({claim['support']:.2f})" for claim in doubted)
    if not result.objects:
        return "second look: nothing was recognised (--objects FILE: your own words)"
    count = len(result.objects)
    return f"second look: supported, {f'all {count} objects' if count > 1 else 'the one object'} that the text names"
