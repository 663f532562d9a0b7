"""The tokens that name an object by themselves, and those of them that may come next at a place in a text.

There is a | dog     " dog" and "Dog" name the dog, " dogs" too: but not after "a"
There is a | gir     a name of several tokens, " gir" + "affe", is found in the text (`Guide.first_forbidden`), not here
There is a | hot     " hot" begins the compound "hot dog", and may come next wherever a hot dog may
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sira_cli.language import function_words
from sira_cli.look.sentences import begins_sentence
from sira_cli.look.words import WordList, takes_an
from sira_cli.models.vocabulary import Vocabulary

_WORD = re.compile(r"(\s?)(\w[\w-]*)")
_LAST_WORDS = re.compile(r"(?:(\w[\w-]*) )?(\w[\w-]*) ?$")
_NEAR = 80  # characters that the last two words of a text may take
_INSIDE_WORD = "_-'\N{RIGHT SINGLE QUOTATION MARK}"
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_INTRODUCING = frozenset({"a", "an", "another", "several", "some", "many", "more", "few", *_NUMBERS})
_SINGULAR = ("a", "an", "another", "one")
_EITHER_NUMBER = ("some", "more")


@dataclass(frozen=True)
class Form:
    """The form of a word at a place; nothing else about the place decides which tokens fit.

    Attributes:
        begins: whether the next character begins a word even without a space before it.
        direct: whether nothing comes between the word that introduces an object and the object's name.
        article: `a` or `an` right before it, which the word has to fit; None: no article.
        plural: the number of the object's name; None: either.
    """

    begins: bool
    direct: bool = False
    article: str | None = None
    plural: bool | None = None


@dataclass(frozen=True)
class Place:
    """The place in a text where a word comes next, perhaps the name of an object: "a dog", "two red cars".

    Attributes:
        before: the two words before it, in lower case.
        form: the form of the word.
        introduction: start of the word that introduces an object here, perhaps with an adjective after it; None: no
            object is introduced here.
    """

    before: str
    form: Form
    introduction: int | None = None

    @classmethod
    def at_the_end(cls, text: str) -> Place:
        """Return the end of a text."""
        begins = not text or not (text[-1].isalnum() or text[-1] in _INSIDE_WORD)
        before = " ".join(re.findall(r"\w+", text[-_NEAR:].lower())[-2:])
        last = _LAST_WORDS.search(text, max(0, len(text) - _NEAR))
        if last is None:
            return cls(before, Form(begins))
        word = last[2].lower()
        if word in _INTRODUCING:
            article = word if word in ("a", "an") else None
            return cls(before, Form(begins, True, article, _is_plural(word)), last.start(2))
        earlier = (last[1] or "").lower()
        if earlier in _INTRODUCING and word not in function_words():  # an adjective
            return cls(before, Form(begins, plural=_is_plural(earlier)), last.start(1))
        return cls(before, Form(begins))


def _is_plural(introducing: str) -> bool | None:
    """Return whether a word introduces several objects; None: one or several."""
    if introducing in _EITHER_NUMBER:
        return None
    return introducing not in _SINGULAR


class _Word(NamedTuple):
    """A token that is a word: an object's name, or the first word of compounds; `bare` has no space before it."""

    token: int
    name: str
    plural: bool
    article: str
    bare: bool

    def fits(self, form: Form) -> bool:
        """Return whether the word can stand at a place of this form, whatever its number."""
        return (form.begins or not self.bare) and form.article in (None, self.article)


class Options(NamedTuple):
    """Tokens that begin a name which may come next, and tokens that may not come next."""

    names: Sequence[int]
    ruled_out: Sequence[int]


class NameTokens:
    """The tokens of a vocabulary that are words by themselves: the objects that they name, their number, their article.

    Attributes:
        articles: tokens of `a` and `an` inside a sentence.
        within_sentences: tokens that cannot begin a sentence, in texts whose sentences begin in lower case (True), and
            in others.
    """

    def __init__(self, vocabulary: Vocabulary, words: WordList) -> None:
        self.articles: dict[str, list[int]] = {"a": [], "an": []}
        self.within_sentences: dict[bool, list[int]] = {True: [], False: []}
        self._words = words
        self._compounds: dict[str, set[str]] = {}  # by their first word
        for name in words.compounds():
            self._compounds.setdefault(name.split()[0], set()).add(name)
        self._names: list[_Word] = []
        self._beginnings: list[_Word] = []  # of compounds
        self._not_after_an: list[int] = []
        for token, data in enumerate(vocabulary.pieces()):
            self._sort_in(token, data.decode("utf-8", "replace"))
        self._options = functools.lru_cache(maxsize=1024)(self._found)

    def _sort_in(self, token: int, text: str) -> None:
        """Note what a token can be."""
        for lower, tokens in self.within_sentences.items():
            if not begins_sentence(text, lower=lower):
                tokens.append(token)
        match = _WORD.fullmatch(text)
        if match is None:
            return
        word = match[2].lower()
        bare = not match[1]
        article = "an" if takes_an(word) else "a"
        if not bare and match[2] in self.articles:
            self.articles[match[2]].append(token)
        if not bare and article == "a":
            self._not_after_an.append(token)
        if word in self._compounds:
            self._beginnings.append(_Word(token, word, False, article, bare))
        name = self._words.named_by(word)
        if name:
            self._names.append(_Word(token, name, word != name, article, bare))

    def options(self, groups: frozenset[str], but: frozenset[str], place: Place) -> Options:
        """Return the tokens that may come next at a place, of objects in some groups, and those that may not.

        Args:
            groups: those of the objects that may be named here (`WordList.group`).
            but: names of objects in these groups that may not be named all the same.
            place: the place.
        """
        in_compound = any(f" {place.before}".endswith(f" {start}") for start in self._words.beginnings)
        return self._options(groups, but, place.form, in_compound)

    def _found(self, groups: frozenset[str], but: frozenset[str], form: Form, in_compound: bool) -> Options:
        def may_come(name: str) -> bool:
            return self._words.group(name) in groups and name not in but

        beginnings = []
        for word in self._beginnings:
            if word.fits(form) and any(map(may_come, self._compounds[word.name])):
                beginnings.append(word.token)
        names = []
        ruled_out = []
        for word in self._names:
            if word.bare and not form.begins:
                continue
            allowed = may_come(word.name)
            if allowed and word.fits(form) and form.plural in (None, word.plural):
                names.append(word.token)
            elif allowed or not self._words.is_doubtful(word.name, introduced=form.direct):
                ruled_out.append(word.token)  # other words are judged in the text
        if in_compound:  # its end is judged with its beginning
            ruled_out = []
        if form.article == "an":
            ruled_out += self._not_after_an
        kept = {*beginnings}
        return Options([*names, *beginnings], [token for token in ruled_out if token not in kept])


name_tokens = functools.lru_cache(maxsize=4)(NameTokens)  # they take a moment to find
