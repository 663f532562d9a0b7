"""A text without some of its sentences."""

from __future__ import annotations

import random
import re

import pytest

from sira_cli.models.look.sentences import repeated_sentences, sentence_spans, without_sentences


def without(text: str, *words: str) -> tuple[str, list[str]]:
    return without_sentences(text, [found.span() for word in words for found in re.finditer(rf"\b{word}\b", text)])


@pytest.mark.parametrize(
    ("text", "words", "kept", "dropped"),
    [
        ("A dog runs. A cat sits.", ["cat"], "A dog runs.", ["A cat sits."]),
        ("A dog runs. A cat sits. It is red.", ["dog", "cat"], "It is red.", ["A dog runs.", "A cat sits."]),
        ("A dog runs. A dog sits. It rains.", ["dog"], "It rains.", ["A dog runs.", "A dog sits."]),
        ("A dog and a cat", ["cat"], "", ["A dog and a cat"]),
        ("Mr. Smith has a dog. It barks", ["dog"], "It barks", ["Mr. Smith has a dog."]),
        ("It is 3.5 m. A dog!  A cat?", ["dog"], "It is 3.5 m. A cat?", ["A dog!"]),
        ("A dog\n\nA cat", ["cat"], "A dog", ["A cat"]),
        ("Seen:\n- a dog\n- a cat\n- a boat", ["cat"], "Seen:\n- a dog\n- a boat", ["- a cat"]),
        ("A dog that is\nquite long. A cat.", ["dog"], "A cat.", ["A dog that is\nquite long."]),
        ("", [], "", []),
        ("  A dog. ", [], "  A dog. ", []),
        (
            "\u4e00\u53ea\u72d7\u3002\u4e00\u53ea\u732b\u3002",
            [],
            "\u4e00\u53ea\u72d7\u3002\u4e00\u53ea\u732b\u3002",
            [],
        ),
    ],
)
def test_sentences_that_name_something_are_left_out(text, words, kept, dropped):
    assert without(text, *words) == (kept, dropped)


def test_the_sentences_together_are_the_text():
    """And whatever is dropped, what is kept and what is dropped have all words of the text."""
    draws = random.Random(0)
    pieces = ["A dog", " runs", ".", "! ", " \n\n", "\n- ", "\n", "e.g. x", " ", "3.5", "?\u201d ", "1. "]
    for _ in range(2000):
        text = "".join(draws.choices(pieces, k=draws.randrange(12)))
        spans = sentence_spans(text)
        assert "".join(text[start:end] for start, end in spans).strip() == text.strip()
        hit = [span for span in spans if draws.random() < 0.5]
        kept, dropped = without_sentences(text, [(start, start + 1) for start, _ in hit])
        assert len(dropped) == len(hit)
        assert sorted(kept.split() + " ".join(dropped).split()) == sorted(text.split())


def test_sentences_that_were_said_before():
    text = "A dog. A cat. A dog. A cat"
    assert [text[start:end] for start, end in repeated_sentences(text, 0)] == ["A dog. "]
    assert repeated_sentences(text, 15) == []
