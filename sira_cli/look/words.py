"""The objects that a text names: nouns of a word list, in singular and plural, compounds first.

The bundled one is CHAIR's synonyms for COCO's objects and AMBER's vocabulary, without words that are no visible objects
or often another part of speech: an object that is not asked about is neither supported nor doubted.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from sira_cli.errors import DataError, SettingsError, install
from sira_cli.language import AMBER_WORDS, CHAIR_WORDS, function_words, singular

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc, Token

LONGEST = 3  # words of a compound
_DENIED = 3  # words before an object that may deny it: "no people or cars"
_WORD = re.compile(r"\w+(?:-\w+)*")
_REQUEST = "Which objects and living things does this text name? Copy each as it stands in the text, one per line."
_BULLET = re.compile(r"^[\s\-*\u2022\u30fb]*(?:\d+[.):\u3001]\s*)?")
PIPELINE = "en_core_web_sm"
_RULES = 1  # the version of the rules for noun phrases, for the record
_SENSES = 2
_SEEN = {f"noun.{file}" for file in ("animal", "artifact", "body", "food", "object", "person", "plant", "substance")}
_GET = (
    f"{install('eval')}, then python -m spacy download {PIPELINE} and python -m nltk.downloader wordnet; "
    "the bundled list needs none of these"
)
_QUOTES = " .\u3002\"'`*\u00ab\u00bb\u201c\u201d\u201e\u300c\u300d"


@dataclass(frozen=True)
class Thing:
    """A kind of object that a text names."""

    name: str  # in the singular, lower case
    spans: tuple[tuple[int, int], ...]  # start and end of every mention, in characters of the text
    group: str  # the head of its synonyms in the list; the name itself where it has none


class WordList:
    """Words that name objects, each with the head of its synonyms; a `guarded` one is often another part of speech."""

    def __init__(self, groups: Mapping[str, str], name: str, guarded: frozenset[str] = frozenset()) -> None:
        self.name, self._groups, self._guarded = name, groups, guarded  # the name stands in records
        self._dull = lists()["compounds_of_no_thing"] - set(groups)

    @classmethod
    def of(cls, lines: Iterable[str], name: str) -> WordList:
        """Read a user's list: one object per line, then its synonyms after commas; `#` begins a comment."""
        groups: dict[str, str] = {}
        for line in lines:
            words = [unicodedata.normalize("NFC", word.strip()).lower() for word in line.partition("#")[0].split(",")]
            words = [word for word in words if word]
            groups |= dict.fromkeys(words, next(iter(words), ""))
        if not groups:
            raise DataError(f"{name}: names no objects; expected one object per line")
        digest = hashlib.sha256("\n".join(f"{word}:{head}" for word, head in sorted(groups.items())).encode())
        return cls(groups, f"{name} {digest.hexdigest()[:8]}")

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def group(self, name: str) -> str:
        """Return the head of an object's synonyms; its own name without synonyms."""
        return self._groups.get(name, name)

    def things(self, text: str) -> list[Thing]:
        """Return the objects that a text names, in the order of their first mentions."""
        words, mentions, place = words_of(text), list[tuple[int, int, str]](), 0
        while place < len(words):
            length, name = self._longest(words, place, text)
            if name and not is_denied(words, place, text):
                mentions.append((words[place][1], words[place + length - 1][2], name))
            place += length
        return self._things(mentions)

    def named_by(self, word: str) -> str:
        """Return the object that a single word names as a noun; empty without one."""
        return next((each for each in (in_singular(word.lower()), word.lower()) if each in self), "")

    def is_doubtful(self, name: str, *, introduced: bool) -> bool:
        """Return whether a name is often another part of speech at its place."""
        return name in self._guarded and (not introduced or name in lists()["adjectives"])

    def compounds(self) -> Iterable[str]:
        """Return the names that have several words."""
        return (name for name in self._groups if " " in name)

    def _things(self, mentions: Iterable[tuple[int, int, str]]) -> list[Thing]:
        spans: dict[str, list[tuple[int, int]]] = {}
        for start, end, name in mentions:
            spans.setdefault(name, []).append((start, end))
        return [Thing(name, tuple(each), self.group(name)) for name, each in spans.items()]

    def _longest(self, words: list[tuple[str, int, int]], place: int, text: str) -> tuple[int, str]:
        """Return the longest name that starts at `place`: its number of words, and its object, if any."""
        for length in range(min(LONGEST, len(words) - place), 0, -1):
            part = words[place : place + length]
            if any(text[one[2] : two[1]] not in (" ", "-", "\n") for one, two in itertools.pairwise(part)):
                continue
            plain = " ".join(word.replace("-", " ") for word, _, _ in part)
            for known in (in_singular(plain), plain):
                if known in self._dull:
                    return length, ""
                if known in self and (known not in self._guarded or _is_noun(words, place, text)):
                    return length, known
        return 1, ""


class Asked(WordList):
    """The objects that the model itself finds in a text, when it is asked."""

    def __init__(self) -> None:
        super().__init__({}, "ask")

    def request(self, text: str) -> str:
        """Return the prompt that asks the model for the objects of a text."""
        return f"{_REQUEST}\n\n{text}"

    def listed(self, answer: str, text: str) -> list[Thing]:
        """Return the objects in the model's answer that the text really names, in the order of their first mentions."""
        parts = re.split(r"[\n,;\uff0c\u3001\uff1b]", answer)
        names = {" ".join(_BULLET.sub("", part).strip(_QUOTES).lower().split()) for part in parts}
        names = {re.sub(r"^(?:an?|the) ", "", name) for name in names} - {""}
        if not names:
            return []
        longest = sorted(names, key=lambda name: (-len(name), name))
        pattern = "|".join(r"\s+".join(map(re.escape, name.split())) for name in longest)
        matches = re.finditer(rf"(?<![\w-])(?:{pattern})(?![\w-])", text, re.IGNORECASE)
        return self._things((*match.span(), " ".join(match[0].lower().split())) for match in matches)


class NounPhrases(WordList):
    """The bundled list, and visible heads of noun phrases. Its name has the versions of pipeline and WordNet.

    "a busy street with two fire hydrants on the left side"
    street, hydrant, side    spaCy's noun phrases, their heads in the singular
    fire hydrant             the longest compound in the list, or of nouns in WordNet
    fire hydrant             visible objects: a street is a place, a side can't be touched

    Small parsers take many a noun for a verb, so words of the list outside noun phrases also count.
    """

    def __init__(self) -> None:
        (nlp, wordnet), base = _data(PIPELINE), shipped()
        version = f"{nlp.meta['lang']}_{nlp.meta['name']} {nlp.meta['version']}"
        super().__init__(base._groups, f"spacy/{_RULES} ({version}, WordNet {wordnet.get_version()})", base._guarded)

    def things(self, text: str) -> list[Thing]:
        """Return the objects that a text names, in the order of their first mentions."""
        words = words_of(text)
        places = {character: place for place, (_, *span) in enumerate(words) for character in range(*span)}
        named = [each for each in _heads(_data(PIPELINE)[0](text)) if not is_denied(words, places[each[0]], text)]
        taken = {character for start, end, _ in named for character in range(start, end)}
        listed = [(*span, thing.name) for thing in super().things(text) for span in thing.spans]
        return self._things(sorted([*named, *(each for each in listed if taken.isdisjoint(range(*each[:2])))]))


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


@functools.cache
def lists() -> dict[str, frozenset[str]]:
    """Return the lists of words.yaml."""
    texts: dict[str, str] = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8"))
    return {
        kind: frozenset(part.strip() for part in (text.split(",") if "," in text else text.split()))
        for kind, text in texts.items()
    }


@functools.cache
def shipped() -> WordList:
    """Return the bundled list: CHAIR's and AMBER's words."""
    groups: dict[str, str] = {}
    for line in CHAIR_WORDS.read_text(encoding="utf-8").splitlines():
        words = [word.strip().lower() for word in line.split(",")]
        groups |= dict.fromkeys(words, words[0])
    for word in (*AMBER_WORDS.read_text(encoding="utf-8").lower().split(), *lists()["compounds"]):
        groups.setdefault(word, word)
    left_out = lists()["no_things"] | lists()["places"]
    return WordList(
        {word: head for word, head in groups.items() if word not in left_out}, "chair+amber/1", lists()["other_words"]
    )


def words_of(text: str) -> list[tuple[str, int, int]]:
    """Return each word in lower case, with its start and end in the text."""
    return [(match[0].lower(), match.start(), match.end()) for match in _WORD.finditer(text)]


def in_singular(plain: str) -> str:
    """Return words with the last of them in the singular, unless it is a pair, such as scissors."""
    *first, last = plain.split()
    return " ".join([*first, last if plain in lists()["pairs"] else singular(last)])


def _is_noun(words: list[tuple[str, int, int]], place: int, text: str) -> bool:
    """Return whether a word is likely the head of a noun phrase: it follows an article, or one and an adjective."""
    before, articles = [word for word, _, _ in words[max(0, place - 2) : place]], lists()["before_nouns"]
    if not before or not (before[-1] in articles or (before[0] in articles and before[-1] not in function_words())):
        return False
    if place + 1 == len(words) or text[words[place][2] : words[place + 1][1]] != " ":
        return True
    following = words[place + 1][0]
    return following in function_words() or following.endswith(("ing", "ed"))


def is_denied(words: list[tuple[str, int, int]], place: int, text: str) -> bool:
    """Return whether a text denies an object: "no dog", "without any cars", "isn't a cat"; not "not far from a dog"."""
    for behind in range(place, max(0, place - _DENIED), -1):
        word, _, end = words[behind - 1]
        if text[end : words[behind][1]].strip() not in ("", "'", "\N{RIGHT SINGLE QUOTATION MARK}"):
            return False
        if word in lists()["denial_ends"]:
            return False
        if word in lists()["denials"]:
            return True
    return False


def with_article(name: str) -> str:
    """Return an object as a question names it: `a dog`, `an umbrella`, `grass`, `a pair of scissors`."""
    last = name.split()[-1]
    if last in lists()["pairs"]:
        return f"a pair of {name}"
    if last in lists()["uncountable"]:
        return name
    return f"{'an' if takes_an(name) else 'a'} {name}"


def takes_an(word: str) -> bool:
    """Return whether the English article before a word is `an`."""
    lower = word.lower()
    sounds_open = lower.startswith(tuple("aeiou")) and not lower.startswith(("uni", "use", "uku", "euro", "one"))
    return sounds_open or lower.startswith(("hour", "suv"))


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
                if known := _data(PIPELINE)[1].morphy(form.replace(" ", "_"), "n"):
                    return known.replace("_", " "), length
    return "", 0


def _is_seen(name: str) -> bool:
    """Return whether a noun names a visible object, by the list or by its two most frequent senses, not the scene."""
    if name in shipped():
        return name not in lists()["not_seen"]
    left_out = lists()["no_things"] | lists()["places"] | lists()["not_seen"]
    if not name or name.split()[-1] in left_out:  # also "dining room" and "city street"
        return False
    senses = _data(PIPELINE)[1].synsets(name.replace(" ", "_"), "n")[:_SENSES]
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
