"""Errors of pydantic, which checks requests, reworded for clients that know JSON but not its types."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Parts of a place that stand for a type among several, not for a key.
_TYPE = re.compile(r"[A-Z]\w*|str|bool|int|float|dict|.*[\[(].*")
# Patterns of its messages, one after the other, and what takes their place.
_WORDS = {
    r"^Value error, ": "",
    r"^Input should be a valid boolean.*": "expected true or false",
    r"^Input should be a valid (\w+), .*": r"Input should be a valid \1",
    r"^Input should be (greater than or equal to|at least) ": "expected at least ",
    r"^Input should be (less than or equal to|at most) ": "expected at most ",
    r"^Input should be greater than ": "expected more than ",
    r"^Input should be ": "expected ",
    r"^expected a valid (?=[aeiou])": "expected an ",
    r"^expected a valid ": "expected a ",
    r"^Field required$": "is missing",
    r"^List should have at least (\d+) item.*": r"expected at least \1",
    r"^List should have at most (\d+) item.*": r"expected at most \1",
}


def place_of(parts: Sequence[int | str]) -> str:
    """Return a place in a request in JSON's notation: `messages[0].content[1].image_url`."""
    place = ""
    for part in parts:
        if isinstance(part, int):
            place += f"[{part}]"
        elif not _TYPE.fullmatch(part):
            place += f".{part}" if place else part
    return place


def reason_of(message: str) -> str:
    """Return a reason from pydantic in the terms of JSON."""
    for pattern, words in _WORDS.items():
        message = re.sub(pattern, words, message)
    return message
