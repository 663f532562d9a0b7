"""The colours that a text gives to the things that it names.

    There is a dark red car next to a dog, which is brown and white.
    red: car    white: dog? brown: dog?    two colours of one thing cannot be asked about, so they are left out

A colour belongs to the thing next to it, with no more between them than the language's `before` or `after` allow
(`wordings.yaml`). Where it is not clear whose colour it is, nothing is claimed.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sira_cli.language import function_words
from sira_cli.language.scripts import bounded, folded
from sira_cli.language.things import Thing
from sira_cli.language.wordings import Wording

KIND = "colors"
_STOP = re.compile(r"[.!?;,:\u3002\uff0c\uff01\uff1f\u3001\uff1b]|\n\s*\n")  # ends a sentence, or a part of one
_TOGETHER = 5  # characters between two colours of one thing: " and "


class _Mention(NamedTuple):
    start: int
    end: int
    thing: Thing


class _Color(NamedTuple):
    start: int
    end: int
    value: str


def colored(text: str, named: Sequence[Thing], wording: Wording) -> list[Thing]:
    """Return the things whose colour a text names, in the order of the colours; spans are the colour's words.

    Args:
        text: in the language of `wording`.
        named: the things that it names.
        wording: the language.
    """
    mentions = sorted(_Mention(*span, thing) for thing in named for span in thing.spans)
    colors = list(_colors(text, mentions, wording))
    found: dict[Thing, dict[str, list[tuple[int, int]]]] = {}
    for color in _single(colors, text):
        owner = _owner(color, text, mentions, colors, wording)
        if owner is not None:
            found.setdefault(owner, {}).setdefault(color.value, []).append(color[:2])
    return [
        Thing(thing.name, tuple(spans), thing.group, KIND, value)
        for thing, values in found.items()
        for value, spans in values.items()
        if len(values) == 1
    ]


def recolored(found: str, value: str, answer: str, wording: Wording) -> str | None:
    """Return the form of a colour that takes the place of another colour's form; None if it is not clear which.

    "rote" of "rot" becomes "blaue" of "blau": the ending of `found` is that of the new form, if the language has it.

    Args:
        found: a form of the colour `value`, as a text has it.
        value, answer: the usual words of both.
        wording: the language.
    """
    small, forms = found.lower(), _forms(tuple(wording.of(KIND).answers.values()))
    same = next(
        (at for at, pair in enumerate(zip(small, value, strict=False)) if pair[0] != pair[1]),
        min(len(small), len(value)),
    )
    ending, old = small[same:], value[same:]
    form = answer.removesuffix(old) + ending
    if not answer.endswith(old) or forms.get(folded(form)) != answer:
        return None
    return form.capitalize() if found[0].isupper() else form


def _colors(text: str, mentions: Sequence[_Mention], wording: Wording) -> Iterator[_Color]:
    """Yield the colours in a text, without those in names of things and in compounds that are no colours."""
    own = wording.of(KIND)
    words = _forms(tuple(own.answers.values()))
    taken = [mention[:2] for mention in mentions]
    if own.excluded:
        taken += [match.span() for match in re.finditer(own.excluded, text, re.IGNORECASE)]
    for match in _pattern(tuple(own.answers.values())).finditer(text):
        if all(match.end() <= start or end <= match.start() for start, end in taken):
            yield _Color(*match.span(), words[folded(match[0])])


def _single(colors: Sequence[_Color], text: str) -> Iterator[_Color]:
    """Yield the colours that stand alone: not "red and white"."""
    near = {
        color
        for one, other in itertools.pairwise(colors)
        if other.start - one.end <= _TOGETHER and not re.search(r"[.!?\u3002]", text[one.end : other.start])
        for color in (one, other)
    }
    return (color for color in colors if color not in near)


def _owner(
    color: _Color, text: str, mentions: Sequence[_Mention], colors: Sequence[_Color], wording: Wording
) -> Thing | None:
    """Return the thing that has a colour, or None."""
    own = wording.of(KIND)
    after = next((mention for mention in mentions if mention.start >= color.end), None)
    before = next((mention for mention in reversed(mentions) if mention.end <= color.start), None)
    gap = None if after is None or own.before is None else _plain(text[color.end : after.start])
    if after is not None and gap == "":
        return after.thing
    link = None if before is None or own.after is None else _plain(text[before.end : color.start])
    if before is not None and link is not None and re.fullmatch(own.after or "", link, re.IGNORECASE):
        return before.thing if _is_subject(before, text, mentions, colors) else None
    if after is not None and gap is not None and re.fullmatch(own.before or "", gap):
        return None if function_words() & {*gap.lower().split()} else after.thing
    return None


def _is_subject(mention: _Mention, text: str, mentions: Sequence[_Mention], colors: Sequence[_Color]) -> bool:
    """Return whether no other thing in the same clause may be meant: "the car next to the tree is red"."""
    earlier = [other for other in mentions if other.end <= mention.start]
    if not earlier:
        return True
    between = text[earlier[-1].end : mention.start]
    return bool(_STOP.search(between)) or any(earlier[-1].end <= each.start < mention.start for each in colors)


def _plain(gap: str) -> str:
    """Return the text between a colour and a thing without spaces around it; a paragraph break stays."""
    return gap if re.search(r"\n\s*\n", gap) else " ".join(gap.split())


@functools.cache
def _forms(colors: tuple[str, ...]) -> Mapping[str, str]:
    """Return the usual word of each form of a colour."""
    return {folded(form): each.split()[0] for each in colors for form in each.split()}


@functools.cache
def _pattern(colors: tuple[str, ...]) -> re.Pattern[str]:
    return bounded(_forms(colors))
