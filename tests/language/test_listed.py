"""Objects that a model lists when it is asked, and who finds the objects of a text."""

from __future__ import annotations

import pytest

from sira_cli.errors import DataError
from sira_cli.look.noun_phrases import find_words
from sira_cli.look.words import Asked, WordList


def named(words, text):
    return [(thing.name, [text[start:end] for start, end in thing.spans]) for thing in words.things(text)]


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


def test_mentions_are_found_in_any_case():
    found = Asked().listed("A Dog\nthe cat", "The dog sees a cat, a DOG.")
    assert [(thing.name, thing.spans) for thing in found] == [("dog", ((4, 7), (22, 25))), ("cat", ((15, 18),))]


def test_who_finds_the_objects(tmp_path):
    assert find_words(None) is None
    assert isinstance(find_words("ask"), Asked)
    (tmp_path / "words.txt").write_text("# own words\ndog, puppy\ncafe\u0301\n", encoding="utf-8")
    assert isinstance(words := find_words(str(tmp_path / "words.txt")), WordList)
    assert words.name.startswith("words.txt ")
    assert named(words, "Two dogs, a puppy, a Caf\u00e9.") == [
        ("dog", ["dogs"]),
        ("puppy", ["puppy"]),
        ("caf\u00e9", ["Caf\u00e9"]),
    ]
    assert {words.group("puppy"), words.group("dog")} == {"dog"}


def test_lists_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"none\.txt: cannot be read"):
        find_words(str(tmp_path / "none.txt"))
    (tmp_path / "empty.txt").write_text("# nothing\n")
    with pytest.raises(DataError, match=r"empty\.txt: names no objects"):
        find_words(str(tmp_path / "empty.txt"))
