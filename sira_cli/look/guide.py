"""Texts that name supported objects only, each introduced once, and end after all of them.

    There is a dog on the left and a | cup     a cup is not supported: none of its words may come next
    There is a dog on the left | and a         nothing is left to introduce: the text goes on from before "and"
    There is a dog on the left. | </s>         a cat is supported and missing: the text may not end yet

How a guided text is decoded:

1. Before each token the guide reads the text so far (`Guide.next`): which supported objects are missing, and whether an
   object is about to be introduced. It returns a `Choice`: the tokens that may not come next, those that begin a name
   which may, and the place from which the text goes on if the model knows no way on.
2. Words that are one token are ruled out before they are picked (`GuideMask`, by `NameTokens`).
3. The text counts, not its tokens: a name in any other spelling is found once it is written (`Guide.first`). Then the
   text is cut back to before the name, and the token that began it is banned there (`Guide.ban`, `Redecoder`).
4. The text ends when no supported object is missing. Where the model would end it earlier, another sentence has to
   begin, unless the model does not know how, only repeats itself (`Guide.repeats`), or names nothing new any more.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sira_cli.look.name_tokens import Place, name_tokens
from sira_cli.look.sentences import ends_sentence, last_sentence, sentence_spans
from sira_cli.look.words import WordList
from sira_cli.models.reasoning import ReasoningParser

IDLE = 2  # sentences that name nothing new, after which a text may end with objects missing
LATE = 0.75  # share of the maximum tokens after which it may
_SENTENCE = re.compile(r"[.!?\n]\s")  # an object is not named across its end
_JOINS = re.compile(r"[,;]?\s*\b(?:and|or|with|plus)\b|[,;]", re.IGNORECASE)  # one object to another
# Without "light" a text may name a light bulb: a name is certain after a sign outside compounds, or the next word.
_CERTAIN = re.compile(r"[^\w\s-]|[\s-]+(?:[^\w\s-]|\w[\w-]*[^\w-])")
_OTHER_ARTICLE: dict[str | None, str] = {"a": "an", "an": "a"}


class Mention(NamedTuple):
    """A mention of an object in a text; `introduced`: as one that was not named before."""

    start: int
    end: int
    name: str
    head: str
    introduced: bool


class Restart(NamedTuple):
    """The place from which a text goes on; there `article` comes next, or without one any other word."""

    start: int
    article: str = ""


class _Replaced(NamedTuple):
    """A text, and the article that comes next in it instead of one that led nowhere."""

    before: str
    article: str


@dataclass(frozen=True)
class Reading:
    """A text so far, as its guide reads it.

    Attributes:
        text: the text, with its thoughts.
        place: its end.
        missing: heads of the supported objects that it does not name.
        named: end of the last name in it.
        sentence: start of the sentence that goes on or comes next.
    """

    text: str
    place: Place
    missing: frozenset[str]
    named: int
    sentence: int

    @property
    def introduces(self) -> bool:
        """Whether an object is about to be introduced."""
        return self.place.introduction is not None

    @property
    def between(self) -> bool:
        """Whether the text is between two sentences."""
        return not self.text[self.sentence :].strip()

    def restart(self) -> Restart:
        """Return where the text goes on if nothing plausible may come next."""
        place = self.place
        if place.introduction is not None and self.missing:  # another article: "an" for "a" before "umbrella"
            return Restart(place.introduction, _OTHER_ARTICLE.get(place.form.article, ""))
        # It stops before it introduces anything else: at a word that joins, or before the sentence.
        start = self.sentence
        if self.named > self.sentence:
            for match in _JOINS.finditer(self.text, self.named):
                start = match.start()
        return Restart(start)


@dataclass(frozen=True)
class Choice:
    """What may come next in a text.

    Attributes:
        names: tokens that begin a name which may come next.
        ruled_out: tokens that may not.
        restart: the place from which the text goes on if nothing plausible is left.
        only: whether one of `names` comes next.
        only_if_stuck: the same if nothing else is plausible.
        introduces: whether an object is about to be introduced.
        between: whether the text is between two sentences.
        inside: tokens that cannot begin a sentence, which may not come next either if the model would end the text;
            empty where it may end.
    """

    names: Sequence[int]
    ruled_out: Sequence[int]
    restart: Restart
    only: bool = False
    only_if_stuck: bool = False
    introduces: bool = False
    between: bool = False
    inside: Sequence[int] = ()


class GuideRules:
    """What is the same for all guided texts of a model.

    Args:
        parser: the model's, which separates thoughts from texts.
        words: the list of objects.
        ends: tokens that end a text.
        limit: maximum number of tokens of a text.
    """

    def __init__(self, parser: ReasoningParser, words: WordList, ends: Sequence[int], limit: int) -> None:
        self.words = words
        self.parser = parser
        self.ends = sorted(ends)
        self.tokens = name_tokens(parser.vocabulary, words)
        self.late = int(LATE * limit)  # number of tokens after which a text may end without everything
        self._cached_mentions = functools.lru_cache(maxsize=1024)(self._in_sentence)

    def mentions(self, text: str) -> list[Mention]:
        """Return the mentions of a text, in order."""
        mentions = []
        ends = [match.end() for match in _SENTENCE.finditer(text)]
        start = 0
        for end in (*ends, len(text)):
            for mention in self._cached_mentions(text[start:end]):  # most sentences have been read before
                mentions.append(mention._replace(start=mention.start + start, end=mention.end + start))
            start = end
        return mentions

    def _in_sentence(self, text: str) -> list[Mention]:
        mentions = []
        for thing in self.words.things(text):
            for start, end in thing.spans:
                introduced = Place.at_the_end(text[:start]).introduction is not None
                mentions.append(Mention(start, end, thing.name, thing.group, introduced))
        return sorted(mentions)


class Guide:
    """What one text may name. Where no other way is left, the text ends.

    Args:
        rules: the model's.
        supported: heads of the objects that the text names.
        doubted: names of objects that it may not name, although their heads may be supported.

    Attributes:
        banned: tokens that would name what the text may not, by the tokens before them.
        restart: the place from which a text goes on that is decoded no further; None: it is decoded to its end.
    """

    def __init__(self, rules: GuideRules, supported: frozenset[str], doubted: frozenset[str] = frozenset()) -> None:
        self.rules = rules
        self.banned: dict[tuple[int, ...], set[int]] = {}
        self.restart: int | None = None
        self._supported = supported
        self._doubted = doubted
        self._thoughts = 0  # characters of thoughts before the text
        self._replaced: _Replaced | None = None
        self._end_held: int | None = None  # the first place at which the model would have ended the text

    def next(self, tokens: Sequence[int]) -> Choice | None:
        """Return the choice of the next token after those of a text; None inside a thought."""
        rules = self.rules
        if self._is_thinking(tokens):
            return None
        text = self.text(tokens)
        if self._replaced is not None and text.rstrip() == self._replaced.before:
            articles = rules.tokens.articles[self._replaced.article]
            return Choice(articles, (), Restart(0), only=True)
        reading = self._read(text)
        groups = reading.missing if reading.introduces else self._supported
        names, ruled_out = rules.tokens.options(groups, self._doubted, reading.place)
        inside: Sequence[int] = ()
        if self._may_not_end(reading, len(tokens)):
            ruled_out = [*ruled_out, *rules.ends]
            if reading.between:
                inside = rules.tokens.inside[self._begins_in_lower_case(text)]
        return Choice(
            names,
            ruled_out,
            reading.restart(),
            only_if_stuck=reading.place.form.direct and bool(reading.missing),
            introduces=reading.introduces,
            between=reading.between,
            inside=inside,
        )

    def _is_thinking(self, tokens: Sequence[int]) -> bool:
        """Return whether a text ends inside a thought; note where its thoughts end."""
        if not self.rules.parser.expects:
            return False
        parsing = self.rules.parser.begin()
        outside = [parsing.add(token) for token in tokens]
        if parsing.inside:
            self._thoughts = len(self.text(tokens)) + 1
            return True
        first = outside.index(True) if True in outside else len(tokens)
        self._thoughts = len(self.text(tokens[:first]))
        return False

    def _read(self, text: str) -> Reading:
        heads = {mention.head for mention in self._mentions(text)}
        ends = [mention.end for mention in self.rules.mentions(text)]
        return Reading(
            text,
            place=Place.at_the_end(text),
            missing=self._supported - heads,
            named=max(ends, default=0),
            sentence=last_sentence(text),
        )

    def _may_not_end(self, reading: Reading, length: int) -> bool:
        """Return whether objects are missing from a text of `length` tokens that still names new ones."""
        if not reading.missing or length >= self.rules.late:
            return False
        return len(sentence_spans(reading.text[reading.named :])) <= IDLE

    def _begins_in_lower_case(self, text: str) -> bool:
        for sign in text[self._thoughts :]:
            if sign.isalpha():
                return sign.islower()
        return False

    def first(self, text: str, *, ended: bool) -> tuple[int, int] | None:
        """Return start and end of the first certain part of a text that cannot stay, or None."""
        if self.restart is not None:
            return self.restart, len(text)
        named: set[str] = set()
        for mention in self._mentions(text):
            forbidden = mention.head not in self._supported or mention.name in self._doubted
            twice = mention.introduced and mention.head in named
            if (forbidden or twice) and (ended or _CERTAIN.match(text, mention.end)):
                return mention.start, mention.end
            named.add(mention.head)
        return None

    def agrees(self, tokens: Sequence[int]) -> int:
        """Return the number of first tokens of a text that the guide lets come next, one after the other."""
        for number, token in enumerate(tokens):
            choice = self.next(tokens[:number])
            if choice is not None and token in choice.ruled_out:
                return number
        return len(tokens)

    def ban(self, tokens: Sequence[int]) -> bool:
        """Forbid the last of these tokens after the others; return whether it was allowed until now."""
        *before, token = tokens
        banned = self.banned.setdefault(tuple(before), set())
        if token in banned:
            return False
        banned.add(token)
        return True

    def banned_after(self, tokens: Sequence[int]) -> set[int]:
        """Return the tokens that are forbidden after some."""
        return self.banned.get(tuple(tokens), set())

    def stop(self, text: str, choice: Choice) -> None:
        """Note that no plausible token is left after a text, and where and how it goes on."""
        start, article = choice.restart
        self.restart = start
        if article:
            self._replaced = _Replaced(text[:start].rstrip(), article)

    def hold(self, text: str) -> None:
        """Note that the model would end a text that goes on."""
        if self._end_held is None:
            self._end_held = len(text)

    def repeats(self, text: str) -> int | None:
        """Return the end of a text before its last sentence, if that repeats another and the model would have ended.

        There is a dog. It is brown.| It is brown.
        """
        if self._end_held is None or not ends_sentence(text):
            return None
        sentences = [(start, text[start:end].strip()) for start, end in sentence_spans(text)]
        if not sentences:
            return None
        *others, (start, last) = sentences
        if start < self._end_held or last not in [sentence for _, sentence in others]:
            return None
        return len(text[:start].rstrip())

    def stops(self, text: str) -> bool:
        """Return whether a text that may go on is not decoded further."""
        return self.first(text, ended=False) is not None or self.repeats(text) is not None

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of its tokens."""
        return self.rules.parser.vocabulary.text(tokens)

    def _mentions(self, text: str) -> list[Mention]:
        """Return the mentions of a text after its thoughts."""
        return [mention for mention in self.rules.mentions(text) if mention.start >= self._thoughts]
