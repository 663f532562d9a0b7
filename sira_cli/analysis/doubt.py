"""Doubtful words of a text, in one scale of colours for pages and the terminal.

A word is to doubt if its grounding is below `DOUBTED`, or its support in a second look below that look's threshold.
"""

from __future__ import annotations

import re

from sira_cli.language import function_words

DOUBTED = 0.4  # a grounding below: an object word of the bundled model is absent more often than one on the whole
_SHADES = (1.0, 0.75, 0.5, 0.25)  # below each of these parts of a threshold is one more degree of doubt
STEPS = tuple(DOUBTED * shade for shade in _SHADES)  # of a grounding
_EDGES = re.compile(r"^[\W_]+|[\W_]+$")


def doubt(score: float, threshold: float = DOUBTED) -> int:
    """Return the degree of doubt, 0 (none) to 4, for a word's grounding, or for a support and its threshold."""
    return sum(score < threshold * shade for shade in _SHADES)


def bare(word: str) -> str:
    """Return a word without the punctuation around it."""
    return _EDGES.sub("", word)


def says_something(word: str) -> bool:
    """Return whether a word can be true or false of a picture: English function words and bare punctuation cannot."""
    core = bare(word).lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return core != "" and core not in function_words()
