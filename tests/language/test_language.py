"""Words of captions: the real NLTK on small data of our own, pattern's singulars, and the rules without data."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nltk
import pytest

from sira_cli import language
from sira_cli.errors import SettingsError
from sira_cli.language import find_language
from tests.support.eval import language_data

TAGGER = "averaged_perceptron_tagger_eng"
FALLBACK = {"language": "fallback", "official": False, "rules": 1}


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Path:
    return language_data.build(tmp_path_factory.mktemp("nltk") / "data")


@pytest.fixture
def data(built, tmp_path, monkeypatch) -> Path:
    """A copy that NLTK knows and nothing else."""
    folder = shutil.copytree(built, tmp_path / "nltk_data")
    language_data.use(monkeypatch, folder)
    yield folder
    language_data.forget()


@pytest.mark.parametrize(
    ("rule", "text", "words"),
    [
        ("lemmas", "The men are riding horses near two benches.", "the man be ride horse near two bench ."),
        ("lemmas", "A woman rides a horse and leaves the better seat", "a woman ride a horse and leave the good seat"),
        ("lemmas", "", ""),
        ("nouns", "The dogs run happily, they don't sit.", "dog"),
        ("nouns", "There are wine glasses on the table", "wine glass table"),
        # WordNet knows no capitals, so what begins a sentence stays a plural that no vocabulary has.
        ("nouns", "Horses are riding the horses", "Horses horse"),
    ],
)
def test_words_take_the_part_of_speech_into_account(data, rule, text, words):
    assert getattr(find_language("nltk", (rule,)), rule)(text) == words.split()


def test_all_tokens_of_a_caption_are_tagged_at_once(data, monkeypatch):
    asked = []
    monkeypatch.setattr(nltk, "pos_tag", lambda tokens: asked.append(tokens) or [(token, "IN") for token in tokens])
    assert find_language("nltk").lemmas("men leaves. The dogs") == ["man", "leaf", ".", "the", "dog"]
    assert asked[-1] == ["men", "leaves", ".", "the", "dogs"]


def test_facts_name_versions_and_what_the_data_holds_zipped_or_not(data, monkeypatch):
    """`nltk.downloader` leaves wordnet zipped."""
    folder, before = data / "corpora" / "wordnet", find_language("nltk").facts()
    assert before["language"] == "nltk"
    assert before["official"] is True
    assert list(before["versions"]) == ["nltk", "punkt_tab", TAGGER, "wordnet"]
    (folder / "noun.exc").write_text("oxen ox\n")
    language_data.use(monkeypatch, data)
    after = find_language("nltk").facts()
    assert {name for name, each in after["versions"].items() if each != before["versions"][name]} == {"wordnet"}
    shutil.make_archive(str(folder), "zip", data / "corpora", "wordnet")
    shutil.rmtree(folder)
    language_data.use(monkeypatch, data)
    assert find_language("nltk").facts() == after


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ("tokenizers/punkt_tab", "punkt_tab"),
        (f"taggers/{TAGGER}", TAGGER),
        ("corpora/wordnet", "wordnet"),
        ("corpora/wordnet/lexnames", "lexnames"),
    ],
)
def test_missing_data_is_named_with_the_way_to_get_it(data, gone, named):
    path = data / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(
        SettingsError, match=rf"{named}.*pip install 'nltk.*, then python -m nltk.downloader punkt_tab {TAGGER} wo"
    ):
        find_language("nltk")
    found = find_language("auto")
    assert found.name == "fallback"
    assert named in found.facts()["why"]


def test_singulars_need_no_tagger_and_no_wordnet_but_textblob(data, monkeypatch):
    shutil.rmtree(data / "taggers")
    shutil.rmtree(data / "corpora")
    found = find_language("auto", ("singulars",))
    assert found.name == "nltk"
    assert list(found.facts()["versions"]) == ["nltk", "textblob", "punkt_tab"]
    words = ["two", "woman", "'", "knife", "are", "on", "the", "wine", "glass", "."]
    assert found.singulars("Two women's knives are on the wine glasses.") == words
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(SettingsError, match=r"textblob is not installed.*pip install .*'textblob"):
        find_language("nltk", ("singulars",))


# Where textblob and pattern.en differ, pattern's. Both take some for plurals, which changes figures: a bus is no bus.
PATTERN = """
collies:collies doggies:doggies cookies:cookies minibuses:minibus airbuses:airbus jeans:jean christmas:christmas as:as
bus:bu buses:bus tennis:tenni glass:glas has:ha ties:ty people:person men:man scissors:scissors skis:ski '':'s's
"""
OURS = """
women:woman policemen:policeman grandchildren:grandchild people:person knives:knife bookshelves:bookshelf
minibuses:minibus stoves:stove benches:bench dishes:dish glasses:glass boxes:box potatoes:potato puppies:puppy pies:pie
ties:tie vases:vase horses:horse bus:bus glass:glass tennis:tennis octopus:octopus scissors:scissors dogs:dog Dogs:Dog
Men:Man 's:'s .:. skis:ski its:its
"""


@pytest.mark.parametrize(("singular", "table"), [(language._singular, PATTERN), (language.singular, OURS)])
def test_singulars_are_those_of_pattern_or_of_plain_rules(singular, table):
    pairs = [pair.split(":") for pair in table.split()]
    assert [[word, singular(word)] for word, _ in pairs] == pairs


def test_without_nltk_only_the_fallback_is_left(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk", None)
    with pytest.raises(SettingsError, match=r"NLTK is not installed: .*pip install"):
        find_language("nltk")
    assert find_language("auto").facts() == FALLBACK | {"why": "NLTK is not installed"}
    with pytest.raises(SettingsError, match="`language=` 'spacy': expected auto, nltk, fallback"):
        find_language("spacy")


@pytest.mark.parametrize("version", ["3.8.1", "2.9", "rubbish", "3.9b1", "3.10.4", "4.0"])
def test_an_nltk_that_reads_pickles_is_refused(data, monkeypatch, version):
    monkeypatch.setattr(nltk, "__version__", version)
    old = version in ("3.8.1", "2.9", "rubbish")
    if old:
        with pytest.raises(SettingsError, match=f"NLTK {version} is too old"):
            find_language("nltk")
    assert find_language("auto").name == ("fallback" if old else "nltk")


def test_the_fallback_splits_as_nltk_does_and_is_never_called_official(data):
    """On what captions have: contractions, possessives, hyphens, quotes, numbers."""
    text = (
        "a man's t-shirt isn't red, the dogs' bowl (2 of them) costs $ 5; they can't, won't; it's on-the-go! "
        "\"no parking\" signs aren't seen? we've looked: DON'T."
    )
    theirs = [token.replace("``", '"').replace("''", '"') for token in nltk.word_tokenize(text)]
    assert language.tokens(text) == theirs
    found = find_language("fallback")
    assert found.facts() == FALLBACK | {"why": "it was chosen"}
    assert found.lemmas("The Dogs ran") == found.singulars("The Dogs ran") == ["the", "dog", "ran"]
    assert found.nouns("The Dogs ran") == ["The", "Dog", "ran"]
