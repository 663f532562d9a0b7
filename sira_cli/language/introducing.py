"""Words before an object that a text introduces: "a dog", "two red cars"; later it may speak of "the dog" again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sira_cli.language import function_words

_INTRODUCING = frozenset(
    {"a", "an", "another", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"}
    | {"several", "some", "many", "more", "few"}
)
JOINS = re.compile(r"[,;]?\s*\b(?:and|or|with|plus)\b|[,;]", re.IGNORECASE)  # one object to another
_SINGULAR = frozenset({"a", "an", "another", "one"})
_LAST = re.compile(r"(?:(\w[\w-]*) )?(\w[\w-]*) ?$")
_FAR = 80  # characters that two words may take


@dataclass(frozen=True)
class Introduction:
    """A word that introduces the object whose name comes next.

    Attributes:
        word: in lower case.
        start: its first character in the text.
        direct: whether nothing is between it and the name.
    """

    word: str
    start: int
    direct: bool


def introduction_before(text: str) -> Introduction | None:
    """Return the introducing word at the end of a text, possibly followed by an adjective; None without one."""
    far = max(0, len(text) - _FAR)
    last = _LAST.search(text, far)
    if last is None:
        return None
    if last[2].lower() in _INTRODUCING:
        return Introduction(last[2].lower(), last.start(2), direct=True)
    if last[1] and last[1].lower() in _INTRODUCING and last[2].lower() not in function_words():
        return Introduction(last[1].lower(), last.start(1), direct=False)
    return None


def article_of(introduction: Introduction) -> Literal["a", "an"] | None:
    """Return the English article directly before a name (`a` or `an` must fit its sound); None without one."""
    article: Literal["a", "an"] | None = None
    if introduction.direct and introduction.word in ("a", "an"):
        article = "an" if introduction.word == "an" else "a"
    return article


def plural_after(introduction: Introduction) -> bool | None:
    """Return whether the next name must be plural; None: both may follow."""
    if introduction.word in ("some", "more"):
        return None
    return introduction.word not in _SINGULAR
