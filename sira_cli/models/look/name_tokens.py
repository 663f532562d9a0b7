"""The tokens of a vocabulary that are words by themselves: the objects that they name, their number and their article.

" dog", "Dog", " dogs"     names of the dog
" gir" + "affe"            a name of several tokens: found in the text (`guide`), not here
" baseball"                a word of its own, whatever it ends with
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from sira_cli.language.things import Words, takes_an
from sira_cli.models.inputs.vocabulary import Vocabulary

_PIECE = re.compile(r"(\s?)(\w[\w-]*)")
_NEAR = 80  # characters that the last two words of a text may take


@dataclass(frozen=True)
class Place:
    """The place in a text where a word comes next.

    Attributes:
        before: the two words before it, in lower case.
        begins: whether the next character begins a word even without a space before it.
        introduced: whether a word that introduces an object is right before it.
        article: `a` or `an` right before it, which the word has to fit; None: another word.
        plural: the number of the object's name; None: either.
    """

    before: str
    begins: bool
    introduced: bool = False
    article: Literal["a", "an"] | None = None
    plural: bool | None = None

    @classmethod
    def at_the_end(cls, text: str, **introduction: Any) -> Place:
        """Return the end of a text; `introduction`: the attributes after `begins`."""
        begins = not text or not (text[-1].isalnum() or text[-1] in "_-'\N{RIGHT SINGLE QUOTATION MARK}")
        return cls(" ".join(re.findall(r"\w+", text[-_NEAR:].lower())[-2:]), begins, **introduction)


class NameTokens:
    """The words of one vocabulary, for one list of objects."""

    def __init__(self, vocabulary: Vocabulary, words: Words) -> None:
        """Read every token of the vocabulary."""
        self._words = words
        self._compounds: dict[str, set[str]] = {}  # by their first word
        for name in words.compounds():
            self._compounds.setdefault(name.split()[0], set()).add(name)
        self._inner = {name.rpartition(" ")[0] for names in self._compounds.values() for name in names}
        names: dict[str, int] = {}
        rows: list[tuple[int, int]] = []  # token and name
        kinds: list[tuple[bool, bool, bool]] = []  # whether it is a plural, takes "an", begins without a space
        consonants: list[int] = []
        self._articles: dict[str, list[int]] = {"a": [], "an": []}
        first: list[tuple[int, str, bool]] = []  # first words of compounds
        for token, data in enumerate(vocabulary.pieces()):
            piece = _PIECE.fullmatch(data.decode("utf-8", "replace"))
            if piece is None:
                continue
            word, bare = piece[2].lower(), not piece[1]
            if not bare and piece[2] in self._articles:
                self._articles[piece[2]].append(token)
            if not bare and not takes_an(word):
                consonants.append(token)
            if word in self._compounds:
                first.append((token, word, bare))
            if name := words.named_by(word):
                rows.append((token, names.setdefault(name, len(names))))
                kinds.append((word != name, takes_an(word), bare))
        self._names, self._first = list(names), first
        self._tokens, self._name = torch.tensor(rows, dtype=torch.long).reshape(-1, 2).T
        self._plural, self._vowel, self._bare = torch.tensor(kinds, dtype=torch.bool).reshape(-1, 3).T
        self._sure = {
            introduced: torch.tensor([not words.is_doubtful(name, introduced=introduced) for name in names])
            for introduced in (False, True)
        }
        self._known = functools.lru_cache(maxsize=1024)(self._split)
        self._consonants = torch.tensor(consonants, dtype=torch.long)

    def spelled(self, article: str) -> Tensor:
        """Return the tokens of an article inside a sentence."""
        return torch.tensor(self._articles[article], dtype=torch.long)

    def split(self, groups: frozenset[str], but: frozenset[str], place: Place) -> tuple[Tensor, Tensor]:
        """Return the tokens that begin a name which may come next, and tokens that may not come next."""
        inner = any(place.before == each or place.before.endswith(f" {each}") for each in self._inner)
        return self._known(groups, but, replace(place, before="..." * inner))

    def _split(self, groups: frozenset[str], but: frozenset[str], place: Place) -> tuple[Tensor, Tensor]:
        """Do so; `place.before` is not empty inside a compound, whose end is judged with its beginning."""
        named = [self._words.group(name) in groups and name not in but for name in self._names]
        may = torch.tensor(named, dtype=torch.bool)[self._name]
        sure = self._sure[place.introduced][self._name] | may  # others are judged in the text
        if place.article is not None:
            may = may & (self._vowel == (place.article == "an"))
        if place.plural is not None:
            may = may & (self._plural == place.plural)
        here = torch.ones_like(self._bare) if place.begins else ~self._bare
        longer = [
            token
            for token, word, bare in self._first
            if (place.begins or not bare)
            and place.article in (None, "an" if takes_an(word) else "a")
            and any(self._words.group(name) in groups and name not in but for name in self._compounds[word])
        ]
        ruled_out = self._tokens[here & ~may & sure]
        if place.before:
            ruled_out = ruled_out[:0]
        if place.article == "an":
            ruled_out = torch.cat([ruled_out, self._consonants])
        begun = torch.tensor(longer, dtype=torch.long)
        return torch.cat([self._tokens[here & may], begun]), ruled_out[~torch.isin(ruled_out, begun)]


@functools.lru_cache(maxsize=4)
def name_tokens(vocabulary: Vocabulary, words: Any) -> NameTokens:
    """Return the words of a vocabulary, which takes a moment to read, for some `Words`."""
    return NameTokens(vocabulary, words)
