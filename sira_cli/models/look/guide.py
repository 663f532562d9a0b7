"""Texts that name supported objects only, each introduced once, and end after all of them.

    There is a dog on the left and a | cup     a cup is not supported: none of its words may come next
    There is a dog on the left | and a         nothing is left to introduce: the text goes on from before "and"
    There is a dog on the left. | </s>         a cat is supported and missing: the text may not end yet

Words that are one token are ruled out before they are picked (`name_tokens`). The text counts, not its tokens: a name
in any other spelling is found once it is written, and the text goes on from before it (`continuing`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import LogitsProcessor

from sira_cli.language.introducing import JOINS, article_of, introduction_before, plural_after
from sira_cli.language.things import Words
from sira_cli.models.answering.reasoning import ReasoningParser
from sira_cli.models.answering.ruled_out import plain, uncut, without
from sira_cli.models.look.forbidding import Bans, certain
from sira_cli.models.look.name_tokens import NameTokens, Place, name_tokens
from sira_cli.models.look.sentences import sentence_spans

PLAUSIBLE = 0.05  # share of the likeliest token's probability below which the model would not have picked a token
CLEAR = 0.2  # probability among the tokens that are left, below which a text that would end does end
IDLE = 2  # sentences that name nothing new, after which a text may end with objects missing
_KEPT = 1024  # sentences whose mentions are remembered
_SENTENCE = re.compile(r"[.!?\n]\s")  # an object is not named across its end
ROOM = 0.75  # share of the maximum tokens after which it may


@dataclass(frozen=True)
class Mention:
    """A mention of an object in a text; `introduced`: as one that was not named before."""

    start: int
    end: int
    name: str
    head: str
    introduced: bool


class GuideRules:
    """What is the same for all guided texts of a model.

    Attributes:
        words: the names of objects.
        tokens: the tokens that are names.
        parser: separates thoughts from texts.
        ends: tokens that end a text.
        room: number of tokens after which a text may end without everything.
    """

    def __init__(self, parser: ReasoningParser, words: Words, ends: Sequence[int], limit: int) -> None:
        """Read the vocabulary."""
        self.words = words
        self.tokens: NameTokens = name_tokens(parser.vocabulary, words)  # type: ignore[arg-type] # by identity
        self.parser, self.ends, self.room = parser, torch.tensor(sorted(ends)), int(ROOM * limit)
        self._mentioned = functools.lru_cache(maxsize=_KEPT)(self._in_sentence)

    def mentions(self, text: str) -> list[Mention]:
        """Return the mentions of a text, in order."""
        found, start = [], 0
        for end in (*(match.end() for match in _SENTENCE.finditer(text)), len(text)):  # most have been read before
            found += [
                replace(each, start=each.start + start, end=each.end + start)
                for each in self._mentioned(text[start:end])
            ]
            start = end
        return found

    def _in_sentence(self, text: str) -> list[Mention]:
        spans = sorted((span, thing.name, thing.group) for thing in self.words.things(text) for span in thing.spans)
        return [
            Mention(start, end, name, head, introduction_before(text[:start]) is not None)
            for (start, end), name, head in spans
        ]


class Guide:
    """What one text may name. Where no other way is left, the text ends."""

    def __init__(self, rules: GuideRules, supported: frozenset[str], doubted: frozenset[str] = frozenset()) -> None:
        """Guide a text."""
        self._rules, self._supported, self._doubted = rules, supported, doubted
        self._begins = 0  # characters of thoughts before the text
        self._swapped: tuple[str, str] | None = None  # a text, and the article that comes next in it
        self._dead: int | None = None  # place from which a text goes on that can introduce nothing

    def first(self, text: str, *, ended: bool) -> tuple[int, int] | None:
        """Return start and end of the first certain part of a text that cannot stay, or None."""
        if self._dead is not None:
            return self._dead, len(text)
        introduced: set[str] = set()
        for each in self._rules.mentions(text):
            if each.start < self._begins:
                continue
            wrong = each.head not in self._supported or each.name in self._doubted
            wrong |= each.introduced and each.head in introduced
            if wrong and (ended or certain(text, each.end)):
                return each.start, each.end
            introduced.add(each.head)
        return None

    @property
    def ends(self) -> Tensor:
        """The tokens that end the text."""
        return self._rules.ends

    def restart(self) -> None:
        """Forget a dead end, before the text goes on from an earlier place."""
        self._dead = None

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of its tokens."""
        return self._rules.parser.vocabulary.text(tokens)

    def missing(self, text: str) -> set[str]:
        """Return the heads of supported objects that a text does not name yet."""
        return {*self._supported} - {each.head for each in self._rules.mentions(text) if each.start >= self._begins}

    def next(self, tokens: Sequence[int]) -> Choice | None:
        """Return the tokens that may not come next; None inside a thought."""
        rules, vocabulary = self._rules, self._rules.parser.vocabulary
        if rules.parser.expects:
            thoughts = rules.parser.begin()
            outside = [thoughts.add(token) for token in tokens]
            if thoughts.inside:
                self._begins = len(vocabulary.text(tokens)) + 1
                return None
            first = next((number for number, is_text in enumerate(outside) if is_text), len(tokens))
            self._begins = len(vocabulary.text(tokens[:first]))
        text = self.text(tokens)
        missing, introduction = self.missing(text), introduction_before(text)
        if self._swapped is not None and text.rstrip() == self._swapped[0]:
            article_tokens = rules.tokens.spelled(self._swapped[1])
            return Choice(article_tokens, article_tokens[:0], only=True)
        groups, place, other = self._supported, Place.at_the_end(text), ""
        if introduction is not None:
            groups = frozenset(missing)
            article, plural = article_of(introduction), plural_after(introduction)
            place = Place.at_the_end(text, introduced=introduction.direct, article=article, plural=plural)
            if missing and article is not None:
                other = "an" if article == "a" else "a"
        names, ruled_out = rules.tokens.split(groups, self._doubted, place)
        if missing and self._holds(text, len(tokens)):
            ruled_out = torch.cat([ruled_out, rules.ends])
        return Choice(
            names,
            ruled_out,
            introduces=introduction is not None,
            back=introduction.start if introduction is not None and missing else self._clause(text),
            other=other,
            only_if_dead=bool(missing and introduction and introduction.direct),
            between=not text[self._sentence(text) :].strip(),
        )

    def agrees(self, tokens: Sequence[int]) -> int:
        """Return the number of first tokens of a text that the guide lets come next, one after the other."""
        for number, token in enumerate(tokens):
            choice = self.next(tokens[:number])
            if choice is not None and bool((choice.ruled_out == token).any()):
                return number
        return len(tokens)

    def _holds(self, text: str, count: int) -> bool:
        """Return whether a text may not end before everything is named: while it has room and goes on naming."""
        named = max((each.end for each in self._rules.mentions(text)), default=0)
        return count < self._rules.room and len(sentence_spans(text[named:])) <= IDLE

    def _sentence(self, text: str) -> int:
        """Return the start of the sentence that comes next or goes on."""
        return min(sentence_spans(f"{text} A")[-1][0], len(text))

    def _clause(self, text: str) -> int:
        """Return where a text stops before it introduces anything else: at a word that joins, or a sentence."""
        named = max((each.end for each in self._rules.mentions(text)), default=0)
        sentence = self._sentence(text)
        joins = [match.start() for match in JOINS.finditer(text, max(named, sentence))]
        return joins[-1] if joins and named > sentence else sentence

    def stop(self, text: str, choice: Choice) -> None:
        """Note that a text is at a dead end, and where and how it goes on."""
        self._dead = choice.back
        if choice.other:  # "a" before "umbrella"
            self._swapped = text[: choice.back].rstrip(), choice.other

    def until(self, text: str) -> int:
        """Return the end of the last whole sentence of a text that breaks off."""
        return self._sentence(text)


@dataclass(frozen=True)
class Choice:
    """What may come next in a text.

    Attributes:
        names: tokens that begin a name which may come next.
        ruled_out: tokens that may not.
        only: whether one of `names` comes next; `only_if_dead`: if nothing else is plausible.
        introduces: whether an object is about to be introduced.
        back: place from which the text goes on if nothing plausible is left.
        other: the article that it goes on with there; empty: any other word.
        between: whether the text is between two sentences.
    """

    names: Tensor
    ruled_out: Tensor
    only: bool = False
    only_if_dead: bool = False
    introduces: bool = False
    back: int = 0
    other: str = ""
    between: bool = False


class GuideMask(LogitsProcessor):
    """Follows the guides of B texts."""

    def __init__(
        self,
        guides: Sequence[Guide | None],
        bans: Sequence[Bans],
        prompt: int,
        before: Sequence[Sequence[int]],
        given: Sequence[int],
    ) -> None:
        """Follow guides."""
        self._guides, self._bans, self._prompt = guides, bans, prompt
        self._before, self._given = before, given

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return `scores [B, V]` with -inf at tokens that may not come next; `input_ids [B, S]` are all so far."""
        texts = [
            [*before, *ids] for before, ids in zip(self._before, input_ids[:, self._prompt :].tolist(), strict=True)
        ]
        choices = {
            row: choice
            for row, (guide, tokens) in enumerate(zip(self._guides, texts, strict=True))
            if guide is not None and len(tokens) >= self._given[row] and (choice := guide.next(tokens)) is not None
        }
        ruled_out = torch.zeros(scores.shape, dtype=torch.bool)
        banned = {row: self._bans[row].after(texts[row]) for row in choices}
        for row, choice in choices.items():
            ruled_out[row, choice.ruled_out] = True
            ruled_out[row, list(banned[row])] = True
        ruled_out = ruled_out.to(scores.device)
        left = without(scores, ruled_out)
        best = left.argmax(dim=-1)  # [B]
        full = plain(scores).float()
        rest = full.masked_fill(ruled_out, -torch.inf).softmax(dim=-1)
        full = full.softmax(dim=-1)
        chances, chances_left = (each.gather(1, best[:, None])[:, 0].tolist() for each in (full, rest))
        likeliest, likeliest_left = full.amax(dim=-1).tolist(), rest.argmax(dim=-1).tolist()
        for row, choice in choices.items():
            guide = self._guides[row]
            assert guide is not None
            fits = choice.introduces and int(best[row]) in choice.names
            dead = chances[row] < PLAUSIBLE * likeliest[row] and not fits
            # The full stream would name a supported object here, and the contrast picks another word.
            drawn_away = choice.introduces and not fits and likeliest_left[row] in choice.names
            over = choice.between and chances_left[row] < CLEAR and float(full[row, guide.ends].sum()) > 0.5
            if len(choice.names) and (choice.only or drawn_away or (dead and choice.only_if_dead)):
                left[row] = _only(uncut(scores)[row], choice.names)
            elif over or (dead and choice.between and banned[row]):
                left[row] = _only(uncut(scores)[row], guide.ends)
            elif dead and (choice.introduces or banned[row]):
                guide.stop(guide.text(texts[row]), choice)
        return left


def _only(scores: Tensor, tokens: Tensor) -> Tensor:
    """Return scores `[V]` with -inf everywhere but at some tokens."""
    found = torch.full_like(scores, -torch.inf)
    index = tokens.to(scores.device)
    return found.index_copy(0, index, scores[index])
