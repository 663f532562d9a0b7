"""What the page at `/` says of two texts: their times, what differs, which words and things to doubt."""

from __future__ import annotations

import random
import time

import pytest

from sira_cli.analysis.compare import differences
from tests.serve.on_page import answering, run, stream
from tests.serve.test_serve import PICTURES, ask, said
from tests.support.browser import accessible, contrasts

WORDS = ["a", "a", "cat", "dog's", "left", "red-ish", ".", ",", "(", "naïve", "猫", "犬が", "🐈", "x_1", "Ⅷ", "e\u0301"]
MARKS = """return [...document.querySelectorAll('.column')].map(
    column => [...column.querySelectorAll(arguments[0])].map(one => one.textContent))"""


# --- times


def test_the_page_shows_the_servers_time(page):
    answering(page, 200, stream("A cat.", decoding_seconds=2.46), stream("A dog.", decoding_seconds=100.0))
    run(page)
    shown = page.run("return [...document.querySelectorAll('.status')].map(one => one.textContent)")
    assert shown == ["3 tokens in 2.5 s; the model ended the text.", "3 tokens in 100.0 s; the model ended the text."]


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


def test_equal_texts_and_stopped_ones_have_no_marks(page):
    answering(page, 200, stream("A cat."))
    run(page)
    assert page.run(MARKS, ".only h3") == [["Only in this text: nothing"]] * 2
    assert page.run(MARKS, ".text mark") == [[], []]
    broken = stream("A dog.")[:2]
    answering(page, 200, stream("A cat."), broken)
    page.click("#run")
    deadline = time.monotonic() + 10
    while not (shown := page.run(MARKS, ".failure:not([hidden])"))[1]:
        assert time.monotonic() < deadline, shown
    assert page.run("return [...document.querySelectorAll('.only')].map(one => one.hidden)") == [True, True]


# --- what to doubt


def test_the_words_in_orange_are_those_that_are_listed(page):
    """One rule for both, so that the number above the list is that of the words in orange."""
    text = "sky tree bench kite dog"
    groundings = dict(zip(text.split(), (0.95, 0.7, 0.4, 0.3999, 0.1), strict=True))
    words = [
        {"word": word, "start": text.index(word), "end": text.index(word) + len(word), "grounding": value}
        for word, value in groundings.items()
    ]
    answering(page, 200, stream(text, words=words))
    run(page)
    orange = """
        const broken = (one) => getComputedStyle(one).borderBottomStyle === 'dashed';
        const words = (part) => [...document.querySelectorAll(`.column:first-child ${part} .tok`)];
        return ['.text', '.doubts'].map(part => words(part).filter(broken).map(one => one.textContent))"""
    assert page.run(orange) == [["kite", "dog"], ["dog", "kite"]]
    assert page.text(".doubts h3") == "Words to doubt: 2"
    assert page.text(".doubts ul").split() == ["dog", "0.10", "kite", "0.3999"]  # 0.40 would be on the other side
    assert "grounding below 0.4:" in page.text(".legend")


def test_the_threshold_of_support_is_drawn_and_told(page, client, lvlm):
    threshold = lvlm.preset.verify.min_support
    assert f"support below {threshold:g}, this preset's threshold" in page.text(".legend")
    things = [
        {"thing": name, "spans": [], "support": value, "neither": 0}
        for name, value in (("cat", 0.62), ("dog", threshold - 0.0003), ("cup", threshold))
    ]
    answering(page, 200, stream("A cat.", objects=things, verify={"min_support": threshold}))
    run(page)
    box = "const rows = [...document.querySelector('.things tbody').rows]; return rows.map(row => "
    edges = page.run(
        box
        + "[...row.querySelectorAll('.share, .share i, .share b')].map(one => one.getBoundingClientRect().toJSON()))"
    )
    for (bar, fill, edge), thing in zip(edges, things, strict=True):
        middle = (edge["left"] + edge["right"]) / 2
        assert middle - bar["left"] == pytest.approx(threshold * bar["width"], abs=0.6)
        assert fill["width"] == pytest.approx(thing["support"] * bar["width"], abs=0.6)
        assert edge["height"] > bar["height"]
    assert page.run(box + "[row.innerText.split(/\\s+/).slice(0, 2), row.className])") == [
        [["[cat]", "0.62"], "unsupported"],
        [["[dog]", "0.7757"], "unsupported"],
        [["cup", "0.78"], ""],
    ]
    assert page.text(".things .hint") == f"Below {threshold:g}, the line in the bars, an object is not supported."
    asked = ask(client, said(picture=PICTURES[0]), {"verify": "flag"})
    assert asked.sira["verify"]["min_support"] == threshold
