"""Whether two words name the same thing: by spaCy's vectors, as AMBER's script says, or by equality."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from sira_cli.errors import SettingsError, install

OFFICIAL = "en_core_web_lg"  # the spaCy pipeline of AMBER's script
THRESHOLD = 0.8  # words are similar above it, not at it


@dataclass(frozen=True)
class Similarity:
    """A test of whether two words are similar."""

    name: str  # `exact`, or the name of a spaCy pipeline
    above: Callable[[str, str], bool]  # whether two words are more similar than THRESHOLD
    official: bool = False  # whether AMBER's script uses it
    decisive: Mapping[str, Any] = field(default_factory=dict)  # further settings that decide the results

    def facts(self) -> dict[str, Any]:
        """Return the settings that decide the results of `above`."""
        return {"name": self.name, **self.decisive}


EQUAL = Similarity("exact", operator.eq)  # AMBER's script finds more similar words, so its figures differ


def find_similarity(choice: str = "spacy") -> Similarity:
    """Return a similarity: `spacy` as in AMBER's script, `exact`, or `auto`, spaCy's if it is installed."""
    if choice == "exact":
        return EQUAL
    try:
        import spacy

        return vectors(spacy.load(OFFICIAL))
    except (ImportError, OSError) as error:  # a pipeline that is not installed is an OSError
        if choice == "auto":
            return EQUAL
        raise SettingsError(
            f"AMBER compares words with spaCy's {OFFICIAL}, which is not installed: `{install('eval')}` and "
            f"`python -m spacy download {OFFICIAL}`; or give `similarity=` exact (noted in the results), or `task=` "
            "discriminative for the questions alone"
        ) from error


def vectors(nlp: Any) -> Similarity:
    """Return spaCy's `nlp(one).similarity(nlp(other))`; each word is read once, each pair compared once."""
    read = functools.cache(nlp)

    @functools.cache
    def above(one: str, other: str) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a word without a vector; the script also ignores it
            return bool(read(one).similarity(read(other)) > THRESHOLD)

    name = f"{nlp.meta['lang']}_{nlp.meta['name']}"
    decisive = {"version": str(nlp.meta["version"]), "spacy": version("spacy"), "threshold": THRESHOLD}
    return Similarity(name, above, name == OFFICIAL, decisive)
