"""Which words say something, and how much their grounding asks to doubt them."""

from __future__ import annotations

import pytest

from sira_cli.look.claims import DOUBTED, bare, doubt, says_something


def test_doubt_begins_at_the_threshold_and_has_four_degrees_below():
    assert [doubt(percent / 100) for percent in range(5, 101, 10)] == [4, 3, 2, 1, 0, 0, 0, 0, 0, 0]
    assert (doubt(DOUBTED), doubt(DOUBTED - 0.01)) == (0, 1)
    assert [doubt(support, 0.8) for support in (0.8, 0.79, 0.59, 0.39, 0.19)] == [0, 1, 2, 3, 4]
    assert doubt(-3.0) == 4  # traces of the first versions had sums here


@pytest.mark.parametrize("word", ["dog", "Dog,", "“laptop”", "two", "left", "no", "red.", "犬", "T-shirt", "12"])
def test_what_can_be_true_or_false_of_a_picture(word):
    assert says_something(word)


@pytest.mark.parametrize("word", ["The", "a", "is", "There", "in", "which,", "(and", "its", "image", "--", "…", ""])
def test_what_cannot(word):
    assert not says_something(word)


def test_punctuation_around_a_word_is_no_part_of_it():
    assert [bare(word) for word in ("dog.", "“cat”,", "T-shirt", "dog's", "__x__", "?!")] == [
        *("dog", "cat", "T-shirt", "dog's", "x", "")
    ]
