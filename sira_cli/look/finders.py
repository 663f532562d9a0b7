"""Finders of the objects that a text names, besides the bundled list: a user's list, noun phrases, the model itself."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.errors import DataError, SettingsError, install
from sira_cli.look.words import LONGEST, Naming, Thing, WordList, in_singular, is_denied, lists, shipped, words_of

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc, Token

PIPELINE = "en_core_web_sm"
_REQUEST = "Which objects and living things does this text name? Copy each as it stands in the text, one per line."
_BULLET = re.compile(r"^[\s\-*\u2022\u30fb]*(?:\d+[.):\u3001]\s*)?")
_QUOTES = " .\u3002\"'`*\u00ab\u00bb\u201c\u201d\u201e\u300c\u300d"
_RULES = 1  # the version of the rules for noun phrases, for the record
_SENSES = 2
_SEEN = {f"noun.{file}" for file in ("animal", "artifact", "body", "food", "object", "person", "plant", "substance")}
_NOUNS = ("NOUN", "PROPN")
_GET = (
    f"{install('eval')}, then python -m spacy download {PIPELINE} and python -m nltk.downloader wordnet; "
    "the bundled list needs none of these"
)


def find_words(choice: str | None) -> WordList | None:
    """Return the finder of objects: a user's list, `spacy` or `ask`; None: the bundled list."""
    match choice:
        case None:
            return None
        case "ask":
            return Asked()
        case "spacy":
            return NounPhrases()
    path = Path(choice)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    return WordList.of(lines, path.name)


class Asked(WordList):
    """The objects that the model itself finds in a text, when it is asked."""

    def __init__(self) -> None:
        super().__init__({}, "ask")

    def request(self, text: str) -> str:
        """Return the prompt that asks the model for the objects of a text."""
        return f"{_REQUEST}\n\n{text}"

    def listed(self, answer: str, text: str) -> list[Thing]:
        """Return the objects in the model's answer that the text really names, in the order of their first mentions."""
        names = set()
        for part in re.split(r"[\n,;\uff0c\u3001\uff1b]", answer):
            name = _plain(_BULLET.sub("", part).strip(_QUOTES))
            names.add(re.sub(r"^(?:an?|the) ", "", name))
        names.discard("")
        if not names:
            return []
        patterns = []
        for name in sorted(names, key=lambda name: (-len(name), name)):  # the longest first
            patterns.append(r"\s+".join(map(re.escape, name.split())))
        namings = []
        for match in re.finditer(rf"(?<![\w-])(?:{'|'.join(patterns)})(?![\w-])", text, re.IGNORECASE):
            namings.append(Naming(*match.span(), _plain(match[0])))
        return self.collected(namings)


def _plain(name: str) -> str:
    """Return a name in lower case, with one blank between its words."""
    return " ".join(name.lower().split())


class NounPhrases(WordList):
    """The bundled list, and visible heads of noun phrases. Its name has the versions of pipeline and WordNet.

    "a busy street with two fire hydrants on the left side"
    street, hydrant, side    spaCy's noun phrases, their heads in the singular
    fire hydrant             the longest compound in the list, or of nouns in WordNet
    fire hydrant             visible objects: a street is a place, a side can't be touched

    Small parsers take many a noun for a verb, so words of the list outside noun phrases also count.
    """

    def __init__(self) -> None:
        nlp, wordnet = _data(PIPELINE)
        base = shipped()
        version = f"{nlp.meta['lang']}_{nlp.meta['name']} {nlp.meta['version']}"
        name = f"spacy/{_RULES} ({version}, WordNet {wordnet.get_version()})"
        super().__init__(base._groups, name, base._guarded)

    def things(self, text: str) -> list[Thing]:
        """Return the objects that a text names, in the order of their first mentions."""
        nlp, _ = _data(PIPELINE)
        words = words_of(text)
        place_of = {}  # of the word, by each of its characters
        for place, word in enumerate(words):
            place_of.update(dict.fromkeys(range(word.start, word.end), place))
        namings = []
        taken = set[int]()  # characters
        for head in _heads(nlp(text)):
            if not is_denied(words, place_of[head.start], text):
                namings.append(head)
                taken.update(range(head.start, head.end))
        for thing in super().things(text):
            for start, end in thing.spans:
                if taken.isdisjoint(range(start, end)):
                    namings.append(Naming(start, end, thing.name))
        return self.collected(sorted(namings))


def _heads(doc: Doc) -> Iterator[Naming]:
    """Yield the heads of noun phrases that name visible objects."""
    for phrase in doc.noun_chunks:
        head = phrase.root
        if not head.is_alpha or head.pos_ not in _NOUNS:
            continue
        tokens = [token for token in doc[phrase.start : head.i + 1] if token.is_alpha][-LONGEST:]
        name, length = _longest(tokens)
        is_proper = head.pos_ == "PROPN" and not head.is_lower  # John; but a title may be in capitals
        if _is_seen(name) and (name in shipped() or not is_proper):
            yield Naming(tokens[-length].idx, head.idx + len(head), name)


def _longest(tokens: Sequence[Token]) -> tuple[str, int]:
    """Return the longest known name that ends with the last word, and its number of words; "" without one."""
    _, wordnet = _data(PIPELINE)
    for length in range(len(tokens), 0, -1):
        part = tokens[-length:]
        plain = " ".join(token.lower_ for token in part)
        name = in_singular(plain)
        if name in shipped():
            return name, length
        if any(token.pos_ not in _NOUNS for token in part):
            continue
        for form in (name, plain):
            lemma = wordnet.morphy(form.replace(" ", "_"), "n")
            if lemma:
                return lemma.replace("_", " "), length
    return "", 0


def _is_seen(name: str) -> bool:
    """Return whether a noun names a visible object, by the list or by its two most frequent senses, not the scene."""
    if name in shipped():
        return name not in lists()["not_seen"]
    left_out = lists()["no_things"] | lists()["places"] | lists()["not_seen"]
    if not name or name.split()[-1] in left_out:  # also "dining room" and "city street"
        return False
    _, wordnet = _data(PIPELINE)
    senses = wordnet.synsets(name.replace(" ", "_"), "n")[:_SENSES]
    return any(sense.lexname() in _SEEN for sense in senses)


@functools.cache
def _data(pipeline: str) -> tuple[Language, Any]:
    """Return spaCy's pipeline, and NLTK's WordNet."""
    try:
        import spacy
        from nltk.corpus import wordnet

        wordnet.ensure_loaded()
        return spacy.load(pipeline, exclude=["ner"]), wordnet
    except (ImportError, LookupError, OSError, ValueError) as error:
        raise SettingsError(f"noun phrases need spaCy with {pipeline}, and NLTK with WordNet: {_GET}") from error
