"""Texts that name supported objects only, each introduced once, and end after all of them.

    There is a dog on the left and a | cup     a cup is not supported: none of its words may come next
    There is a dog on the left | and a         nothing is left to introduce: the text goes on from before "and"
    There is a dog on the left. | </s>         a cat is supported and missing: the text may not end yet

How a guided text is decoded:

1. Before each token the guide reads the text so far (`Guide.choice_after`): which supported objects are missing, and
   whether an object is about to be introduced (`reading.py`). It returns a `Choice`: the tokens that may not come next,
   those that begin the name of a supported object, and the place from which the text goes on where no plausible token
   is left.
2. Names of unsupported objects that are one token are ruled out before they are picked (`GuideMask` in `mask.py`, by
   `name_tokens.py`).
3. The text counts, not its tokens: a name in any other spelling is found once it is written (`Guide.first_forbidden`).
   Then the text is cut back to before the name, and the token that began it is banned there (`Guide.ban`, by
   `redecoding.py`).
4. The text may end when no supported object is missing. Where the model would end it earlier, another sentence has to
   begin, unless no plausible one can, the model only repeats itself (`Guide.repeats`), the last sentences named nothing
   new (`IDLE`), or the text is long (`LATE`).
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
_SENTENCE_END = re.compile(r"[.!?\n]\s")  # no name goes across it
# What follows a name that is whole: "light" may still become "light bulb", but not before a sign or another word.
_AFTER_NAME = re.compile(
    r"""
    [\s-]* [^\w\s-]                     # a sign other than a blank or hyphen
    | [\s-]+ (?P<word>\w[\w-]*) [^\w-]  # the next word, which is complete
    """,
    re.VERBOSE,
)


class DecodedText(NamedTuple):
    """The text of some tokens; `start`: its first character after the thoughts, None if it ends inside one."""

    text: str
    start: int | None


class _ForcedArticle(NamedTuple):
    """After `text`, write `article`: its counterpart ("a" for "an") left no plausible name."""

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
        self._cached_mentions = functools.lru_cache(maxsize=1024)(self._mentions_in_sentence)
        # The same text is read after its newest token (`Watch`), and again before the next one (`GuideMask`):
        self._cached_texts = functools.lru_cache(maxsize=256)(self._decode)

    def decoded(self, tokens: Sequence[int]) -> DecodedText:
        """Return the text of its tokens, and where it begins after its thoughts, which come first."""
        return self._cached_texts(tuple(tokens))

    def _decode(self, tokens: tuple[int, ...]) -> DecodedText:
        vocabulary = self.parser.vocabulary
        text = vocabulary.text(tokens)
        parsed = self.parser.parse(tokens)
        if parsed.inside:
            return DecodedText(text, None)
        first = parsed.steps[0] if parsed.steps else len(tokens)
        start = len(vocabulary.text(tokens[:first]))
        written = 0  # characters of thoughts whose markers are no tokens
        for cut_start, cut_end in parsed.cuts:
            if not text[start + written : start + cut_start].strip():
                written = cut_end
        return DecodedText(text, start + written)

    def mentions(self, text: str) -> list[Mention]:
        """Return the mentions of a text, in order."""
        mentions = []
        sentence_ends = [match.end() for match in _SENTENCE_END.finditer(text)]
        start = 0
        for end in (*sentence_ends, len(text)):
            for mention in self._cached_mentions(text[start:end]):  # most sentences have been read before
                mentions.append(mention._replace(start=mention.start + start, end=mention.end + start))
            start = end
        return mentions

    def _mentions_in_sentence(self, sentence: str) -> list[Mention]:
        mentions = []
        for thing in self.words.things(sentence):
            for start, end in thing.spans:
                introduced = Place.at_the_end(sentence[:start]).introduction is not None
                mentions.append(Mention(start, end, thing.name, thing.group, introduced))
        return sorted(mentions)

    def is_whole(self, text: str, mention: Mention) -> bool:
        """Return whether the name of a mention can no longer go on as a compound."""
        after = _AFTER_NAME.match(text, mention.end)
        if after is None or not after["word"]:
            return after is not None
        words = re.split(r"[\s-]+", text[mention.start : after.end("word")].lower())
        begins_compound = " ".join(words) in self.words.beginnings  # of three words
        return not begins_compound or _AFTER_NAME.match(text, after.end("word")) is not None


class Guide:
    """What one text may name. Where no other way is left, the text ends.

    Its methods take the tokens of the text so far. They are called in this order:

    1. `allowed_length` and `first_forbidden`: once, for the draft (`guiding.py`).
    2. Before each attempt: `begin_again` (`Redecoder` in `redecoding.py`).
    3. For each token: `choice_after` and `banned_after`, perhaps `note_end` or `cut_back` (`GuideMask` in `mask.py`);
       then `must_be_cut` (`Watch`, there).
    4. After each attempt: `first_forbidden`, then `ban`, or `repeats` if nothing is forbidden (`Redecoder`, which gives
       up after some attempts).

    Args:
        rules: the model's.
        supported: groups (`Mention.group`) of the objects that the text names.
        doubted: names of objects that it may not name, although their groups may be supported.

    Attributes:
        cut_at: the place at which the text is cut, as no plausible token is left (`cut_back`); None: nowhere.
    """

    def __init__(self, rules: GuideRules, supported: frozenset[str], doubted: frozenset[str] = frozenset()) -> None:
        self.rules = rules
        self.cut_at: int | None = None
        # For each beginning of the text (its tokens): the next tokens that are banned there.
        self._banned: dict[tuple[int, ...], set[int]] = {}
        self._supported = supported
        self._doubted = doubted
        self._forced_article: _ForcedArticle | None = None
        self._first_end: int | None = None  # the first place at which the model would have ended the text

    def choice_after(self, tokens: Sequence[int]) -> Choice | None:
        """Return the choice of the token after those of a text; None inside a thought."""
        rules = self.rules
        text, start = rules.decoded(tokens)
        if start is None:
            return None
        forced = self._forced_article
        if forced is not None and text.rstrip() == forced.text:
            articles = rules.tokens.articles[forced.article]
            return Choice(articles, (), Restart(0), only=True)  # one of them comes next: nothing restarts
        reading = self._read(text, start)
        # An object is introduced once, but may be mentioned again.
        groups = reading.missing if reading.introduces else self._supported
        names, ruled_out = rules.tokens.options(groups, self._doubted, reading.place)
        within_sentences: Sequence[int] = ()
        if self._may_not_end(reading, len(tokens)):
            ruled_out = [*ruled_out, *rules.ends]
            if reading.between:
                within_sentences = rules.tokens.within_sentences[reading.in_lower_case]
        # Only directly after the article: after "a red" a name may not fit.
        must_name = reading.place.form.direct and bool(reading.missing)
        return Choice(
            names,
            ruled_out,
            reading.restart(),
            only_if_stuck=must_name,
            introduces=reading.introduces,
            between=reading.between,
            within_sentences=within_sentences,
        )

    def _read(self, text: str, start: int) -> Reading:
        mentions = self._mentions(text, start)
        first_ends: dict[str, int] = {}  # of the objects' first names, by group
        for mention in mentions:
            first_ends.setdefault(mention.group, mention.end)
        return Reading(
            text,
            start,
            place=Place.at_the_end(text),
            missing=self._supported.difference(first_ends),
            last_name_end=max((mention.end for mention in mentions), default=start),
            new_name_end=max(first_ends.values(), default=start),
            sentence=max(start, last_sentence(text)),
        )

    def _may_not_end(self, reading: Reading, length: int) -> bool:
        """Return whether objects are missing from a text of `length` tokens that still names new ones."""
        if not reading.missing or length >= self.rules.late:
            return False
        return reading.idle_sentences() < IDLE

    def first_forbidden(self, tokens: Sequence[int], *, ended: bool) -> int | None:
        """Return the start of the first part of a text that certainly cannot stay, or None.

        Args:
            tokens: of the text, with its thoughts.
            ended: whether nothing follows, so that its last name is whole.
        """
        if self.cut_at is not None:
            return self.cut_at
        text, start = self.rules.decoded(tokens)
        if start is None:
            return None
        named: set[str] = set()
        for mention in self._mentions(text, start):
            forbidden = mention.group not in self._supported or mention.name in self._doubted
            twice = mention.introduced and mention.group in named
            if (forbidden or twice) and (ended or self.rules.is_whole(text, mention)):
                return mention.start
            named.add(mention.group)
        return None

    def allowed_length(self, tokens: Sequence[int]) -> int:
        """Return the number of first tokens of a text of which the guide rules none out."""
        for number, token in enumerate(tokens):
            choice = self.choice_after(tokens[:number])
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

    def cut_back(self, tokens: Sequence[int], choice: Choice) -> None:
        """Note that no plausible token is left after a text: where it is cut, and how it goes on from there."""
        start, article = choice.restart
        self.cut_at = start
        if self.rules.tokens.articles.get(article):  # not every tokenizer has a token for it
            self._forced_article = _ForcedArticle(self.text_of(tokens)[:start].rstrip(), article)

    def begin_again(self, kept: Sequence[int]) -> None:
        """Forget what was noted about the text after the tokens that are kept, from which it is decoded once more."""
        self.cut_at = None
        if self._first_end is not None and self._first_end > len(self.text_of(kept)):
            self._first_end = None

    def note_end(self, tokens: Sequence[int]) -> None:
        """Note that the model would end a text here, which goes on."""
        if self._first_end is None:
            self._first_end = len(self.text_of(tokens))

    def repeats(self, tokens: Sequence[int]) -> int | None:
        """Return the place at which a text would end without its last sentence, if that repeats another; else None.

        Only sentences that the model was made to write count: they begin at the place at which it would have ended the
        text, or later.

        There is a dog. It is brown.| It is brown.
        """
        text, start = self.rules.decoded(tokens)
        if self._first_end is None or start is None or not ends_sentence(text[start:]):
            return None
        caption = text[start:]
        spans = sentence_spans(caption)
        if not spans:
            return None
        *earlier, (last_start, last_end) = spans
        last = caption[last_start:last_end].strip()
        is_repeated = last in [caption[begin:end].strip() for begin, end in earlier]
        if is_repeated and start + last_start >= self._first_end:
            return start + len(caption[:last_start].rstrip())
        return None

    def must_be_cut(self, tokens: Sequence[int]) -> bool:
        """Return whether a text that could go on already has a part that cannot stay."""
        return self.first_forbidden(tokens, ended=False) is not None or self.repeats(tokens) is not None

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of its tokens."""
        return self.rules.parser.vocabulary.text(tokens)

    def _mentions(self, text: str, start: int) -> list[Mention]:
        """Return the mentions of a text after its thoughts, which end at `start`."""
        return [mention for mention in self.rules.mentions(text) if mention.start >= start]
