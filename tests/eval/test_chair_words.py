"""CHAIR's text rule and its quirks."""

from __future__ import annotations

import hashlib
import json

import pytest

from sira_cli.eval.coco import HEADS, mentions
from sira_cli.language import CHAIR_WORDS, singular, tokens
from tests.support.eval.coco_data import CATEGORIES


def said(text: str) -> list[tuple[str, str]]:
    found = mentions(text.split())
    return list(zip(found.words, found.heads, strict=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a man on a bike", [("man", "person"), ("bike", "bicycle")]),
        ("dog dog dog", [("dog", "dog")] * 3),
        # merges
        ("a motor cycle", [("motor cycle", "motorcycle")]),
        ("a baby elephant", [("elephant", "elephant")]),
        ("an adult cub", []),  # cub is no object, and takes the adult with it
        ("a baby and an elephant", [("baby", "person"), ("elephant", "elephant")]),
        ("a passenger jet", [("jet", "airplane")]),
        ("a passenger train", [("train", "train")]),
        ("a passenger bus", [("passenger", "person"), ("bus", "bus")]),
        ("a bow tie", [("tie", "tie")]),
        ("a wine glass", [("wine glass", "wine glass")]),
        ("a wine glas", [("wine glass", "wine glass")]),
        ("a laptop computer", [("laptop computer", "laptop")]),
        # greedy, from left to right: the bear belongs to the baby, not to the teddy that follows it
        ("baby bear teddy bear", [("bear", "bear"), ("teddy bear", "teddy bear")]),
        ("teddy bear cub", [("teddy bear", "teddy bear")]),
        ("baby teddy bear", [("baby", "person"), ("teddy bear", "teddy bear")]),
        ("bow bow tie", [("bow", "tie"), ("tie", "tie")]),
        # a merge is not merged again: "baby dog" is a dog, but no "hot dog"
        ("hot baby dog", [("dog", "dog")]),
        # words that others swallow
        ("a train track", []),
        ("home plate", []),
        ("a train by the track", [("train", "train")]),
        # never found: a space in front, capitals, three words
        ("a motor bike", []),
        ("cheesecake", []),
        ("cupcake", [("cupcake", "cake")]),
        ("iPhone iphone", [("iPhone", "cell phone")]),  # only as the text is lower-cased before
        ("a stove top oven", [("stove", "oven"), ("oven", "oven")]),
        # misspelt words of the list
        ("knive phon televison solider", list(zip(
            ["knive", "phon", "televison", "solider"], ["knife", "cell phone", "tv", "person"], strict=True))),
        # toilet and seat
        ("the seat of the toilet", [("toilet", "toilet")]),
        ("a toilet seat", [("toilet", "toilet")]),
        ("a toilet seat and a seat", [("toilet", "toilet")]),
        ("a seat", [("seat", "chair")]),
        ("a toilet and a chair", [("toilet", "toilet"), ("chair", "chair")]),
        ("a urinal and a seat", [("urinal", "toilet"), ("seat", "chair")]),
        ("", []),
    ],
)  # fmt: skip
def test_what_is_mentioned(text, expected):
    assert said(text) == expected


def test_length_counts_merged_tokens_and_the_seat():
    assert mentions(["a", "bow", "tie", ",", "a", "wine", "glass"]).tokens == ("a", "tie", ",", "a", "wine glass")
    assert mentions(["the", "seat", "of", "the", "toilet"]).tokens == ("the", "seat", "of", "the", "toilet")


def test_places_are_before_merges_but_too_low_behind_a_dropped_seat():
    assert mentions(["a", "bow", "tie", ",", "a", "wine", "glass", "."]).places == (1, 5)
    assert mentions(["a", "dog", "by", "the", "toilet"]).places == (1, 4)
    # The toilet is token 4 and the dog token 7; the list without the seat has them one further to the front.
    assert mentions(["the", "seat", "of", "the", "toilet", "and", "a", "dog"]).places == (3, 6)
    # A merge behind the seat: numbers are looked up among the starts of all tokens.
    assert mentions(["seat", "toilet", "bow", "tie", "dog"]).places == (0, 1, 2)


def test_every_category_of_coco_is_a_head():
    heads = set(HEADS.values())
    assert len(heads) == 80
    assert {"hair drier", "tv", "skis", "potted plant", "sports ball", *CATEGORIES} <= heads
    assert " motor bike" in HEADS
    assert " cheesecake" in HEADS
    assert HEADS["chesterfield"] == "couch"  # a space at the end of the line goes


def test_the_list_is_the_official_one():
    """By the hash of the file in CHAIR's repository."""
    official = "b685537b36fe21b791c87151b96a991ceb582edff19f3da204dcc7a7905502f2"
    assert hashlib.sha256(CHAIR_WORDS.read_bytes()).hexdigest() == official


@pytest.mark.parametrize(
    ("model", "sizes", "digest"),
    [
        ("instructblip-greedy", [14_356, 14_320, 556], "395035fefc88a912"),
        ("shikra-greedy", [13_107, 13_056, 1_001], "01b1604501ccac64"),
    ],
)
def test_real_captions_are_read_as_ever(model, sizes, digest, benchmarks):
    """As a slow rule that marked positions read them once: words, merged words, things; and all of it in a hash."""
    found, hashed = [0, 0, 0], hashlib.sha256()
    for line in (benchmarks / "chair" / f"{model}.jsonl").read_text().splitlines():
        words = [singular(word) for word in tokens(json.loads(line)["caption"].lower())]
        said = mentions(words)
        found = [before + len(each) for before, each in zip(found, (words, said.tokens, said.words), strict=True)]
        hashed.update(repr((said.tokens, said.words, said.heads, said.places)).encode())
    assert (found, hashed.hexdigest()[:16]) == (sizes, digest)
