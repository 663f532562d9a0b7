"""Objects in texts of any language: from a list, by a tagger, or from a model's answer."""

from __future__ import annotations

import pytest

from sira_cli.errors import DataError, SettingsError
from sira_cli.language.listed import Asked, PlainWords
from sira_cli.language.noun_phrases import Nouns, find_words
from sira_cli.language.things import WordList
from sira_cli.language.wordings import wording_of


def wording(code):
    return wording_of(code)


def named(words, text):
    return [(thing.name, [text[start:end] for start, end in thing.spans]) for thing in words.things(text)]


@pytest.mark.parametrize(
    ("code", "lines", "text", "expected"),
    [
        (
            "de",
            "Hund, Hunde, Welpe",
            "Zwei Hunde und ein Welpe. Hundert HUNDE.",
            [("Hund", ["Hunde", "Welpe", "HUNDE"])],
        ),
        ("de", "Hund\nKatze", "Kein Hund, ohne eine Katze. Eine Katze.", [("Katze", ["Katze"])]),
        ("fr", "chien\nchien de garde", "Un chien de garde, sans chien.", [("chien de garde", ["chien de garde"])]),
        ("ru", "собака, собаку, собаки", "Видно собаку, нет собаки.", [("собака", ["собаку"])]),
        (
            "ja",
            "犬\n子犬\nカメラ",
            "子犬と犬がカメラを見ています。",
            [("子犬", ["子犬"]), ("犬", ["犬"]), ("カメラ", ["カメラ"])],
        ),
        ("zh", "狗\n猫", "这里有狗。没有猫。", [("狗", ["狗"])]),
        ("ko", "개\n자동차", "개가 자동차를 봅니다. 안개.", [("개", ["개"]), ("자동차", ["자동차"])]),
        ("ko", "개\n새", "개나리와 새우가 있다. 개들은 새입니다.", [("개", ["개"]), ("새", ["새"])]),
        ("ko", "개\n새", "개가 없습니다. 개는 보이지 않는다. 새도 없다.", []),
        ("zh", "狗\n马", "热狗在马路上。狗和马。", [("狗", ["狗"]), ("马", ["马"])]),
        ("zh", "狗\n热狗\n马", "热狗。没有任何狗。没有马", [("热狗", ["热狗"])]),
        ("ja", "猫\n犬", "猫はいません。犬小屋に犬がいる。", [("犬", ["犬"])]),
        ("de", "Hund", "Nicht weit von einem Hund. Nicht ein Hund, keinerlei Hund.", [("Hund", ["Hund"])]),
        ("fr", "chien", "Pas loin du chien. Pas de chien.", [("chien", ["chien"])]),
        ("es", "perro", "No lejos de un perro. No hay perro.", [("perro", ["perro"])]),
        ("it", "cane", "Non lontano dal cane. Non un cane.", [("cane", ["cane"])]),
        ("pt", "cão", "Não longe do cão. Não há cão.", [("cão", ["cão"])]),
        ("ru", "собака, собаки", "Дом не далеко от собаки. Нет собаки.", [("собака", ["собаки"])]),
        ("es", "isla, \u0131tem", "ISLA, İSLA, ISLA, \u017ftop.", [("isla", ["ISLA", "İSLA", "ISLA"])]),
    ],
)
def test_lists(tmp_path, code, lines, text, expected):
    (tmp_path / "words.txt").write_text(f"# own words\n{lines}\n", encoding="utf-8")
    words = find_words(str(tmp_path / "words.txt"), wording(code))
    assert named(words, text) == expected
    assert words.name.startswith("words.txt ")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Hund\nKatze", ["Hund", "Katze"]),
        (
            "- Hund\n* die Katze\n3. Maus\n",
            ["Hund", "Maus"],
        ),  # "die Katze" is not in the text, and no mouse listed twice
        ("1) „Hund“, Elefant, **Maus**.", ["Hund", "Maus"]),
        ("Hund Hund Hund", []),
        ("", []),
    ],
)
def test_what_a_model_lists_counts_if_the_text_has_it(answer, expected):
    asked = Asked(wording("de"))
    assert [thing.name for thing in asked.found(answer, "Ein Hund, eine Katze und eine Maus.")] == expected
    assert asked.things("Ein Hund.") == []
    assert asked.request("Ein Hund.").endswith("\n\nEin Hund.")


def test_english_answers_lose_their_articles():
    assert named(Asked(wording("en")), "") == []
    found = Asked(wording("en")).found("A Dog\nthe cat", "The dog sees a cat.")
    assert [(thing.name, thing.spans) for thing in found] == [("dog", ((4, 7),)), ("cat", ((15, 18),))]


def test_who_finds_the_objects_by_default():
    assert find_words(None, wording("en")) is None
    assert isinstance(find_words(None, wording("de")), Asked)
    assert isinstance(find_words("ask", wording("en")), Asked)


def test_english_lists_know_plurals(tmp_path):
    (tmp_path / "words.txt").write_text("dog\n")
    assert isinstance(words := find_words(str(tmp_path / "words.txt"), wording("en")), WordList)
    assert named(words, "Two dogs.") == [("dog", ["dogs"])]


def test_lists_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"none\.txt: cannot be read"):
        PlainWords.read(tmp_path / "none.txt", wording("de"))
    (tmp_path / "empty.txt").write_text("# nothing\n")
    with pytest.raises(DataError, match=r"empty\.txt: names no objects"):
        PlainWords.read(tmp_path / "empty.txt", wording("de"))


def test_nouns_by_a_pipeline(tmp_path):
    """With spaCy's own machinery and tags of ours: its pipelines cannot be installed from a registry."""
    spacy = pytest.importorskip("spacy", reason="the extra `eval` is not installed")
    nlp = spacy.blank("de", meta={"name": "made_up", "version": "1.2"})
    ruler = nlp.add_pipe("attribute_ruler")
    for word, lemma in (("Hunde", "Hund"), ("Katze", "Katze")):
        ruler.add([[{"TEXT": word}]], {"POS": "NOUN", "LEMMA": lemma})
    nlp.to_disk(tmp_path / "pipeline")
    nouns = Nouns("de", str(tmp_path / "pipeline"))
    assert nouns.name == "spacy/1 (de_made_up 1.2)"
    assert named(nouns, "Zwei Hunde, eine Katze, Hunde.") == [("Hund", ["Hunde", "Hunde"]), ("Katze", ["Katze"])]


@pytest.mark.parametrize(("code", "pipeline"), [("de", "de_core_news_sm"), ("zh", "zh_core_web_sm")])
def test_a_pipeline_that_is_missing_is_named(code, pipeline):
    pytest.importorskip("spacy", reason="the extra `eval` is not installed")
    with pytest.raises(SettingsError, match=f"{pipeline} is not installed.*spacy download {pipeline}.*`objects=` ask"):
        find_words("spacy", wording(code))
