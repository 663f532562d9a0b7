"""The objects that a text names, in an open vocabulary: the list's, and visible heads of noun phrases.

    "a busy street with two fire hydrants on the left side"
    street, hydrant, side    spaCy's noun phrases, their heads in the singular
    fire hydrant             the longest compound in the list, or of nouns in WordNet
    fire hydrant             visible objects: a street is a place, a side can't be touched

A noun can be seen if the bundled list has it, or if WordNet's lexicographers put one of its two most frequent
senses among animals, artifacts, bodies, food, objects, persons, plants or substances. Small parsers take many a noun
for a verb, so words of the list outside spaCy's noun phrases also count as objects.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.errors import SettingsError
from sira_cli.language.fallback import singular
from sira_cli.language.listed import ASK, Asked
from sira_cli.language.things import LONGEST, Thing, Words, is_denied, lists, read, shipped, words_of

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc, Token

SPACY = "spacy"  # given instead of a file
PIPELINE = "en_core_web_sm"
_RULES = 1  # the version of the rules below, for the record
_SENSES = 2
_SEEN = {f"noun.{file}" for file in ("animal", "artifact", "body", "food", "object", "person", "plant", "substance")}
_GET = (
    f"pip install 'sira-cli[eval]', then python -m spacy download {PIPELINE} and python -m nltk.downloader wordnet; "
    "the bundled list needs none of these"
)


class NounPhrases(Words):
    """Things by noun phrases.

    Attributes:
        name: the pipeline and WordNet with their versions.
    """

    def __init__(self, pipeline: str | None = None) -> None:
        """Load the data."""
        self._pipeline = pipeline or PIPELINE
        nlp, wordnet = _spacy(self._pipeline), _wordnet()
        if "parser" not in nlp.pipe_names:
            raise SettingsError(f"spaCy's {self._pipeline} finds no noun phrases, it has no parser: {_GET}")
        self.name = f"spacy/{_RULES} ({_version(nlp)}, WordNet {wordnet.get_version()})"

    def group(self, name: str) -> str:
        """Return the head of an object's synonyms in the bundled list."""
        return shipped().group(name)

    def named_by(self, word: str) -> str:
        """Return the object of the bundled list that a single word names; empty without one."""
        return shipped().named_by(word)

    def is_doubtful(self, name: str, *, introduced: bool) -> bool:
        """Return whether a name is often another part of speech at its place."""
        return shipped().is_doubtful(name, introduced=introduced)

    def compounds(self) -> Iterable[str]:
        """Return the names of the bundled list that have several words."""
        return shipped().compounds()

    def things(self, text: str) -> list[Thing]:
        """Return the objects that a text names, in the order of their first mentions."""
        words = words_of(text)
        places = {character: place for place, (_, *span) in enumerate(words) for character in range(*span)}
        named = [
            (start, end, name)
            for name, start, end in _named(_spacy(self._pipeline)(text))
            if not is_denied(words, places[start], text)
        ]
        taken = {character for start, end, _ in named for character in range(start, end)}
        listed = [(*span, thing.name) for thing in shipped().things(text) for span in thing.spans]
        named += [mention for mention in listed if taken.isdisjoint(range(*mention[:2]))]
        found: dict[str, list[tuple[int, int]]] = {}
        for start, end, name in sorted(named):
            found.setdefault(name, []).append((start, end))
        return [Thing(name, tuple(spans), self.group(name)) for name, spans in found.items()]


def _named(doc: Doc) -> Iterator[tuple[str, int, int]]:
    """Yield the objects of the heads of noun phrases, with start and end in the text."""
    for phrase in doc.noun_chunks:
        head = phrase.root
        if head.is_alpha and head.pos_ in ("NOUN", "PROPN"):
            tokens = [token for token in doc[phrase.start : head.i + 1] if token.is_alpha][-LONGEST:]
            name, length = _longest(tokens)
            proper = head.pos_ == "PROPN" and not head.is_lower  # John; but a title may be in capitals
            if _is_seen(name) and (name in shipped() or not proper):
                yield name, tokens[-length].idx, head.idx + len(head)


def _longest(tokens: list[Token]) -> tuple[str, int]:
    """Return the longest known name that ends with the last word, and its number of words; "" without one."""
    for length in range(len(tokens), 0, -1):
        part = tokens[-length:]
        plain = " ".join(token.lower_ for token in part)
        *first, last = plain.split()
        name = " ".join([*first, last if plain in lists()["pairs"] else singular(last)])
        if name in shipped():
            return name, length
        if all(token.pos_ in ("NOUN", "PROPN") for token in part):
            for form in (name, plain):
                if known := _wordnet().morphy(form.replace(" ", "_"), "n"):
                    return known.replace("_", " "), length
    return "", 0


def _is_seen(name: str) -> bool:
    """Return whether a noun names a visible object, not the scene as a whole."""
    if name in shipped():
        return name not in lists()["not_seen"]
    left_out = lists()["no_things"] | lists()["places"] | lists()["not_seen"]
    if not name or name.split()[-1] in left_out:  # also "dining room" and "city street"
        return False
    senses = _wordnet().synsets(name.replace(" ", "_"), "n")[:_SENSES]
    return any(sense.lexname() in _SEEN for sense in senses)


@functools.cache
def _spacy(pipeline: str) -> Language:
    try:
        import spacy

        return spacy.load(pipeline, exclude=["ner"])
    except ImportError as error:
        raise SettingsError(f"noun phrases need spaCy, which is not installed: {_GET}") from error
    except (OSError, ValueError) as error:
        raise SettingsError(f"spaCy's {pipeline} is not installed, or cannot be read: {_GET}") from error


def _version(nlp: Language) -> str:
    return f"{nlp.meta['lang']}_{nlp.meta['name']} {nlp.meta['version']}"


@functools.cache
def _wordnet() -> Any:
    try:
        from nltk.corpus import wordnet

        wordnet.ensure_loaded()
    except ImportError as error:
        raise SettingsError(f"noun phrases need NLTK, which is not installed: {_GET}") from error
    except (LookupError, OSError) as error:
        raise SettingsError(f"NLTK's WordNet is not installed, or a file of it is missing: {_GET}") from error
    return wordnet


def find_words(choice: str | None) -> Words | None:
    """Return the finder of the objects that a text names; None: the bundled list."""
    if choice is None:
        return None
    if choice == ASK:
        return Asked()
    return NounPhrases() if choice == SPACY else read(Path(choice))
