"""Things by noun phrases: spaCy's own machinery over words and a WordNet of ours, and the real data where it is."""

from __future__ import annotations

import pickle

import pytest

from sira_cli.errors import SettingsError
from sira_cli.look import words
from sira_cli.look.words import NounPhrases
from tests.support.eval import language_data

spacy = pytest.importorskip("spacy", reason="the extra `eval` is not installed")

FILES = ["noun.animal", "verb", "adj", "adv", "noun.artifact", "noun.attribute", "noun.location", "noun.state"]
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
def folder(tmp_path_factory) -> str:
    nlp = spacy.blank("en", meta={"name": "made_up", "version": "1.2"})
    nlp.add_pipe("tests_stand_in", name="parser")
    folder = tmp_path_factory.mktemp("spacy") / "pipeline"
    nlp.to_disk(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def data(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(words, "PIPELINE", folder)
    folder = language_data.build(tmp_path / "nltk_data")
    place = folder / "corpora" / "wordnet"
    data = index = "  1 A remark\n"
    for word, senses in sorted((word, files.split()) for word, files in SENSES.items()):
        offsets = []
        for sense in senses:
            offsets.append(f"{len(data):08d}")
            data += f"{offsets[-1]} {FILES.index(f'noun.{sense}'):02d} n 01 {word} 0 000 | it  \n"
        index += f"{word} n {len(senses)} 0 {len(senses)} 0 {' '.join(offsets)}  \n"
    (place / "data.noun").write_text(data)
    (place / "index.noun").write_text(index)
    (place / "noun.exc").write_text("")
    (place / "lexnames").write_text("".join(f"{number:02d}\t{name}\t1\n" for number, name in enumerate(FILES)))
    language_data.use(monkeypatch, folder)
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
    (tmp_path / "nltk_data/corpora/wordnet/index.noun").unlink()
    words._data.cache_clear()
    language_data.use(monkeypatch, tmp_path / "nltk_data")
    with pytest.raises(SettingsError, match=r"and NLTK with WordNet: .*python -m nltk.downloader wordnet"):
        NounPhrases()
    monkeypatch.setattr(words, "PIPELINE", "none")
    with pytest.raises(
        SettingsError, match=r"need spaCy with none, .*pip install .*\[eval\]'.*spacy download en_core_"
    ):
        NounPhrases()
