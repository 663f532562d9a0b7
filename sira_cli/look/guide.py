"""Texts that name supported objects only, each introduced once, and end after all of them.

    There is a dog on the left and a | cup     a cup is not supported: none of its words may come next
    There is a dog on the left | and a         nothing is left to introduce: the text goes on from before "and"
    There is a dog on the left. | </s>         a cat is supported and missing: the text may not end yet

How a guided text is decoded:

1. Before each token the guide reads the text so far (`Guide.next`): which supported objects are missing, and whether an
   object is about to be introduced (`reading.py`). It returns a `Choice`: the tokens that may not come next, those that
   begin a name which may, and the place from which the text goes on if the model knows no way on.
2. Words that are one token are ruled out before they are picked (`GuideMask` in `mask.py`, by `name_tokens.py`).
3. The text counts, not its tokens: a name in any other spelling is found once it is written (`Guide.first_forbidden`).
   Then the text is cut back to before the name, and the token that began it is banned there (`Guide.ban`, by
   `redecoding.py`).
4. The text ends when no supported object is missing. Where the model would end it earlier, another sentence has to
   begin, unless the model does not know how, only repeats itself (`Guide.repeats`), or names nothing new any more.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from sira_cli.look.name_tokens import Place, name_tokens
from sira_cli.look.reading import Choice, Mention, Reading, Restart
from sira_cli.look.sentences import ends_sentence, last_sentence, sentence_spans
from sira_cli.look.words import WordList
from sira_cli.models.reasoning import ReasoningParser

IDLE = 2  # sentences that name nothing new, after which a text may end with objects missing
LATE = 0.75  # share of the maximum tokens after which a text may end with objects missing
_SENTENCE = re.compile(r"[.!?\n]\s")  # an object is not named across its end
# "light" may go on as "light bulb", another object. What settles that it does not: a sign that no compound holds, or
# all of the next word.
_SETTLES_NAME = re.compile(r"[^\w\s-]|[\s-]+(?:[^\w\s-]|\w[\w-]*[^\w-])")


class _Replaced(NamedTuple):
    """The article that comes next after a text, as the other one led nowhere there."""

    text: str
    article: str


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
        supported: groups (`Mention.group`) of the objects that the text names.
        doubted: names of objects that it may not name, although their groups may be supported.

    Attributes:
        cut_at: the place at which the text is cut, as no plausible token is left (`cut_back`); None: it is not.
    """

    def __init__(self, rules: GuideRules, supported: frozenset[str], doubted: frozenset[str] = frozenset()) -> None:
        self.rules = rules
        self.cut_at: int | None = None
        self._banned: dict[tuple[int, ...], set[int]] = {}  # tokens that began what is forbidden, by those before them
        self._supported = supported
        self._doubted = doubted
        self._text_start = 0  # after the thoughts, in characters, when the next token was last asked for
        self._replaced: _Replaced | None = None
        self._end_held: int | None = None  # the first place at which the model would have ended the text

    def next(self, tokens: Sequence[int]) -> Choice | None:
        """Return the choice of the next token after those of a text; None inside a thought."""
        rules = self.rules
        text = self.text(tokens)
        start = self._end_of_thoughts(tokens)
        if start is None:
            self._text_start = len(text) + 1  # the next token is part of the thought, with a space before it
            return None
        self._text_start = start
        if self._replaced is not None and text.rstrip() == self._replaced.text:
            articles = rules.tokens.articles[self._replaced.article]
            return Choice(articles, (), Restart(0), only=True)  # one of them comes next: nothing restarts
        reading = self._read(text)
        groups = reading.missing if reading.introduces else self._supported
        names, ruled_out = rules.tokens.options(groups, self._doubted, reading.place)
        within_sentences: Sequence[int] = ()
        if self._may_not_end(reading, len(tokens)):
            ruled_out = [*ruled_out, *rules.ends]
            if reading.between:
                lower_case = self._begins_in_lower_case(text)
                within_sentences = rules.tokens.within_sentences[lower_case]
        return Choice(
            names,
            ruled_out,
            reading.restart(),
            # After "a" every name fits; after "a red" one might not.
            only_if_stuck=reading.place.form.direct and bool(reading.missing),
            introduces=reading.introduces,
            between=reading.between,
            within_sentences=within_sentences,
        )

    def _end_of_thoughts(self, tokens: Sequence[int]) -> int | None:
        """Return the number of characters of a text's thoughts, which come first; None if it ends inside one."""
        parser = self.rules.parser
        if not parser.expects:
            return 0
        parsing = parser.begin()
        outside = [parsing.add(token) for token in tokens]
        if parsing.inside:
            return None
        first = outside.index(True) if True in outside else len(tokens)
        return len(self.text(tokens[:first]))

    def _read(self, text: str) -> Reading:
        mentions = self._mentions(text)
        return Reading(
            text,
            place=Place.at_the_end(text),
            missing=self._supported - {mention.group for mention in mentions},
            last_name_end=max((mention.end for mention in mentions), default=self._text_start),
            sentence=last_sentence(text),
        )

    def _may_not_end(self, reading: Reading, length: int) -> bool:
        """Return whether objects are missing from a text of `length` tokens that still names new ones."""
        if not reading.missing or length >= self.rules.late:
            return False
        # The rest of the sentence with the last name, and the idle ones after it, also an unfinished one.
        return len(sentence_spans(reading.text[reading.last_name_end :])) <= IDLE

    def _begins_in_lower_case(self, text: str) -> bool:
        """Return whether the first letter after the thoughts of a text is in lower case."""
        for sign in text[self._text_start :]:
            if sign.isalpha():
                return sign.islower()
        return False

    def first_forbidden(self, text: str, *, ended: bool) -> int | None:
        """Return the start of the first part of a text that certainly cannot stay, or None.

        Args:
            text: with its thoughts.
            ended: whether nothing follows, so that its last name is whole.
        """
        if self.cut_at is not None:
            return self.cut_at
        named: set[str] = set()
        for mention in self._mentions(text):
            forbidden = mention.group not in self._supported or mention.name in self._doubted
            twice = mention.introduced and mention.group in named
            if (forbidden or twice) and (ended or _SETTLES_NAME.match(text, mention.end)):
                return mention.start
            named.add(mention.group)
        return None

    def allowed_length(self, tokens: Sequence[int]) -> int:
        """Return the number of first tokens of a text of which the guide rules none out."""
        for number, token in enumerate(tokens):
            choice = self.next(tokens[:number])
            if choice is not None and token in choice.ruled_out:
                return number
        return len(tokens)

    def ban(self, tokens: Sequence[int]) -> bool:
        """Forbid the last of these tokens after the others; return whether it was allowed until now."""
        *before, token = tokens
        banned = self._banned.setdefault(tuple(before), set())
        if token in banned:
            return False
        banned.add(token)
        return True

    def banned_after(self, tokens: Sequence[int]) -> set[int]:
        """Return the tokens that are forbidden after some."""
        return self._banned.get(tuple(tokens), set())

    def cut_back(self, text: str, choice: Choice) -> None:
        """Note that no plausible token is left after a text: where it is cut, and how it goes on from there."""
        start, article = choice.restart
        self.cut_at = start
        if article:
            self._replaced = _Replaced(text[:start].rstrip(), article)

    def hold_end(self, text: str) -> None:
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

    def must_be_cut(self, text: str) -> bool:
        """Return whether a text that could go on already has a part that cannot stay."""
        return self.first_forbidden(text, ended=False) is not None or self.repeats(text) is not None

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of its tokens."""
        return self.rules.parser.vocabulary.text(tokens)

    def _mentions(self, text: str) -> list[Mention]:
        """Return the mentions of a text after its thoughts."""
        return [mention for mention in self.rules.mentions(text) if mention.start >= self._text_start]
