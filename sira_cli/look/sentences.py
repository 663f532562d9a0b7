"""Sentences of a text that is still being written: where each begins, and which one is unfinished."""

from __future__ import annotations

import itertools
import re
import unicodedata

from sira_cli.models.texts import sentence_ends

# A paragraph and a list item also end a sentence without a full stop.
_ITEM = r"(?:[-*\u2022]|\d+[.)])\s"
_BREAK = re.compile(rf"\s*\n(?:\s*\n|(?=\s*{_ITEM}))")
# Unicode's categories of signs that close or separate, in every script. Some of the latter also open. Quotation marks
# are in other categories, as each of them opens somewhere.
_GOES_ON = ("Pe", "Po")
_OPENING = frozenset("\"'*#&@\u00a1\u00bf\u2022\u00b7")


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return start and end of every sentence, with the white space after it: together they are the text."""
    ends = {*sentence_ends(text)}
    for match in _BREAK.finditer(text):
        if text[: match.start()].strip():
            ends.add(match.start())
    borders = {0: None}
    for end in sorted(ends):
        start_of_next = len(text) - len(text[end:].lstrip())
        borders[start_of_next] = None
    borders[len(text)] = None
    spans = itertools.pairwise(borders)
    return [(start, end) for start, end in spans if text[start:end].strip()]


def last_sentence(text: str) -> int:
    """Return the start of the sentence that comes next or goes on."""
    start, _ = sentence_spans(f"{text} A")[-1]
    return min(start, len(text))


def begins_sentence(text: str, *, lower: bool) -> bool:
    """Return whether a sentence may begin with a text, as `A` and `- a`, and unlike `, a`; `lower`: in lower case."""
    first = text.lstrip()[:1]
    if not first or first in _OPENING:
        return True
    return unicodedata.category(first) not in _GOES_ON and (lower or not first.islower())


def ends_sentence(text: str) -> bool:
    """Return whether a text ends with the end of a sentence, perhaps with white space after it."""
    return len(text.rstrip()) in sentence_ends(text)


def whole_sentences(text: str) -> str:
    """Return a text without an unfinished sentence at its end; an item of a list needs no full stop."""
    spans = sentence_spans(text)
    if not spans or ends_sentence(text):
        return text
    start, _ = spans[-1]
    if re.match(_ITEM, text[start:]):
        return text
    return text[:start].rstrip()
