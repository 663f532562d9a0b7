"""Similar words: exactly what spaCy says about a pipeline with vectors that lies on disk."""

from __future__ import annotations

import math
import sys
import warnings
from itertools import product
from typing import ClassVar

import numpy as np
import pytest

from sira_cli.errors import SettingsError
from sira_cli.eval.similarity import OFFICIAL, find_similarity, vectors

spacy = pytest.importorskip("spacy", reason="the extra `eval` is not installed")

VECTORS = {"sky": [1, 0], "cloud": [4, 2], "dog": [3, 4]}  # cosines with `sky`: 1, 0.89, 0.6


def pipeline(folder, vectors, **meta):
    nlp = spacy.blank("en", meta=meta)
    nlp.add_pipe("sentencizer")
    for word, vector in vectors.items():
        nlp.vocab.set_vector(word, np.array(vector, dtype="f"))
    nlp.to_disk(folder)
    return str(folder)


def test_equal_words_are_all_that_is_exactly_similar():
    exact = find_similarity("exact")
    assert exact.above("sky", "sky")
    assert not exact.above("sky", "skies")
    assert (exact.name, exact.official, exact.facts()) == ("exact", False, {"name": "exact"})


@pytest.mark.parametrize(("cosine", "above"), [(0.8, False), (math.nextafter(0.8, 1), True)])
def test_similar_is_above_the_threshold_not_at_it(cosine, above):
    class Nlp:
        meta: ClassVar = {"lang": "en", "name": "made_up", "version": "1"}

        def __call__(self, word):
            return self

        def similarity(self, other):
            return cosine

    assert vectors(Nlp()).above("sky", "cloud") == above


def test_words_without_vectors_are_similar_to_themselves_only(tmp_path, recwarn):
    found = find_similarity(pipeline(tmp_path, VECTORS))
    assert found.above("unknown", "unknown")
    assert not found.above("unknown", "sky")
    assert not found.above("unknown", "stranger")
    assert not recwarn.list


def test_facts_name_what_decides(tmp_path):
    found = find_similarity(pipeline(tmp_path, VECTORS, name="mine", version="7.1"))
    assert not found.official
    assert found.facts() == {"name": "en_mine", "version": "7.1", "spacy": spacy.__version__, "threshold": 0.8}


def test_the_official_pipeline_is_known_by_its_name(tmp_path, monkeypatch):
    folder = pipeline(tmp_path, VECTORS, name="core_web_lg", version="3.8.0")
    assert find_similarity(folder).official
    load = spacy.load
    monkeypatch.setattr(spacy, "load", lambda name: load({OFFICIAL: folder}[name]))
    found = find_similarity("spacy")
    assert (found.name, found.official) == (OFFICIAL, True)


def test_without_spacy_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(SettingsError, match=r"pip install .*\[eval\]'.*spacy download en_core_web_lg.*exact"):
        find_similarity("spacy")
    assert find_similarity("exact").name == "exact"


def test_what_is_no_pipeline_is_named(tmp_path):
    with pytest.raises(SettingsError, match="no_such_pipeline: spaCy cannot load it"):
        find_similarity("no_such_pipeline")
    with pytest.raises(SettingsError, match=f"{tmp_path}: spaCy cannot load it"):
        find_similarity(str(tmp_path))


def test_a_pipeline_without_vectors_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="has no word vectors"):
        find_similarity(pipeline(tmp_path, {}))


def test_answers_are_those_of_spacy_and_are_looked_up_once(tmp_path):
    rng = np.random.default_rng(0)
    words = [f"word{number}" for number in range(40)]
    close = np.array([3, 0, 0]) + rng.normal(size=(30, 3))
    folder = pipeline(tmp_path, dict(zip(words, close, strict=False)))  # ten have no vector
    nlp = spacy.load(folder)
    with warnings.catch_warnings(action="ignore"):
        spacys = {(one, other): nlp(one).similarity(nlp(other)) > 0.8 for one, other in product(words, words)}
    read = []

    class Counted:
        meta = nlp.meta

        def __call__(self, word):
            return read.append(word) or nlp(word)

    found = vectors(Counted())
    assert {pair: found.above(*pair) for pair in spacys} == spacys
    assert 100 < sum(spacys.values()) < 800
    assert sorted(read) == sorted(words)
