"""The sentences of a text."""

from __future__ import annotations

import random

import pytest

from sira_cli.look.guide import sentence_spans


def test_the_sentences_together_are_the_text():
    draws = random.Random(0)
    pieces = ["A dog", " runs", ".", "! ", " \n\n", "\n- ", "\n", "e.g. x", " ", "3.5", "?\u201d ", "1. "]
    for _ in range(2000):
        text = "".join(draws.choices(pieces, k=draws.randrange(12)))
        spans = sentence_spans(text)
        assert "".join(text[start:end] for start, end in spans).strip() == text.strip()


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("A dog runs. A cat sits.", ["A dog runs.", "A cat sits."]),
        ("Mr. Smith has a dog. It barks", ["Mr. Smith has a dog.", "It barks"]),
        ("It is 3.5 m. A dog!  A cat?", ["It is 3.5 m.", "A dog!", "A cat?"]),
        ("A dog\n\nA cat", ["A dog", "A cat"]),
        ("Seen:\n- a dog\n- a cat", ["Seen:", "- a dog", "- a cat"]),
        ("A dog that is\nquite long. A cat.", ["A dog that is\nquite long.", "A cat."]),
        ("", []),
    ],
)
def test_sentences(text, sentences):
    assert [text[start:end].strip() for start, end in sentence_spans(text)] == sentences
