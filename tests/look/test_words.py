"""Which objects a text names: plurals, compounds, words that are often no nouns, one's own list, what a model lists."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import nltk
import pytest

from sira_cli.errors import DataError, SettingsError
from sira_cli.look import finders
from sira_cli.look.claims import DOUBTED, Claim, best_of, doubt
from sira_cli.look.finders import Asked, NounPhrases, find_words
from sira_cli.look.words import WordList, shipped, with_article
from tests.support.eval import language_data


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Two dogs and a cat.", ["dog", "cat"]),
        ("Women, children and people; a policeman.", ["woman", "child", "person", "policeman"]),
        (
            "Knives, buses, two glasses of beer, skis and a pair of scissors.",
            ["knife", "bus", "glass", "beer", "skis", "scissors"],
        ),
        ("A traffic light over the car.", ["traffic light", "car"]),
        ("The Traffic Lights are red.", ["traffic light"]),
        ("He eats a hot dog.", ["hot dog"]),
        ("Two wine glasses.", ["wine glass"]),
        ("A teddy-bear sits there.", ["teddy bear"]),
        ("It is hot. Dogs sleep at the bus stop.", ["dog"]),  # no compound across a full stop, and a bus stop is no bus
        ("A cell\nphone.", ["cell phone"]),
        ("The train waiting at the train station is on the train tracks.", ["train"]),
        ("Grass under a blue sky.", ["grass", "sky"]),
        ("A kitchen by the beach, a road along the sea.", []),  # where it is, not what is there
        ("They can watch people ski and sign cards.", ["person"]),
        ("A man wearing a watch and glasses holds a sign.", ["man", "watch", "sign"]),
        ("A woman in an orange shirt with an orange.", ["woman", "orange"]),
        ("A light blue wall; the light is on.", ["wall", "light"]),
        ("Playing tennis with a tennis racket on a tennis court.", ["tennis racket", "tennis court"]),
        ("There are no people, but a dog.", ["dog"]),
        ("No cars or buses, no other dogs; there isn't a cat, there isn\u2019t a bus.", []),
        ("A man not near a dog. No one is near the bench. Not a single bird.", ["man", "dog", "bench"]),
        ("Without a hat, the man is not wearing any shoes. No. Dogs sleep.", ["man", "dog"]),
        ("", []),
        ("Ein Hund auf einer Wiese. 狗在草地上。", []),
    ],
)
def test_things(text, expected):
    assert [thing.name for thing in shipped().things(text)] == expected


def test_every_mention_has_its_place_in_the_text():
    text = "A dog chases a ball. The Dogs bark;\nanother puppy sleeps."
    things = shipped().things(text)
    assert [(thing.group, [text[start:end] for start, end in thing.spans]) for thing in things] == [
        ("dog", ["dog", "Dogs"]),
        ("sports ball", ["ball"]),
        ("dog", ["puppy"]),
    ]
    listed = Asked().listed("A Dog\nthe cat", "The dog sees a cat, a DOG.")  # in any case
    assert [(thing.name, thing.spans) for thing in listed] == [("dog", ((4, 7), (22, 25))), ("cat", ((15, 18),))]


ARTICLES = ["a dog", "an umbrella", "a unicycle", "an suv", "grass", "ice cream", "a wine glass", "a pair of scissors"]


@pytest.mark.parametrize("expected", ARTICLES)
def test_articles(expected):
    assert with_article(expected.removeprefix("a pair of ").removeprefix("a ").removeprefix("an ")) == expected


def test_ones_own_list(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spacy").write_text("\ufefffox girl, kitsune  # a trigger word\n\ncafe\u0301\n", encoding="utf-8")
    found = find_words("./spacy")
    text = "A kitsune and two fox girls with a Caf\u00e9 and a dog."
    assert [(thing.name, thing.group) for thing in found.things(text)] == [
        ("kitsune", "fox girl"),
        ("fox girl", "fox girl"),
        ("caf\u00e9", "caf\u00e9"),
    ]
    assert found.name.startswith("spacy ")
    assert found.name != WordList.of(["fox girl, kitsune"], "spacy").name  # the content counts
    assert find_words(None) is None
    assert isinstance(find_words("ask"), Asked)


@pytest.mark.parametrize("content", [None, b"", b"# nothing\n", b"\xff\xfe\xff"])
def test_a_list_that_is_none_is_named(tmp_path, content):
    path = tmp_path / "tags.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"tags\.txt"):
        find_words(str(path))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("dog\ncat", ["dog", "cat"]),
        ("- Dog\n* the cat\n3. fire  hydrant\n", ["dog", "cat", "fire hydrant"]),
        ("1) \u201edog\u201c, elephant, **fire hydrant**.", ["dog", "fire hydrant"]),  # no elephant is in the text
        ("hydrant\nfire hydrant", ["fire hydrant"]),
        ("do", []),
        ("dog dog dog", []),
        ("", []),
    ],
)
def test_what_a_model_lists_counts_if_the_text_has_it(answer, expected):
    text = "A dog sees the cat at a fire\nhydrant, dog-tired."
    assert [thing.name for thing in Asked().listed(answer, text)] == expected
    assert Asked().things("A dog.") == []
    assert Asked().request("A dog.").endswith("\n\nA dog.")


def test_doubt_begins_at_the_threshold_and_has_four_degrees_below():
    assert [doubt(percent / 100) for percent in range(5, 101, 10)] == [4, 3, 2, 1, 0, 0, 0, 0, 0, 0]
    assert (doubt(DOUBTED), doubt(DOUBTED - 0.01)) == (0, 1)
    assert [doubt(support, 0.8) for support in (0.8, 0.79, 0.59, 0.39, 0.19)] == [0, 1, 2, 3, 4]


def test_a_group_shows_what_one_of_its_pictures_shows():
    claims = [[Claim("cat", (), support, 0.0), Claim("dog", (), 1 - support, 0.0)] for support in (0.1, 0.7, 0.3)]
    assert [(each.support, each.image) for each in best_of(claims)] == [(0.7, 2), (0.9, 1)]


# --- noun phrases: spaCy's own machinery over words of ours, and NLTK's reader of WordNet with our senses

_ANIMALS, _ARTIFACTS = ("aardvark", "dog", "octopus"), ("chandelier", "fire_hydrant", "hydrant", "lens", "street")
SENSES = dict.fromkeys(_ANIMALS, "animal") | dict.fromkeys(_ARTIFACTS, "artifact")  # the most frequent first
SENSES |= {"fire": "state state artifact", "watch": "attribute artifact", "mood": "state", "side": "location"}
OTHERS = dict.fromkeys(("a", "the", "no"), "DET") | dict.fromkeys(("on", "with"), "ADP")
OTHERS |= dict.fromkeys(("dogged", "cats"), "VERB") | {"two": "NUM", "hot": "ADJ", "John": "PROPN", "and": "CCONJ"}


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
    spacy = pytest.importorskip("spacy", reason="the extra `eval` is not installed")
    spacy.Language.component("tests_stand_in", func=stand_in)
    folder, nlp = tmp_path_factory.mktemp("data"), spacy.blank("en", meta={"name": "made_up", "version": "1.2"})
    nlp.add_pipe("tests_stand_in", name="parser")
    nlp.to_disk(folder / "pipeline")
    language_data.build(folder / "nltk_data")
    return folder


@pytest.fixture
def data(folder, monkeypatch):
    monkeypatch.setattr(finders, "PIPELINE", str(folder / "pipeline"))
    language_data.use(monkeypatch, folder / "nltk_data")
    wordnet = nltk.corpus.wordnet
    wordnet.ensure_loaded()
    senses = {
        name: [SimpleNamespace(lexname=f"noun.{each}".__str__) for each in SENSES[name].split()] for name in SENSES
    }
    monkeypatch.setattr(wordnet, "synsets", lambda name, pos: senses[name])
    singular = dict(zip(senses, senses, strict=True)) | {"octopuses": "octopus"}
    monkeypatch.setattr(wordnet, "morphy", lambda name, pos: singular.get(name))
    finders._data.cache_clear()
    yield
    finders._data.cache_clear()
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
def test_noun_phrases(text, expected, data):
    found = [(thing.name, [text[start:end] for start, end in thing.spans]) for thing in NounPhrases().things(text)]
    assert found == expected


def test_the_name_of_a_word_list_says_what_decides(data):
    phrases = NounPhrases()
    assert phrases.name == "spacy/1 (en_made_up 1.2, WordNet 3.0)"
    sent = pickle.dumps(phrases)
    assert len(sent) < 20_000
    assert pickle.loads(sent).things("the puppy") == phrases.things("the puppy")
    assert [thing.group for thing in phrases.things("the puppy")] == ["dog"]


def test_what_is_missing_is_named(data, monkeypatch, tmp_path):
    finders._data.cache_clear()
    language_data.use(monkeypatch, tmp_path)
    with pytest.raises(SettingsError, match=r"and NLTK with WordNet: .*python -m nltk.downloader wordnet"):
        NounPhrases()
    monkeypatch.setattr(finders, "PIPELINE", "none")
    found = r"need spaCy with none, .*pip install 'nltk>=.* 'spacy>=.*spacy download en_core_"
    with pytest.raises(SettingsError, match=found):
        NounPhrases()
