"""Whether two words name the same thing: by spaCy's vectors, as AMBER's script, by a table, or by equality."""

from __future__ import annotations

import functools
import hashlib
import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError, SettingsError, install
from sira_cli.pictures.rows import brief, read_json, some

OFFICIAL = "en_core_web_lg"  # the spaCy pipeline of AMBER's script
THRESHOLD = 0.8  # words are similar above it, not at it


@dataclass(frozen=True)
class Similarity:
    """A test of whether two words are similar."""

    name: str  # `exact`, the file of a table, or the name of a spaCy pipeline
    above: Callable[[str, str], bool]  # whether two words are more similar than THRESHOLD
    official: bool = False  # whether AMBER's script uses it
    decisive: tuple[tuple[str, Any], ...] = ()  # further settings that decide the results

    def facts(self) -> dict[str, Any]:
        """Return the settings that decide the results of `above`."""
        return {"name": self.name, **dict(self.decisive)}


EQUAL = Similarity("exact", operator.eq)  # AMBER's script finds more similar words, so its figures differ


def find_similarity(choice: str = "spacy") -> Similarity:
    """Return the similarity of a name: `spacy` as in AMBER's script, `exact`, a spaCy pipeline, or a table."""
    if choice == "auto":
        try:
            return find_similarity("spacy")
        except SettingsError:
            return EQUAL
    if choice == "exact":
        return EQUAL
    if choice.endswith(".json"):
        return _table(Path(choice))
    name = OFFICIAL if choice == "spacy" else choice
    instead = "`similarity=` exact (noted in the results), or `task=` discriminative for the questions alone"
    get_model = f"`python -m spacy download {OFFICIAL}`"
    try:
        import spacy
    except ImportError as error:
        raise SettingsError(
            f"AMBER compares words with spaCy, which is not installed: `{install('eval')}` and {get_model}; "
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
    return vectors(nlp)


def vectors(nlp: Any) -> Similarity:
    """Return spaCy's `nlp(one).similarity(nlp(other))`; each word is read once, each pair compared once."""
    read = functools.cache(nlp)

    @functools.cache
    def above(one: str, other: str) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a word without a vector; the script also ignores it
            return bool(read(one).similarity(read(other)) > THRESHOLD)

    name = f"{nlp.meta['lang']}_{nlp.meta['name']}"
    made_by = (("version", str(nlp.meta["version"])), ("spacy", version("spacy")), ("threshold", THRESHOLD))
    return Similarity(name, above, name == OFFICIAL, made_by)


def _table(path: Path) -> Similarity:
    """Read prepared similarities: a JSON object of words, each with an object that gives other words a number.

    Pairs count in both directions; pairs missing in the table are similar only if equal.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f'{path}: expected a JSON object such as {{"dog": {{"puppy": 0.85}}}}')
    similar: set[tuple[str, str]] = set()
    for word, others in content.items():
        if not isinstance(others, dict) or not all(type(value) in (int, float) for value in others.values()):
            raise DataError(f"{path}: {some([word])}: expected an object of words and numbers, got {brief(others)}")
        similar |= {(word, other) for other, value in others.items() if value > THRESHOLD}

    def above(one: str, other: str) -> bool:
        return one == other or (one, other) in similar or (other, one) in similar

    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return Similarity(str(path), above, decisive=(("sha256", sha256), ("threshold", THRESHOLD)))
