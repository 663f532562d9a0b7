"""Texts on a terminal: colours say which words to doubt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sira_cli.cli.terminal.strip import DOUBT, PALE, print_words, word_style

EXAMPLE = sorted(Path(__file__).parents[2].glob("examples/*.png"))[0]
TEXT = "There is a laptop and a dog."
WORDS = [
    {"word": match[0], "start": match.start(), "end": match.end(), "delta": delta, "grounding": grounding}
    for match, delta, grounding in zip(
        re.finditer(r"\S+", TEXT), (0, 0, 0, 6.0, -6, 0, -6.0), (0.1, 0.1, 0.1, 0.15, 0.1, 0.1, 0.97), strict=True
    )
]


@pytest.fixture
def shown(shown_on_terminal):
    """What a command shows on a wide terminal, without the codes of colours."""

    def run(*arguments: object) -> str:
        text = shown_on_terminal(*arguments, COLUMNS=160, TERM="xterm-256color")
        return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)

    return run


def test_an_absent_thing_of_a_large_delta_is_doubted():
    laptop, dog = (next(word for word in WORDS if name in word["word"]) for name in ("laptop", "dog"))
    assert [word_style(word) for word in (laptop, dog)] == [DOUBT[3], DOUBT[0]]


def test_function_words_are_pale():
    pale = [word["word"] for word in WORDS if word_style(word) == PALE]
    assert pale == ["There", "is", "a", "and", "a"]


def test_words_to_doubt_are_listed_below_the_text(capsys):
    print_words(TEXT, WORDS, legend=False)
    assert capsys.readouterr().out.splitlines() == [TEXT, "doubt first: laptop 0.15"]
    print_words("a dog.", WORDS[-2:], legend=False)
    assert capsys.readouterr().out.splitlines() == ["a dog.", "no word to doubt: the grounding of all is 0.4 or more"]


def test_a_trace_on_a_terminal_holds_no_bars_of_weights(shown):
    """With -v too, which adds the candidates of each token."""
    found = shown("trace", EXAMPLE, "-p", "demo", "--max-new-tokens", 6, "-v")
    assert "Loading weights" not in found
    text, table = found.split(" step", 1)
    assert f"{EXAMPLE.name}:\n" in text
    assert "grounding, the word's probability under the contrast" in text
    assert len(re.findall(r"^ +\d+ ", table, re.MULTILINE)) == 6


def test_words_of_captions_are_coloured_too(shown):
    found = shown("caption", EXAMPLE, "-p", "demo", "--max-new-tokens", 6, "--words", "-q")
    assert "grounding, the word's probability under the contrast" in found
