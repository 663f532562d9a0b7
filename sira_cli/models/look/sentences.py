"""Sentences of a text, and the text without some of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from sira_cli.language.wordings import ENGLISH
from sira_cli.models.answering.texts import sentence_ends

# A paragraph and a list item also end a sentence without a full stop.
_BREAK = re.compile(r"\s*\n(?:\s*\n|(?=\s*(?:[-*\u2022]|\d+[.)])\s))")


def sentence_spans(text: str, language: str = ENGLISH) -> list[tuple[int, int]]:
    """Return start and end of every sentence, with the white space after it: together they are the text."""
    ends = {
        *sentence_ends(text, language),
        *(match.start() for match in _BREAK.finditer(text) if text[: match.start()].strip()),
    }
    starts = [0, *(end + len(text[end:]) - len(text[end:].lstrip()) for end in sorted(ends)), len(text)]
    return [(start, end) for start, end in itertools.pairwise(dict.fromkeys(starts)) if text[start:end].strip()]


def repeated_sentences(text: str, start: int) -> list[tuple[int, int]]:
    """Return start and end of the sentences from `start` on that the text has before, word for word."""
    spans = sentence_spans(text)
    said = [text[first:last].strip() for first, last in spans]
    return [span for place, span in enumerate(spans) if span[0] >= start and said[place] in said[:place]]


def without_sentences(text: str, spans: Iterable[tuple[int, int]], language: str = ENGLISH) -> tuple[str, list[str]]:
    """Return a text without the sentences that contain some spans, and these sentences.

    Args:
        text: any text; without a full stop it is one sentence.
        spans: start and end of words, in characters of the text.
        language: the text's.
    """
    unwanted = list(spans)
    kept: list[str] = []
    dropped: list[str] = []
    for start, end in sentence_spans(text, language):
        hit = any(first < end and start < last for first, last in unwanted)
        (dropped if hit else kept).append(text[start:end])
    return ("".join(kept).strip() if dropped else text), [sentence.strip() for sentence in dropped]
