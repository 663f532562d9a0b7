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
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.errors import DataError, SettingsError, install
from sira_cli.look.words import LONGEST, Asked, Thing, WordList, in_singular, is_denied, lists, shipped, words_of

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc, Token

PIPELINE = "en_core_web_sm"
_RULES = 1  # the version of the rules below, for the record
_SENSES = 2
_SEEN = {f"noun.{file}" for file in ("animal", "artifact", "body", "food", "object", "person", "plant", "substance")}
_GET = (
    f"{install('eval')}, then python -m spacy download {PIPELINE} and python -m nltk.downloader wordnet; "
    "the bundled list needs none of these"
)


class NounPhrases(WordList):
    """The bundled list, and visible heads of noun phrases. Its name has the versions of pipeline and WordNet."""

    def __init__(self, pipeline: str | None = None) -> None:
        self._pipeline = pipeline or PIPELINE
        nlp, wordnet, base = _spacy(self._pipeline), _wordnet(), shipped()
        if "parser" not in nlp.pipe_names:
            raise SettingsError(f"spaCy's {self._pipeline} finds no noun phrases, it has no parser: {_GET}")
        version = f"{nlp.meta['lang']}_{nlp.meta['name']} {nlp.meta['version']}"
        super().__init__(base._groups, f"spacy/{_RULES} ({version}, WordNet {wordnet.get_version()})", base._guarded)

    def things(self, text: str) -> list[Thing]:
        """Return the objects that a text names, in the order of their first mentions."""
        words = words_of(text)
        places = {character: place for place, (_, *span) in enumerate(words) for character in range(*span)}
        named = [each for each in _heads(_spacy(self._pipeline)(text)) if not is_denied(words, places[each[0]], text)]
        taken = {character for start, end, _ in named for character in range(start, end)}
        listed = [(*span, thing.name) for thing in super().things(text) for span in thing.spans]
        return self._things(sorted([*named, *(each for each in listed if taken.isdisjoint(range(*each[:2])))]))


def _heads(doc: Doc) -> Iterator[tuple[int, int, str]]:
    """Yield start and end of the heads of noun phrases, and the objects that they name."""
    for phrase in doc.noun_chunks:
        head = phrase.root
        if head.is_alpha and head.pos_ in ("NOUN", "PROPN"):
            tokens = [token for token in doc[phrase.start : head.i + 1] if token.is_alpha][-LONGEST:]
            name, length = _longest(tokens)
            proper = head.pos_ == "PROPN" and not head.is_lower  # John; but a title may be in capitals
            if _is_seen(name) and (name in shipped() or not proper):
                yield tokens[-length].idx, head.idx + len(head), name


def _longest(tokens: list[Token]) -> tuple[str, int]:
    """Return the longest known name that ends with the last word, and its number of words; "" without one."""
    for length in range(len(tokens), 0, -1):
        part = tokens[-length:]
        plain = " ".join(token.lower_ for token in part)
        name = in_singular(plain)
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


def find_words(choice: str | None) -> WordList | None:
    """Return the finder of objects: a user's list, `spacy` or `ask`; None: the bundled list."""
    if choice is None:
        return None
    if choice in ("ask", "spacy"):
        return Asked() if choice == "ask" else NounPhrases()
    path = Path(choice)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    return WordList.of(lines, path.name)
