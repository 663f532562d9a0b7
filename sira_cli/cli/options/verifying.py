"""The second look on the command line: options and display."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from sira_cli.cli.terminal.console import note
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from rich.text import Text

    from sira_cli.look.verify import Verify
    from sira_cli.models.preset import Preset
    from sira_cli.models.texts import Answer
    from sira_cli.run.records import Result

MORE_WORDS = "--objects FILE: your own words; --objects ask: the model's"


MinSupport = Annotated[
    float | None, typer.Option(metavar="X", min=0, max=1, help="Mark objects whose support is below X.")
]
Objects = Annotated[
    str | None, typer.Option(metavar="FILE|spacy|ask", help="Objects to look for: a list, nouns, or ask.")
]


@dataclass(frozen=True)
class VerifyOptions:
    """A second look at the objects that each text names."""

    title: ClassVar[str] = "Second look"

    verify: Annotated[
        Literal["flag", "guide"] | None,
        typer.Option(metavar="MODE", help="Mark unseen objects (flag), or name only seen ones (guide)."),
    ] = None
    min_support: MinSupport = None
    objects: Objects = None

    def read(self, preset: Preset) -> Verify | None:
        """Return the second look that the options ask for."""
        if self.verify is None:
            for name, value in asdict(self).items():
                if value is not None:
                    raise SettingsError(f"--{name.replace('_', '-')} is for a second look: also give --verify")
            return None
        from sira_cli.look.noun_phrases import find_words
        from sira_cli.look.verify import Verify

        return Verify(self.min_support, find_words(self.objects), self.verify)


@dataclass(frozen=True)
class FlagOptions(VerifyOptions):
    """A second look that does not change texts."""

    verify: Annotated[Literal["flag"] | None, typer.Option(help="Mark objects that the model does not see.")] = None


def note_threshold(verify: Verify, preset: Preset) -> None:
    """Note that a threshold is not measured, and how to measure it."""
    if verify.min_support is None and preset.verify.min_support == type(preset.verify)().min_support:
        threshold = f"the threshold of {verify.threshold(preset):g} is not measured for {preset.model}"
        note(f"{threshold}: `sira calibrate support --controls` finds one without labels; --min-support X sets one")


def unsupported(result: Answer | Result) -> list[Mapping[str, Any]]:
    """Return the objects of a text that the picture does not support."""
    from sira_cli.look import claims

    return claims.unsupported({"objects": result.objects, "verify": result.verify})


def print_marked(result: Result) -> None:
    """Print a text; on a terminal, unsupported words are coloured by doubt, and in brackets."""
    if not sys.stdout.isatty():
        print(result.text, flush=True)
        return
    from rich.console import Console

    from sira_cli.cli.terminal.strip import DOUBT
    from sira_cli.look.claims import doubt

    parts = [
        (*span, DOUBT[doubt(claim["support"], (result.verify or {})["min_support"])])
        for claim in unsupported(result)
        for span in claim["spans"]
    ]
    Console(highlight=False).print(marked(result.text, parts))


def marked(text: str, parts: Iterable[tuple[int, int, str]]) -> Text:
    """Return a text with some parts styled and in brackets."""
    from rich.text import Text

    shown, end = Text(), 0
    for first, last, style in sorted(parts):
        shown.append(text[end:first]).append(f"[{text[first:last]}]", style=style)
        end = last
    return shown.append(text[end:])


def verdict(result: Answer | Result) -> str:
    """Return the second look's verdict on a text, as one line."""
    if result.candidates is not None:
        forbidden, added = ", ".join(result.forbidden or ()), ", ".join(result.added or ())
        told = f"; not in its first caption: {added}" * bool(added)
        return f"looked first at {len(result.candidates)} objects; not supported: {forbidden or 'none'}" + told
    if doubted := unsupported(result):
        return "not supported: " + ", ".join(f"{one['thing']} ({one['support']:.2f})" for one in doubted)
    if not result.objects:
        return f"second look: nothing was recognised ({MORE_WORDS})"
    count = len(result.objects)
    return f"second look: supported, {f'all {count} objects' if count > 1 else 'the one object'} that the text names"
