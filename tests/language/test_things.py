"""Which things a text names: plurals, compounds, words that are often no nouns, one's own list."""

from __future__ import annotations

import pytest

from sira_cli.errors import DataError
from sira_cli.look.noun_phrases import find_words
from sira_cli.look.words import WordList, shipped, with_article


def named(text, words=None):
    return [thing.name for thing in (words or shipped()).things(text)]


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
        ("A man not far from a dog. No one is near the bench. Not a single bird.", ["man", "dog", "bench"]),
        ("Without a hat, the man is not wearing any shoes. No. Dogs sleep.", ["man", "dog"]),
        ("", []),
        ("Ein Hund auf einer Wiese. 狗在草地上。", []),
    ],
)
def test_things(text, expected):
    assert named(text) == expected


def test_every_mention_has_its_place_in_the_text():
    text = "A dog chases a ball. The Dogs bark;\nanother dog sleeps."
    dog, ball = shipped().things(text)
    assert [text[start:end] for start, end in dog.spans] == ["dog", "Dogs", "dog"]
    assert [text[start:end] for start, end in ball.spans] == ["ball"]


def test_synonyms_have_a_head_in_common():
    assert {thing.name: thing.group for thing in shipped().things("A puppy, a dog, a tree.")} == {
        "puppy": "dog",
        "dog": "dog",
        "tree": "tree",
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dog", "a dog"),
        ("umbrella", "an umbrella"),
        ("unicycle", "a unicycle"),
        ("suv", "an suv"),
        ("grass", "grass"),
        ("ice cream", "ice cream"),
        ("wine glass", "a wine glass"),
        ("scissors", "a pair of scissors"),
        ("person", "a person"),
    ],
)
def test_articles(name, expected):
    assert with_article(name) == expected


def test_ones_own_list(tmp_path):
    path = tmp_path / "tags.txt"
    path.write_text("\ufefffox girl, kitsune  # a trigger word\n\nhalo\n", encoding="utf-8")
    words = find_words(str(path))
    assert named("A kitsune and two fox girls with halos and a dog.", words) == ["kitsune", "fox girl", "halo"]
    assert [thing.group for thing in words.things("Kitsune")] == ["fox girl"]
    assert words.name.startswith("tags.txt ")
    assert words.name != WordList.of(["fox girl, kitsune"], "tags.txt").name  # the content counts


@pytest.mark.parametrize("content", [None, b"", b"# nothing\n", b"\xff\xfe\xff"])
def test_a_list_that_is_none_is_named(tmp_path, content):
    path = tmp_path / "tags.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"tags\.txt"):
        find_words(str(path))


def test_a_long_text_takes_no_time_to_speak_of():
    text = "A dog and a traffic light near the tree. " * 1000
    assert [len(thing.spans) for thing in shipped().things(text)] == [1000, 1000, 1000]
