"""A text so far as its guide reads it, and what the guide lets come next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sira_cli.look.name_tokens import Place
from sira_cli.look.sentences import sentence_spans

_JOINS = re.compile(r"[,;]?\s*\b(?:and|or|with|plus)\b|[,;]", re.IGNORECASE)  # one object to another
_OTHER_ARTICLE: dict[str | None, str] = {"a": "an", "an": "a"}


class Mention(NamedTuple):
    """A mention of an object in a text.

    Attributes:
        start, end: its place, in characters.
        name: of the object.
        group: the head of the name's synonyms (`Thing.group`): an object is named once under any of them.
        introduced: whether it is mentioned as one that was not named before.
    """

    start: int
    end: int
    name: str
    group: str
    introduced: bool


class Restart(NamedTuple):
    """The place from which a text goes on; there `article` comes next, or without one any other word."""

    start: int
    article: str = ""


@dataclass(frozen=True)
class Reading:
    """A text so far, as its guide reads it.

    Attributes:
        text: the text, with its thoughts.
        start: its first character after the thoughts.
        place: its end.
        missing: groups of the supported objects that it does not name.
        last_name_end: end of the last name in it; without one, `start`.
        new_name_end: the same of the last name of an object that was not named before.
        sentence: start of the sentence that goes on or comes next.
    """

    text: str
    start: int
    place: Place
    missing: frozenset[str]
    last_name_end: int
    new_name_end: int
    sentence: int

    @property
    def introduces(self) -> bool:
        """Whether an object is about to be introduced."""
        return self.place.introduction is not None

    @property
    def between(self) -> bool:
        """Whether the text is between two sentences."""
        return not self.text[self.sentence :].strip()

    @property
    def in_lower_case(self) -> bool:
        """Whether its first letter is in lower case."""
        for sign in self.text[self.start :]:
            if sign.isalpha():
                return sign.islower()
        return False

    def idle_sentences(self) -> int:
        """Return the number of its sentences after the one with the newest object, also an unfinished one."""
        spans = sentence_spans(self.text[self.start :])
        return sum(self.start + start >= self.new_name_end for start, _ in spans)

    def restart(self) -> Restart:
        """Return where the text goes on if nothing plausible may come next."""
        place = self.place
        if place.introduction is not None and self.missing:  # another article: "an" for "a" before "umbrella"
            return Restart(place.introduction, _OTHER_ARTICLE.get(place.form.article, ""))
        # It stops before it introduces anything else: at a word that joins, or before the sentence.
        start = self.sentence
        if self.last_name_end > self.sentence:
            for match in _JOINS.finditer(self.text, self.last_name_end):
                start = match.start()
        return Restart(start)


@dataclass(frozen=True)
class Choice:
    """What may come next in a text.

    Attributes:
        wanted: tokens that begin a name which may come next, or are the article that must.
        ruled_out: tokens that may not come next.
        restart: the place from which the text goes on if nothing plausible is left.
        only: whether one of `wanted` comes next.
        only_if_stuck: the same if nothing else is plausible.
        introduces: whether an object is about to be introduced.
        between: whether the text is between two sentences.
        within_sentences: tokens that cannot begin a sentence, which may not come next either if the model would end the
            text; empty where it may end.
    """

    wanted: Sequence[int]
    ruled_out: Sequence[int]
    restart: Restart
    only: bool = False
    only_if_stuck: bool = False
    introduces: bool = False
    between: bool = False
    within_sentences: Sequence[int] = ()
