"""CHAIR: figures by hand, and what is asked."""

from __future__ import annotations

import json

import pytest

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.benchmark import Ask
from sira_cli.eval.chair import PROMPT, Chair
from tests.support.eval import language_data
from tests.support.eval.coco_data import CAPTIONS

# Figures


def test_counts_and_figures_by_hand(chair):
    (part,) = chair.parts
    tally = chair.score(part, CAPTIONS)["captions"]
    name = "COCO_val2014_000000000007.jpg"
    assert tally.counts[name] == {
        "captions": 1,
        "hallucinated captions": 1,
        "mentions": 5,
        "hallucinated mentions": 3,
        "objects": 3,
        "recalled objects": 2,
        "tokens": 16,
    }
    assert tally.right == {"7": False, "8": True, "310196": True}
    total = tally.total()
    assert total["captions"] == 3
    assert chair.figures("captions", total) == {
        "CHAIRs": 100 * (1 / 3),
        "CHAIRi": 100 * (3 / 6),
        "recall": 100 * (3 / 4),
        "length": 100 * (0.01 * 19 / 3),
    }


def test_figures_of_nothing_are_0(chair):
    zeros = {"CHAIRs": 0.0, "CHAIRi": 0.0, "recall": 0.0, "length": 0.0}
    tally = chair.score(chair.parts[0], {"310196": ""})["captions"]
    assert chair.figures("captions", tally.total()) == zeros
    assert chair.score(chair.parts[0], {})["captions"].total() == {}


def test_details_have_the_official_keys(chair):
    first, second, third = chair.details(chair.parts[0], CAPTIONS)
    words = ["a", "woman", "with", "a", "dog", "and", "a", "cat", ";", "the", "cat", "is", "near", "a", "car", "."]
    assert first == {
        "image_id": 7,
        "caption": CAPTIONS["7"],
        "mscoco_hallucinated_words": [["cat", "cat"], ["cat", "cat"], ["car", "car"]],
        "mscoco_gt_words": ["bench", "dog", "person"],
        "mscoco_generated_words": ["person", "dog", "cat", "cat", "car"],
        "hallucination_idxs": [7, 10, 14],
        "words": words,
        "metrics": {"CHAIRs": 1, "CHAIRi": 3 / 5, "Recall": 2 / 3, "Len": 0.0},
    }
    assert second["metrics"] == {"CHAIRs": 0, "CHAIRi": 0.0, "Recall": 1.0, "Len": 0.0}
    assert third["metrics"] == {"CHAIRs": 0, "CHAIRi": 0.0, "Recall": 0.0, "Len": 0.0}
    assert third["words"] == []
    json.dumps([first, second, third])


def test_the_two_rules_read_captions_differently(coco, tmp_path, monkeypatch):
    language_data.use(monkeypatch, language_data.build(tmp_path / "nltk_data"))
    found = {}
    for rule in ("lemma", "singular"):
        chair = Chair(coco, ids=[8], rule=rule, language="nltk")
        (detail,) = chair.details(chair.parts[0], {"8": "The men are near a bus with two wine glasses."})
        found[rule] = detail["mscoco_generated_words"]
        assert chair.facts()["rule"] == rule
        assert chair.facts()["official"] is True
    language_data.forget()
    assert found["lemma"] == ["person", "bus", "wine glass"]
    assert found["singular"] == ["person", "wine glass"]  # `singularize` takes bus for a plural


# What is asked


def test_a_part_for_each_length(coco):
    chair = Chair(coco, ids=[8, 7], language="fallback", lengths=(64, 512))
    assert [(part.name, part.task, part.groups, part.settings) for part in chair.parts] == [
        ("64", "caption", ("64 tokens",), {"max_new_tokens": 64}),
        ("512", "caption", ("512 tokens",), {"max_new_tokens": 512}),
    ]
    assert chair.parts[0].asks == chair.parts[1].asks
    assert chair.parts[0].asks == (
        Ask("8", "COCO_val2014_000000000008.jpg", PROMPT),
        Ask("7", "COCO_val2014_000000000007.jpg", PROMPT),
    )
    assert PROMPT == "Please describe this image in detail."
    assert list(chair.score(chair.parts[1], {"8": "Two cars."})) == ["512 tokens"]


def test_what_of_refuses(coco, tmp_path):
    with pytest.raises(SettingsError, match="`rule=` 'stem': expected lemma or singular"):
        Chair(coco, ids=[7], rule="stem", language="fallback")
    with pytest.raises(DataError, match=r"nowhere: expected COCO's instances_val2014\.json and captions_val2014"):
        Chair(tmp_path / "nowhere", ids=[7], language="fallback")
