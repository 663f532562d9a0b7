"""Texts that name supported objects only, each introduced once, and end after all of them.

    There is a dog on the left and a | cup     a cup is not supported: none of its words may come next
    There is a dog on the left | and a         nothing is left to introduce: the text goes on from before "and"
    There is a dog on the left. | </s>         a cat is supported and missing: the text may not end yet

Words that are one token are ruled out before they are picked (`NameTokens`). The text counts, not its tokens: a name
in any other spelling is found once it is written, and the text goes on from before it (`guiding`).
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import LogitsProcessor

from sira_cli.language import function_words
from sira_cli.look.words import WordList, takes_an
from sira_cli.models.sampling import uncut, without
from sira_cli.models.texts import sentence_ends
from sira_cli.models.vocabulary import ReasoningParser, Vocabulary

PLAUSIBLE = 0.05  # share of the likeliest token's probability below which the model would not have picked a token
CLEAR = 0.2  # probability among the tokens that are left, below which a text that would end does end
IDLE = 2  # sentences that name nothing new, after which a text may end with objects missing
ROOM = 0.75  # share of the maximum tokens after which it may
_SENTENCE = re.compile(r"[.!?\n]\s")  # an object is not named across its end
# A paragraph and a list item also end a sentence without a full stop.
_ITEM = r"(?:[-*\u2022]|\d+[.)])\s"
_BREAK = re.compile(rf"\s*\n(?:\s*\n|(?=\s*{_ITEM}))")
_JOINS = re.compile(r"[,;]?\s*\b(?:and|or|with|plus)\b|[,;]", re.IGNORECASE)  # one object to another
# Without "light" a text may name a light bulb: a name is certain after a sign outside compounds, or the next word.
_CERTAIN = re.compile(r"[^\w\s-]|[\s-]+(?:[^\w\s-]|\w[\w-]*[^\w-])")
_PIECE = re.compile(r"(\s?)(\w[\w-]*)")
_LAST = re.compile(r"(?:(\w[\w-]*) )?(\w[\w-]*) ?$")
_NEAR = 80  # characters that the last two words of a text may take
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_INTRODUCING = frozenset({"a", "an", "another", "several", "some", "many", "more", "few", *_NUMBERS})
_SINGULAR = ("a", "an", "another", "one")
# Unicode's categories of signs that close or separate, in every script. Some of the latter also open. Quotation marks
# are in other categories, as each of them opens somewhere.
_GOES_ON = ("Pe", "Po")
_OPENING = frozenset("\"'*#&@\u00a1\u00bf\u2022\u00b7")


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return start and end of every sentence, with the white space after it: together they are the text."""
    breaks = (match.start() for match in _BREAK.finditer(text) if text[: match.start()].strip())
    ends = sorted({*sentence_ends(text), *breaks})
    starts = [0, *(end + len(text[end:]) - len(text[end:].lstrip()) for end in ends), len(text)]
    return [(start, end) for start, end in itertools.pairwise(dict.fromkeys(starts)) if text[start:end].strip()]


def begins_sentence(text: str, *, lower: bool) -> bool:
    """Return whether a sentence may begin with a text, as `A` and `- a`, and unlike `, a`; `lower`: in lower case."""
    first = text.lstrip()[:1]
    if not first or first in _OPENING:
        return True
    return unicodedata.category(first) not in _GOES_ON and (lower or not first.islower())


def whole_sentences(text: str) -> str:
    """Return a text without an unfinished sentence at its end; an item of a list needs no full stop."""
    spans = sentence_spans(text)
    if not spans or len(text.rstrip()) in sentence_ends(text) or re.match(_ITEM, text[spans[-1][0] :]):
        return text
    return text[: spans[-1][0]].rstrip()


@dataclass(frozen=True)
class Place:
    """The place in a text where a word comes next, perhaps the name of an object: "a dog", "two red cars"."""

    before: str  # the two words before it, in lower case
    begins: bool  # whether the next character begins a word even without a space before it
    start: int | None = None  # of the word that introduces an object here, an adjective before; None: no such word
    direct: bool = False  # whether nothing comes between that word and the name
    article: str | None = None  # `a` or `an` right before it, which the word has to fit
    plural: bool | None = None  # the number of the object's name; None: either

    @classmethod
    def at_the_end(cls, text: str) -> Place:
        """Return the end of a text."""
        begins = not text or not (text[-1].isalnum() or text[-1] in "_-'\N{RIGHT SINGLE QUOTATION MARK}")
        before = " ".join(re.findall(r"\w+", text[-_NEAR:].lower())[-2:])
        if (last := _LAST.search(text, max(0, len(text) - _NEAR))) is None:
            return cls(before, begins)
        for group in (2, 1):
            word, direct = (last[group] or "").lower(), group == 2
            if word in _INTRODUCING and (direct or last[2].lower() not in function_words()):
                article = word if direct and word in ("a", "an") else None
                plural = None if word in ("some", "more") else word not in _SINGULAR
                return cls(before, begins, last.start(group), direct, article, plural)
        return cls(before, begins)


class _Name(NamedTuple):
    """A token that names an object: a word of its own, at whose beginning `bare` has no space."""

    token: int
    name: str
    plural: bool
    article: str
    bare: bool


class NameTokens:
    """The tokens of a vocabulary that are words by themselves: the objects that they name, their number, their article.

    " dog", "Dog", " dogs"     names of the dog
    " gir" + "affe"            a name of several tokens: found in the text (`Guide.first`), not here
    " baseball"                a word of its own, whatever it ends with
    """

    def __init__(self, vocabulary: Vocabulary, words: WordList) -> None:
        self._words, self.articles = words, dict[str, list[int]](a=[], an=[])  # the latter inside a sentence
        self._compounds: dict[str, set[str]] = {}  # by their first word
        for name in words.compounds():
            self._compounds.setdefault(name.split()[0], set()).add(name)
        self._inner = {name.rpartition(" ")[0] for names in self._compounds.values() for name in names}
        self._names, self._first, self._consonants = list[_Name](), list[_Name](), list[int]()
        # that cannot begin a sentence, in texts whose sentences begin in lower case, and in others
        self.inside: dict[bool, list[int]] = {True: [], False: []}
        for token, data in enumerate(vocabulary.pieces()):
            written = data.decode("utf-8", "replace")
            for lower, inside in self.inside.items():
                if not begins_sentence(written, lower=lower):
                    inside.append(token)
            if (piece := _PIECE.fullmatch(written)) is None:
                continue
            word, bare = piece[2].lower(), not piece[1]
            article = "an" if takes_an(word) else "a"
            if not bare and piece[2] in self.articles:
                self.articles[piece[2]].append(token)
            if not bare and article == "a":
                self._consonants.append(token)
            if word in self._compounds:
                self._first.append(_Name(token, word, False, article, bare))
            if name := words.named_by(word):
                self._names.append(_Name(token, name, word != name, article, bare))
        self._known = functools.lru_cache(maxsize=1024)(self._split)

    def split(self, groups: frozenset[str], but: frozenset[str], place: Place) -> tuple[list[int], list[int]]:
        """Return the tokens that begin a name which may come next, and tokens that may not come next."""
        inner = any(place.before == each or place.before.endswith(f" {each}") for each in self._inner)
        return self._known(groups, but, replace(place, before="..." * inner, start=None))

    def _split(self, groups: frozenset[str], but: frozenset[str], place: Place) -> tuple[list[int], list[int]]:
        # `place.before` is not empty inside a compound, whose end is judged with its beginning
        def may(name: str) -> bool:
            return self._words.group(name) in groups and name not in but

        def here(each: _Name) -> bool:
            return place.begins or not each.bare

        longer = [
            each.token
            for each in self._first
            if here(each) and place.article in (None, each.article) and any(map(may, self._compounds[each.name]))
        ]
        names, ruled_out = list[int](), list[int]()
        for each in filter(here, self._names):
            if may(each.name) and place.article in (None, each.article) and place.plural in (None, each.plural):
                names.append(each.token)
            elif may(each.name) or not self._words.is_doubtful(each.name, introduced=place.direct):
                ruled_out.append(each.token)  # others are judged in the text
        ruled_out = [*ruled_out * (not place.before), *self._consonants * (place.article == "an")]
        kept = {*longer}
        return [*names, *longer], [token for token in ruled_out if token not in kept]


_name_tokens = functools.lru_cache(maxsize=4)(NameTokens)  # they take a moment to find


class Mention(NamedTuple):
    """A mention of an object in a text; `introduced`: as one that was not named before."""

    start: int
    end: int
    name: str
    head: str
    introduced: bool


@dataclass(frozen=True)
class Choice:
    """What may come next in a text."""

    names: Sequence[int]  # tokens that begin a name which may come next
    ruled_out: Sequence[int]  # tokens that may not
    only: bool = False  # whether one of `names` comes next
    only_if_dead: bool = False  # the same if nothing else is plausible
    introduces: bool = False  # whether an object is about to be introduced
    back: int = 0  # place from which the text goes on if nothing plausible is left
    other: str = ""  # the article that it goes on with there; empty: any other word
    between: bool = False  # whether the text is between two sentences
    inside: Sequence[int] = ()  # tokens that may not either, if the model would end the text; it may not end here


class GuideRules:
    """What is the same for all guided texts of a model."""

    def __init__(self, parser: ReasoningParser, words: WordList, ends: Sequence[int], limit: int) -> None:
        self.words, self.parser, self.ends = words, parser, sorted(ends)
        self.tokens = _name_tokens(parser.vocabulary, words)
        self.room = int(ROOM * limit)  # number of tokens after which a text may end without everything
        self._mentioned = functools.lru_cache(maxsize=1024)(self._in_sentence)

    def mentions(self, text: str) -> list[Mention]:
        """Return the mentions of a text, in order."""
        found, start = [], 0
        for end in (*(match.end() for match in _SENTENCE.finditer(text)), len(text)):  # most have been read before
            found += [
                each._replace(start=each.start + start, end=each.end + start)
                for each in self._mentioned(text[start:end])
            ]
            start = end
        return found

    def _in_sentence(self, text: str) -> list[Mention]:
        spans = sorted((span, thing.name, thing.group) for thing in self.words.things(text) for span in thing.spans)
        return [
            Mention(start, end, name, head, Place.at_the_end(text[:start]).start is not None)
            for (start, end), name, head in spans
        ]


class Guide:
    """What one text may name. Where no other way is left, the text ends."""

    def __init__(self, rules: GuideRules, supported: frozenset[str], doubted: frozenset[str] = frozenset()) -> None:
        self.rules, self._supported, self._doubted = rules, supported, doubted
        self.banned: dict[tuple[int, ...], set[int]] = {}  # tokens that would name what it may not, by those before
        self._begins = 0  # characters of thoughts before the text
        self._swapped: tuple[str, str] | None = None  # a text, and the article that comes next in it
        self.dead: int | None = None  # place from which a text goes on that can introduce nothing
        self._over: int | None = None  # the first place at which the model would have ended the text

    def ban(self, tokens: Sequence[int]) -> bool:
        """Forbid the last of these tokens after the others; return whether it was allowed until now."""
        banned = self.banned.setdefault(tuple(tokens[:-1]), set())
        new = tokens[-1] not in banned
        banned.add(tokens[-1])
        return new

    def first(self, text: str, *, ended: bool) -> tuple[int, int] | None:
        """Return start and end of the first certain part of a text that cannot stay, or None."""
        if self.dead is not None:
            return self.dead, len(text)
        introduced: set[str] = set()
        for each in self._mentions(text):
            wrong = each.head not in self._supported or each.name in self._doubted
            wrong |= each.introduced and each.head in introduced
            if wrong and (ended or _CERTAIN.match(text, each.end)):
                return each.start, each.end
            introduced.add(each.head)
        return None

    def stops(self, text: str) -> bool:
        """Return whether a text that may go on is not decoded further."""
        return self.first(text, ended=False) is not None or self.repeats(text) is not None

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of its tokens."""
        return self.rules.parser.vocabulary.text(tokens)

    def next(self, tokens: Sequence[int]) -> Choice | None:
        """Return the tokens that may not come next; None inside a thought."""
        rules = self.rules
        if rules.parser.expects:
            thoughts = rules.parser.begin()
            outside = [thoughts.add(token) for token in tokens]
            if thoughts.inside:
                self._begins = len(self.text(tokens)) + 1
                return None
            first = next((number for number, is_text in enumerate(outside) if is_text), len(tokens))
            self._begins = len(self.text(tokens[:first]))
        text = self.text(tokens)
        if self._swapped is not None and text.rstrip() == self._swapped[0]:
            return Choice(rules.tokens.articles[self._swapped[1]], (), only=True)
        mentions, place = self._mentions(text), Place.at_the_end(text)
        missing = self._supported - {each.head for each in mentions}
        named = max((each.end for each in rules.mentions(text)), default=0)
        groups = self._supported if place.start is None else missing
        names, ruled_out = rules.tokens.split(groups, self._doubted, place)
        sentence = last_sentence(text)
        choice = Choice(names, ruled_out, between=not text[sentence:].strip())
        if missing and len(tokens) < rules.room and len(sentence_spans(text[named:])) <= IDLE:
            choice = replace(choice, ruled_out=[*ruled_out, *rules.ends])
            if choice.between:
                initial = next((sign for sign in text[self._begins :] if sign.isalpha()), "")
                choice = replace(choice, inside=rules.tokens.inside[initial.islower()])
        if place.start is None or not missing:
            # It stops before it introduces anything else: at a word that joins, or before the sentence.
            joins = [match.start() for match in _JOINS.finditer(text, max(named, sentence))]
            back = joins[-1] if joins and named > sentence else sentence
            return replace(choice, back=back, introduces=place.start is not None)
        other = {"a": "an", "an": "a", None: ""}[place.article]
        return replace(choice, back=place.start, introduces=True, other=other, only_if_dead=place.direct)

    def agrees(self, tokens: Sequence[int]) -> int:
        """Return the number of first tokens of a text that the guide lets come next, one after the other."""
        for number, token in enumerate(tokens):
            choice = self.next(tokens[:number])
            if choice is not None and token in choice.ruled_out:
                return number
        return len(tokens)

    def stop(self, text: str, choice: Choice) -> None:
        """Note that a text is at a dead end, and where and how it goes on."""
        self.dead = choice.back
        if choice.other:  # "a" before "umbrella"
            self._swapped = text[: choice.back].rstrip(), choice.other

    def hold(self, text: str) -> None:
        """Note that the model would end a text that goes on."""
        if self._over is None:
            self._over = len(text)

    def repeats(self, text: str) -> int | None:
        """Return the end of a text before its last sentence, if that repeats another and the model would have ended.

        There is a dog. It is brown.| It is brown.
        """
        spans = sentence_spans(text)
        if self._over is None or not spans or len(text.rstrip()) not in sentence_ends(text):
            return None
        *others, (start, end) = spans
        before = [text[first:last].strip() for first, last in others]
        return len(text[:start].rstrip()) if start >= self._over and text[start:end].strip() in before else None

    def _mentions(self, text: str) -> list[Mention]:
        return [each for each in self.rules.mentions(text) if each.start >= self._begins]


def last_sentence(text: str) -> int:
    """Return the start of the sentence that comes next or goes on."""
    return min(sentence_spans(f"{text} A")[-1][0], len(text))


class GuideMask(LogitsProcessor):
    """Follows the guides of B texts; a row without one is idle. `texts` gives their tokens so far."""

    def __init__(
        self, guides: Sequence[Guide | None], texts: Callable[[Tensor], list[list[int]]], given: Sequence[int]
    ) -> None:
        self._guides, self._texts, self._given = guides, texts, given

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return `scores [B, V]` with -inf at tokens that may not come next; `input_ids [B, S]` are all so far."""
        rows = [
            (row, guide, choice, guide.banned.get(tuple(tokens), set()), tokens)
            for row, (guide, tokens) in enumerate(zip(self._guides, self._texts(input_ids), strict=True))
            if guide is not None and len(tokens) >= self._given[row] and (choice := guide.next(tokens)) is not None
        ]
        before, z = uncut(scores)
        full = z.float().softmax(dim=-1)
        ruled_out = torch.zeros(scores.shape, dtype=torch.bool)
        inside = torch.zeros_like(ruled_out)
        ending = set[int]()  # rows whose text the full stream would end
        for row, guide, choice, banned, tokens in rows:
            ruled_out[row, [*choice.ruled_out, *banned]] = True
            if choice.between and float(full[row, guide.rules.ends].sum()) > 0.5:
                ending.add(row)
                inside[row, choice.inside] = True
                if choice.inside:
                    guide.hold(guide.text(tokens))
        ruled_out, inside = ruled_out.to(scores.device), inside.to(scores.device)
        left = without(scores, ruled_out | inside)
        best = left.argmax(dim=-1)  # [B]
        rest = z.float().masked_fill(ruled_out, -torch.inf).softmax(dim=-1)
        chances, chances_left = (each.gather(1, best[:, None])[:, 0].tolist() for each in (full, rest))
        likeliest, likeliest_left = full.amax(dim=-1).tolist(), rest.argmax(dim=-1).tolist()
        for row, guide, choice, banned, tokens in rows:
            fits = choice.introduces and int(best[row]) in choice.names
            dead = chances[row] < PLAUSIBLE * likeliest[row] and not fits
            # The full stream would name a supported object here, and the contrast picks another word.
            drawn_away = choice.introduces and not fits and likeliest_left[row] in choice.names
            over = row in ending and chances_left[row] < CLEAR
            if choice.names and (choice.only or drawn_away or (dead and choice.only_if_dead)):
                left[row] = _only(before[row], choice.names, banned)
            elif over or (dead and choice.between and banned):
                left[row] = _only(before[row], guide.rules.ends, banned)
            elif dead and (choice.introduces or banned):
                guide.stop(guide.text(tokens), choice)
        return left


def _only(scores: Tensor, tokens: Sequence[int], banned: Container[int]) -> Tensor:
    """Return scores `[V]` with -inf everywhere but at some tokens, of which banned ones leave unless all are."""
    index = [token for token in tokens if token not in banned] or list(tokens)
    left = torch.full_like(scores, -torch.inf)
    left[index] = scores[index]
    return left
