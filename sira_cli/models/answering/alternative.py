"""Alternative texts: one or two whole sentences of limited length, for people who cannot see the picture."""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Sequence

from sira_cli.language import function_words, text_words
from sira_cli.language.detect import likeliest_latin
from sira_cli.language.scripts import UNSPACED

SHORTEST, USUAL = 20, 125  # characters
_SENTENCES = 2
# A part of a sentence ends before one of these.
_CLAUSE = re.compile(
    r"\s*(?:[,;:\u3001\uff0c\uff1b]|\s[-\u2013\u2014]\s|\u2014|\s\(|\s(?:and|but|while|which|who|where|as|with)\s)"
)
_OPEN, _CLOSE = "([{\u201c\u00ab\u300c\uff08", ")]}\u201d\u00bb\u300d\uff09"


def alternative_text(text: str, length: int, ends: Sequence[int], *, cut_off: bool = False) -> str:
    """Return the beginning of a text as alternative text: whole sentences if they fit, else whole parts or words.

    Args:
        text: the text.
        length: maximum number of characters.
        ends: of the text's sentences.
        cut_off: whether the text was cut off, so that a last sentence without an end does not count.

    Returns:
        At most two sentences without beginnings such as "The image shows"; empty if not even a word fits.
    """
    last = [] if text[ends[-1] if ends else 0 :].strip() == "" or (cut_off and ends) else [len(text)]
    parts = [text[start:end] for start, end in itertools.pairwise([0, *ends, *last])]
    sentences = [sentence for part in parts if (sentence := without_lead(part))]
    short = ""
    for sentence in sentences[:_SENTENCES]:
        between = " " if short and not UNSPACED.match(sentence) else ""
        if len(short) + len(between) + len(sentence) > length:
            break
        short += between + sentence
    return short or (_shortened(sentences[0], length) if sentences else "")


def without_lead(sentence: str) -> str:
    """Return a sentence without a beginning such as "The image shows", in any language, and with a capital letter."""
    sentence = " ".join(sentence.split())
    while (lead := _leads().match(sentence)) and lead.end() < len(sentence):
        sentence = "".join(filter(None, lead.groups())) + sentence[lead.end() :]
        sentence = sentence[0].upper() + sentence[1:]
    return sentence


@functools.cache
def _leads() -> re.Pattern[str]:
    """Return the pattern of beginnings that say only that there is a picture, which a screen reader says itself."""
    return re.compile("|".join(lead for row in text_words().values() for lead in row["leads"]), re.IGNORECASE)


def _shortened(sentence: str, length: int) -> str:
    """Return the longest beginning of a sentence that ends after a part of it, or at least after a word."""
    unspaced = UNSPACED.search(sentence) is not None
    stop = "\u3002" if unspaced else "."
    room = length - len(stop)
    language = likeliest_latin(sentence)
    joints = r"\s(?:and|or|with|plus)\s"
    clauses = [*_CLAUSE.finditer(sentence), *re.finditer(joints, sentence)]
    parts = sorted(place.start() for place in clauses if 0 < place.start() <= room)
    words = [place.start() for place in re.finditer(r"\s", sentence) if place.start() <= room]
    end = parts[-1] if parts and parts[-1] >= length / 3 else words[-1] if words else 0
    if not end and unspaced:  # words are not divided by spaces
        end = room
        while end and unicodedata.combining(sentence[end]):
            end -= 1
    short = sentence[:end]
    for opening, closing in zip(_OPEN, _CLOSE, strict=True):
        if short.count(opening) > short.count(closing):
            last = short.rindex(opening)
            short = short[:last] or short[last + 1 :]
    idle = {"", *function_words(), *text_words()[language]["function_words"].split()}
    kept = short.split(" ")
    while len(kept) > 1 and kept[-1].strip(",;:-\u2013\u2014").lower() in idle:
        kept.pop()
    short = " ".join(kept).rstrip(" ,;:-\u2013\u2014\u3001\uff0c")
    return short + stop if short else ""
