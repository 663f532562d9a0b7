"""Things by noun phrases: spaCy's own machinery over words of ours, and NLTK's reader of WordNet with our senses."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import nltk
import pytest

from sira_cli.errors import SettingsError
from sira_cli.look import words
from sira_cli.look.words import NounPhrases
from tests.support.eval import language_data

spacy = pytest.importorskip("spacy", reason="the extra `eval` is not installed")

_ANIMALS, _ARTIFACTS = ("aardvark", "dog", "octopus"), ("chandelier", "fire_hydrant", "hydrant", "lens", "street")
SENSES = dict.fromkeys(_ANIMALS, "animal") | dict.fromkeys(_ARTIFACTS, "artifact")  # the most frequent first
SENSES |= {"fire": "state state artifact", "watch": "attribute artifact", "mood": "state", "side": "location"}
OTHERS = dict.fromkeys(("a", "the", "no"), "DET") | dict.fromkeys(("on", "with"), "ADP")
OTHERS |= dict.fromkeys(("dogged", "cats"), "VERB") | {"two": "NUM", "hot": "ADJ", "John": "PROPN", "and": "CCONJ"}


@spacy.Language.component("tests_stand_in")
def stand_in(doc):
    """Tag known words; the last of several nouns is a head, and what stands before it belongs to it."""
    for token in doc:
        token.pos_ = OTHERS.get(token.text, "NOUN" if token.is_alpha else "PUNCT")
    for token in doc:
        head = token
        while head.pos_ in ("DET", "NUM", "ADJ", "NOUN") and head.i + 1 < len(doc):
            following = doc[head.i + 1]
            if following.pos_ not in ("ADJ", "NOUN"):
                break
            head = following
        token.head, token.dep_ = head, "ROOT" if head == token else "compound"
    return doc


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, nlp = tmp_path_factory.mktemp("data"), spacy.blank("en", meta={"name": "made_up", "version": "1.2"})
    nlp.add_pipe("tests_stand_in", name="parser")
    nlp.to_disk(folder / "pipeline")
    language_data.build(folder / "nltk_data")
    return folder


@pytest.fixture(autouse=True)
def data(folder, monkeypatch):
    monkeypatch.setattr(words, "PIPELINE", str(folder / "pipeline"))
    language_data.use(monkeypatch, folder / "nltk_data")
    wordnet = nltk.corpus.wordnet
    wordnet.ensure_loaded()
    senses = {
        name: [SimpleNamespace(lexname=f"noun.{each}".__str__) for each in SENSES[name].split()] for name in SENSES
    }
    monkeypatch.setattr(wordnet, "synsets", lambda name, pos: senses[name])
    singular = dict(zip(senses, senses, strict=True)) | {"octopuses": "octopus"}
    monkeypatch.setattr(wordnet, "morphy", lambda name, pos: singular.get(name))
    words._data.cache_clear()
    yield
    words._data.cache_clear()
    language_data.forget()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A chandelier with two aardvarks", [("chandelier", ["chandelier"]), ("aardvark", ["aardvarks"])]),
        ("the fire hydrants on the street", [("fire hydrant", ["fire hydrants"])]),  # the street is a place
        ("the chandelier hydrant", [("hydrant", ["hydrant"])]),  # no compound that anybody knows
        ("the dog on the side with the mood", [("dog", ["dog"])]),
        ("the fire", []),  # an artifact in its third sense only
        ("the watch", [("watch", ["watch"])]),
        ("the hot dog", [("hot dog", ["hot dog"])]),  # an adjective: the list has it
        ("the octopuses with the lenses", [("octopus", ["octopuses"]), ("lens", ["lenses"])]),
        ("no dog, the octopus", [("octopus", ["octopus"])]),
        ("John and the zzz", []),
        ("the aardvark dogged cats", [("aardvark", ["aardvark"]), ("cat", ["cats"])]),  # no noun phrase: the list's
    ],
)
def test_things(text, expected):
    found = [(thing.name, [text[start:end] for start, end in thing.spans]) for thing in NounPhrases().things(text)]
    assert found == expected


def test_the_name_says_what_decides_and_the_data_stays_behind_where_it_is_sent():
    phrases = NounPhrases()
    assert phrases.name == "spacy/1 (en_made_up 1.2, WordNet 3.0)"
    sent = pickle.dumps(phrases)
    assert len(sent) < 20_000
    assert pickle.loads(sent).things("the puppy") == phrases.things("the puppy")
    assert [thing.group for thing in phrases.things("the puppy")] == ["dog"]


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    words._data.cache_clear()
    language_data.use(monkeypatch, tmp_path)
    with pytest.raises(SettingsError, match=r"and NLTK with WordNet: .*python -m nltk.downloader wordnet"):
        NounPhrases()
    monkeypatch.setattr(words, "PIPELINE", "none")
    found = r"need spaCy with none, .*pip install .*\[eval\]'.*spacy download en_core_"
    with pytest.raises(SettingsError, match=found):
        NounPhrases()
