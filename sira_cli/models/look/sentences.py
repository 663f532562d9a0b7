"""Sentences of a text."""

from __future__ import annotations

import itertools
import re

from sira_cli.models.answering.texts import sentence_ends

# A paragraph and a list item also end a sentence without a full stop.
_BREAK = re.compile(r"\s*\n(?:\s*\n|(?=\s*(?:[-*\u2022]|\d+[.)])\s))")


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return start and end of every sentence, with the white space after it: together they are the text."""
    ends = {
        *sentence_ends(text, "en"),
        *(match.start() for match in _BREAK.finditer(text) if text[: match.start()].strip()),
    }
    starts = [0, *(end + len(text[end:]) - len(text[end:].lstrip()) for end in sorted(ends)), len(text)]
    return [(start, end) for start, end in itertools.pairwise(dict.fromkeys(starts)) if text[start:end].strip()]
