"""AMBER's rule for captions (arXiv 2311.07397), as in its script inference.py, quirks included."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

Likeness = Callable[[str, str], bool]  # compares a noun of the caption with a word of a list
Listed = list[tuple[str, int]]  # words, each with the place of the annotated word that it stands for


@dataclass(frozen=True)
class Judged:
    """The objects that a caption mentions.

    Attributes:
        mentions: nouns of AMBER's vocabulary, in the caption's order, repeats included.
        hallucinated: the mentions that are not in the picture.
        covered: annotated words of the picture that are mentioned.
        cognitive: mentioned words that are annotated as typical hallucinations.
    """

    mentions: tuple[str, ...]
    hallucinated: tuple[str, ...]
    covered: tuple[str, ...]
    cognitive: tuple[str, ...]


@dataclass(frozen=True)
class Lexicon:
    """AMBER's vocabulary.

    Attributes:
        relation: for each annotated word, other words that name the same thing.
        safe: words that are never counted as hallucinated, whatever the picture shows.
    """

    relation: Mapping[str, tuple[str, ...]]
    safe: frozenset[str]

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        """All nouns that count; others are ignored."""
        return frozenset(self.relation).union(*self.relation.values())

    def judge(self, nouns: Sequence[str], truth: Sequence[str], hallu: Sequence[str], similar: Likeness) -> Judged:
        """Sort a caption's nouns into mentions, hallucinations and covered words.

        Quirks of the script that change figures: a safe word stays among the mentions. If several words name the same
        object, only the first is covered, so a word that is annotated twice is covered at most once. An annotated
        hallucination can still be cleared by a similar word of the picture, but stays marked.
        """
        shown, made_up = self._listed(truth), self._listed(hallu)
        mentions = tuple(noun for noun in nouns if noun in self.vocabulary)
        hallucinated: list[str] = []
        covered: set[int | None] = set()
        cognitive: set[int | None] = set()
        for noun in mentions:
            if noun in self.safe:
                continue
            place = _first(shown, noun, operator.eq)
            if place is None:
                cognitive |= {_first(made_up, noun, operator.eq), _first(made_up, noun, similar)}
                place = _first(shown, noun, similar)
            if place is None:
                hallucinated.append(noun)
            else:
                covered.add(place)
        return Judged(mentions, tuple(hallucinated), _at(truth, covered), _at(hallu, cognitive))

    def _listed(self, words: Sequence[str]) -> Listed:
        """List all accepted names in the script's order: related words first, then the annotated ones."""
        related = [(other, place) for place, word in enumerate(words) for other in self.relation[word]]
        return related + [(word, place) for place, word in enumerate(words)]


def _first(listed: Listed, noun: str, like: Likeness) -> int | None:
    return next((place for word, place in listed if like(noun, word)), None)


def _at(words: Sequence[str], places: set[int | None]) -> tuple[str, ...]:
    return tuple(word for place, word in enumerate(words) if place in places)
