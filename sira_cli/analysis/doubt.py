"""Doubtful words of a text: content words of low grounding.

`analysis.page` and the terminal colour words by it.
"""

from __future__ import annotations

import re

from sira_cli.language import function_words

STEPS = (0.8, 0.6, 0.4, 0.2)  # a grounding below each of them is one more degree of doubt
DOUBTED = STEPS[2]  # below, an object word of the bundled model is absent more often than one on the whole
_EDGES = re.compile(r"^[\W_]+|[\W_]+$")


def doubt(grounding: float) -> int:
    """Return the degree of doubt for a word's grounding, 0 (none) to 4."""
    return sum(grounding < step for step in STEPS)


def bare(word: str) -> str:
    """Return a word without the punctuation around it."""
    return _EDGES.sub("", word)


def says_something(word: str) -> bool:
    """Return whether a word can be true or false of a picture: English function words and bare punctuation cannot."""
    core = bare(word).lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return core != "" and core not in function_words()
