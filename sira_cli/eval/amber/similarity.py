"""Tests of whether two words name the same thing: by spaCy's vectors, as AMBER's script, by a table, or by equality."""

from __future__ import annotations

import hashlib
import warnings
from abc import ABC, abstractmethod
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.errors import DataError, SettingsError
from sira_cli.pictures.rows import brief, read_json, some

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

OFFICIAL = "en_core_web_lg"
THRESHOLD = 0.8  # words are similar above it, not at it


class Similarity(ABC):
    """A test of whether two words are similar.

    Attributes:
        name: `exact`, or the name of a spaCy pipeline.
        official: whether AMBER's script uses it.
    """

    name: str
    official: bool

    @abstractmethod
    def above(self, one: str, other: str) -> bool:
        """Return whether two words are more similar than THRESHOLD."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return the settings that decide the results of `above`."""


class EqualWords(Similarity):
    """Words are similar only if they are equal. AMBER's script finds more, so its figures differ."""

    name = "exact"
    official = False

    def above(self, one: str, other: str) -> bool:
        """Return whether two words are equal."""
        return one == other

    def facts(self) -> dict[str, Any]:
        """Return the name."""
        return {"name": self.name}


class SimilarityTable(Similarity):
    """Prepared similarities: a JSON object of words, each with an object that gives other words a number.

    Pairs count in both directions; pairs missing in the table are similar only if equal.
    """

    official = False

    def __init__(self, path: Path) -> None:
        """Read the file."""
        self.name = str(path)
        content = read_json(path)
        if not isinstance(content, dict):
            raise DataError(f'{path}: expected a JSON object such as {{"dog": {{"puppy": 0.85}}}}')
        self._similar: set[tuple[str, str]] = set()
        for word, others in content.items():
            if not isinstance(others, dict) or not all(type(value) in (int, float) for value in others.values()):
                raise DataError(f"{path}: {some([word])}: expected an object of words and numbers, got {brief(others)}")
            self._similar |= {(word, other) for other, value in others.items() if value > THRESHOLD}
        self._sha256 = hashlib.sha256(path.read_bytes()).hexdigest()

    def above(self, one: str, other: str) -> bool:
        """Return whether two words are equal, or more similar than THRESHOLD in the table."""
        return one == other or (one, other) in self._similar or (other, one) in self._similar

    def facts(self) -> dict[str, Any]:
        """Return the file and the start of its hash."""
        return {"name": self.name, "sha256": self._sha256[:16], "threshold": THRESHOLD}


class Vectors(Similarity):
    """spaCy's `nlp(one).similarity(nlp(other))`; each word is read once, each pair compared once.

    Attributes:
        version: of the pipeline.
    """

    def __init__(self, nlp: Language) -> None:
        self.name = f"{nlp.meta['lang']}_{nlp.meta['name']}"
        self.version = str(nlp.meta["version"])
        self.official = self.name == OFFICIAL
        self._nlp = nlp
        self._docs: dict[str, Doc] = {}
        self._pairs: dict[tuple[str, str], bool] = {}

    def above(self, one: str, other: str) -> bool:
        """Return whether two words are more similar than THRESHOLD; different words without a vector are not."""
        pair = one, other
        if pair not in self._pairs:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # a word without a vector; the script also ignores it
                self._pairs[pair] = bool(self._doc(one).similarity(self._doc(other)) > THRESHOLD)
        return self._pairs[pair]

    def facts(self) -> dict[str, Any]:
        """Return names and versions."""
        return {"name": self.name, "version": self.version, "spacy": version("spacy"), "threshold": THRESHOLD}

    def _doc(self, word: str) -> Doc:
        if word not in self._docs:
            self._docs[word] = self._nlp(word)
        return self._docs[word]


def find_similarity(choice: str = "spacy") -> Similarity:
    """Return the similarity of a name."""
    if choice == "auto":
        try:
            return find_similarity("spacy")
        except SettingsError:
            return EqualWords()
    if choice == "exact":
        return EqualWords()
    if choice.endswith(".json"):
        return SimilarityTable(Path(choice))
    name = OFFICIAL if choice == "spacy" else choice
    instead = "`similarity=` exact (noted in the results), or `task=` discriminative for the questions alone"
    get_model = f"`python -m spacy download {OFFICIAL}`"
    try:
        import spacy
    except ImportError as error:
        raise SettingsError(
            f"AMBER compares words with spaCy, which is not installed: `pip install 'sira-cli[eval]'` and {get_model}; "
            f"or give {instead}"
        ) from error
    try:
        nlp = spacy.load(name)
    except (OSError, ImportError, ValueError) as error:
        if name == OFFICIAL and not spacy.util.is_package(name):
            raise SettingsError(
                f"AMBER compares words with spaCy's {OFFICIAL}, which is not installed: {get_model}; or give {instead}"
            ) from error
        raise SettingsError(
            f"{name}: spaCy cannot load it: {error}: give an installed pipeline's name, a pipeline's folder, or exact"
        ) from error
    if not nlp.vocab.vectors.size:
        raise SettingsError(
            f"{name}: has no word vectors, so it cannot compare words: give a pipeline that has them, such as "
            f"{OFFICIAL} ({get_model}), or `similarity=` exact"
        )
    return Vectors(nlp)
