"""What the page at `/` says of two texts: their times, what differs, which words and things to doubt."""

from __future__ import annotations

import random

from sira_cli.analysis.compare import differences
from tests.serve.on_page import answering, run, stream
from tests.support.browser import accessible, contrasts

WORDS = ["a", "a", "cat", "dog's", "left", "red-ish", ".", ",", "(", "naïve", "猫", "犬が", "🐈", "x_1", "Ⅷ", "e\u0301"]
MARKS = """return [...document.querySelectorAll('.column')].map(
    column => [...column.querySelectorAll(arguments[0])].map(one => one.textContent))"""


# --- differences


def spans_of(first: str, second: str) -> list[list[list[int]]]:
    """Where each of two texts has what the other lacks, by `sira compare`."""
    found: list[list[list[int]]] = [[], []]
    ends = [0, 0]
    for stretch in differences(first, second):
        for side, text in enumerate((stretch.a, stretch.b)):
            start = ends[side] + len(text) - len(text.lstrip())
            ends[side] += len(text)
            if text and not stretch.equal:
                found[side].append([start, ends[side]])
    return found


def test_differences_are_those_of_sira_compare(page):
    chance = random.Random(11)
    pairs = [("", ""), ("A cat.", ""), ("a " * 400, "a " * 399), (" A cat.", "A  cat .\n"), ("不好", "好不")]
    for _ in range(150):
        pairs.append(
            tuple(
                "".join(chance.choice([" ", " ", "", "\n"]) + chance.choice(WORDS) for _ in range(chance.randrange(14)))
                for _ in range(2)
            )
        )
    script = """
        const pairs = arguments[0];
        return import('/page/differences.js').then(module => pairs.map(pair => module.differences(...pair)))"""
    found = page.run(script, pairs)
    assert found == [spans_of(*pair) for pair in pairs]


def test_what_differs_is_marked_in_both_texts_and_told(page):
    first, second = "A 🐈 cat on the left.", "A 🐈 dog on the left, which is red."
    thing = {"thing": "dog", "spans": [[4, 7]], "support": 0.1, "neither": 0}
    words = [
        {"word": word, "start": second.index(word), "end": second.index(word) + len(word), "grounding": 0.1}
        for word in ("dog", "which")  # doubted, and pale
    ]
    answering(page, 200, stream(first), stream(second, words=words, objects=[thing]))
    assert run(page) == [first, second]
    assert page.run(MARKS, ".text mark") == [["cat"], ["dog", ", which is red"]]
    assert page.run(MARKS, ".only li") == [["cat"], ["dog", ", which is red"]]
    assert page.run(MARKS, ".text mark .tok.g4.unsupported") == [[], ["dog"]]
    roles = [name for role, name in accessible(page) if role == "heading"]
    assert roles.count("Only in this text:") == 2
    lines = page.run(
        "return [...document.querySelectorAll('.text mark')].map(one => getComputedStyle(one).textDecorationLine)"
    )
    assert lines == ["underline"] * 3  # no colour is needed to see it
    assert [(text, ratio) for text, ratio in contrasts(page) if ratio < 4.5] == []
