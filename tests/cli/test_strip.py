"""Texts on a terminal: colours say which words to doubt."""

from __future__ import annotations

import re
from pathlib import Path

from rich.text import Text

from sira_cli.cli.terminal import strip
from sira_cli.cli.terminal.strip import DOUBT, PALE, print_words

EXAMPLE = sorted(Path(__file__).parents[2].glob("examples/*.png"))[0]
TEXT = "There is a laptop and a dog."
WORDS = [
    {"word": match[0], "start": match.start(), "end": match.end(), "delta": delta, "grounding": grounding}
    for match, delta, grounding in zip(
        re.finditer(r"\S+", TEXT), (0, 0, 0, 6.0, -6, 0, -6.0), (0.1, 0.1, 0.1, 0.15, 0.1, 0.1, 0.97), strict=True
    )
]


def test_words_are_coloured_by_doubt_and_listed_below_the_text(capsys, monkeypatch):
    """An absent thing of a large delta is doubted; function words are pale, whatever their numbers."""
    printed: list[Text] = []
    monkeypatch.setattr(strip.Console, "print", lambda _, text: printed.append(text))
    print_words(TEXT, WORDS, legend=False)
    styled = [(TEXT[span.start : span.end], span.style) for span in printed[0].spans]
    assert [word for word, style in styled if style == PALE] == ["There", "is", "a", "and", "a"]
    assert [(word, style) for word, style in styled if style != PALE] == [("laptop", DOUBT[3])]
    monkeypatch.undo()
    print_words(TEXT, WORDS, legend=False)
    assert capsys.readouterr().out.splitlines() == [TEXT, "doubt first: laptop 0.15"]
    print_words("a dog.", WORDS[-2:], legend=False)
    assert capsys.readouterr().out.splitlines() == ["a dog.", "no word to doubt: the grounding of all is 0.4 or more"]


def test_a_trace_and_words_of_captions_on_a_terminal(shown_on_terminal):
    """With -v too, which adds the candidates of each token; no bars of weights."""

    def shown(*arguments: object) -> str:
        text = shown_on_terminal(*arguments, "-p", "demo", "--max-new-tokens", 6, COLUMNS=160, TERM="xterm-256color")
        return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)

    found = shown("trace", EXAMPLE, "-v")
    assert "Loading weights" not in found
    text, table = found.split(" step", 1)
    assert f"{EXAMPLE.name}:\n" in text
    assert len(re.findall(r"^ +\d+ ", table, re.MULTILINE)) == 6
    for each in (text, shown("caption", EXAMPLE, "--words", "-q")):
        assert "grounding, the word's probability under the contrast" in each
