"""The page of `sira report` in a real browser: what one sees, points at, types, prints."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path

import pytest

from sira_cli.analysis.page.page import render
from sira_cli.analysis.trace.read import read_traces
from tests.support.browser import Browser, accessible, contrasts
from tests.support.traces import CAPTION, END, failed, looked_at, make_trace, write_traces

MINUS = "\N{MINUS SIGN}"
HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def show(browser, tmp_path):
    """Opens the page of some traces."""

    def open_page(*traces: list[dict], title: str | None = None) -> Path:
        page = tmp_path / "page.html"
        page.write_text(render(read_traces(write_traces(tmp_path / "trace.jsonl", *traces)), title), encoding="utf-8")
        browser.open(page.as_uri())
        return page

    return open_page


def token(step: int) -> str:
    return f".strip .tok:nth-child({step + 1})"


def where(browser: Browser, trace: int = 1) -> str:
    return browser.text(f"#trace-{trace} .where")


def all_accessible(browser: Browser) -> list[tuple[str, str | None]]:
    """Role and name of all that a screen reader is told, once the footer is there: without scripts the
    driver cannot tell when a page is loaded, and the tree grows as it is parsed."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = accessible(browser)
        if any(role == "contentinfo" for role, _ in found):
            return found
    raise AssertionError("no footer within a minute")


def chosen_row(browser: Browser) -> list[str]:
    return browser.run("return [...document.querySelectorAll('.chosen .number')].map(cell => cell.textContent)")


def status(browser: Browser) -> str:
    return browser.run("return document.querySelector('[role=status]').textContent")


@pytest.mark.smoke
def test_the_page_asks_the_network_for_nothing(show, browser, photos):
    page = show(make_trace(photos["chelsea"]), make_trace(photos["rocket"], k=7))
    assert browser.run("return [...document.images].map(image => image.naturalWidth)") == [451, 640]
    assert [url for url in browser.requests() if not url.startswith("data:image/")] == [page.as_uri()]
    assert browser.run("return performance.getEntriesByType('resource').length") == 0


def test_the_first_panel_is_that_of_the_word_to_doubt_most(show, browser):
    trace = make_trace()
    person = next(word for word in trace[-1]["words"] if word["word"] == "person")
    person["grounding"] = 0.01
    show(trace)
    assert where(browser) == f"Token {person['steps'][0] + 1} of {len(trace) - 2}"
    assert browser.text(".numbers").startswith("Grounding 0.01")
    assert browser.text(".words tbody tr").startswith("person")
    assert status(browser) == ""  # nothing is announced before one asks


def test_hovering_shows_and_a_click_keeps(show, browser):
    show(make_trace())
    first = where(browser)
    browser.hover(token(8))
    assert where(browser) == "Token 9 of 90"
    browser.hover("h1")
    assert where(browser) == first
    browser.click(token(8))
    browser.hover("h1")
    assert where(browser) == "Token 9 of 90"
    assert browser.run("return document.querySelectorAll('.strip [aria-selected=true], .strip .shown').length") == 1


def test_keys_walk_through_the_text(show, browser):
    trace = make_trace()
    show(trace)
    browser.click(token(3))
    for keys, step in [
        (("Right",), 4),
        (("Right", "Right", "Left"), 5),
        (("Home",), 0),
        (("Left",), 0),
        (("End",), 89),
    ]:
        browser.press(*keys)
        assert where(browser) == f"Token {step + 1} of 90"
        focused = "return [...document.querySelector('.strip').children].indexOf(document.activeElement)"
        assert browser.run(focused) == step
        assert browser.run("return document.querySelectorAll('.strip [tabindex=\"0\"]').length") == 1
        assert status(browser).startswith(f"Token {step + 1} of 90: {trace[step + 1]['token'].strip()}. Delta ")
    assert browser.run("return document.querySelector('.what').textContent") == END


def test_the_panel_says_what_the_trace_says(show, browser):
    trace = make_trace(tracked=("cat", "dog"))
    show(trace)
    line = trace[6]
    views = [line[view] for view in ("full", "cf", "contrast")]
    browser.click(token(5))
    assert chosen_row(browser) == [f"{view['logit']:.2f}".replace("-", MINUS) for view in views]
    ranks = "return [...document.querySelectorAll('.chosen .rank')].map(cell => cell.textContent)"
    assert browser.run(ranks) == [f"rank {view['rank']}" for view in views]
    browser.click("input[value=probability]")
    shown = [f"{math.exp(view['logprob']):.4f}" for view in views]
    assert [text.replace("<0.0001", "0.0000") for text in chosen_row(browser)] == shown
    browser.press("Right")
    words = "return [...document.querySelectorAll('.groups caption')].map(word => word.textContent)"
    assert browser.run(words) == ["cat", "dog"]
    assert browser.run("return document.querySelectorAll('.groups td').length") == 6


def test_bars_are_as_long_as_their_numbers_on_one_scale(show, browser):
    show(make_trace())
    script = """
        return [...document.querySelectorAll('.candidates .measured')].map((cell) => {
            const number = cell.querySelector('.number').textContent.replace('\u2212', '-');
            return [Number(number), cell.querySelector('i').offsetWidth];
        })"""
    pairs = [(number, width) for number, width in browser.run(script) if number > 1]
    assert len(pairs) >= 30
    scale = max(width / number for number, width in pairs)
    assert all(abs(width - scale * number) <= 2 for number, width in pairs)


def test_more_candidates_on_request(show, browser):
    trace = make_trace(top_k=20)
    show(trace)
    browser.click(token(2))
    rows = "return document.querySelectorAll('.candidates tbody tr').length"
    assert browser.run(rows) <= 13
    browser.click(".all-rows")
    assert browser.run(rows) == len(trace[3]["top"])
    browser.press("Right")  # the button has the focus: the strip is not moved
    browser.click(token(3))
    assert browser.run(rows) == len(trace[4]["top"])


def test_what_is_not_supported_can_be_seen_and_heard(show, browser, photos):
    """In brackets and bold, not by colour alone; a screen reader is told, too."""
    text = "There is a cat on a sofa, beside a dog."
    show(looked_at(make_trace(photos["chelsea"], text=text), cat=0.98, dog=0.12, sofa=0.6))
    script = "const of = getComputedStyle(document.querySelector(arguments[0]), arguments[1]);"
    marks = [[browser.run(f"{script} return of.content", token(step), f"::{end}") for end in ("before", "after")]
             for step in (3, 10)]  # fmt: skip
    assert marks == [["none", "none"], ['"["', '"]"']]
    assert [browser.run(f"{script} return of.fontWeight", token(step), None) for step in (3, 10)] == ["400", "700"]
    assert "not supported" in browser.text(".things tbody tr:first-child")
    assert browser.text(".things h3") == "Objects not supported: 1 of 3"
    browser.click(".things tbody button")
    assert where(browser) == "Token 11 of 13"
    assert "Support 0.12, not supported" in browser.text(".numbers")
    assert status(browser).endswith("Support 0.12: not supported.")
    names = [name for role, name in all_accessible(browser) if role == "option"]
    assert any(name.replace(" ", "") == "[dog]" for name in names)
    assert not any("cat" in name and "[" in name for name in names)


def test_the_chart_and_the_words_lead_to_tokens(show, browser):
    show(make_trace(tracked=("cat",)))
    browser.click(".plot svg")  # in the middle
    assert where(browser) in ("Token 45 of 90", "Token 46 of 90")
    browser.click(".turn [data-turn='1']")
    assert where(browser) in ("Token 46 of 90", "Token 47 of 90")
    browser.click(".plain [data-step='35']")
    assert where(browser) == "Token 36 of 90"
    top = browser.run(
        "return document.activeElement.matches('.tok') && document.activeElement.getBoundingClientRect().top"
    )
    assert 0 <= top <= browser.run("return innerHeight")
    values = "return [...document.querySelectorAll('.words td:nth-child(2)')].map(cell => Number(cell.dataset.value))"
    assert browser.run(values) == sorted(browser.run(values))  # from the beginning
    browser.click("[data-sort='1']")
    assert browser.run(values) == sorted(browser.run(values), reverse=True)


def test_a_switch_colours_by_delta(show, browser):
    trace = make_trace(text="There is a tabby cat.", deltas={"tabby": 5.2, "cat": -5.2})
    for word in trace[-1]["words"]:
        word["grounding"] = 0.1 if word["word"] == "tabby" else 0.95
    show(trace)
    script = "return [0, 3, 4].map(n => getComputedStyle(document.querySelectorAll('.strip .tok')[n]).backgroundColor)"

    def colours() -> list[str]:
        """Of There, tabby, cat."""
        found = []
        for colour in browser.run(script):
            red, _, blue, *opacity = map(float, re.findall(r"[\d.]+", colour))
            found.append("none" if opacity == [0] else "blue" if blue > red else "orange")
        return found

    assert colours() == ["none", "orange", "none"]
    assert browser.text(".of-grounding p:last-child").startswith("Words are coloured by their grounding")
    browser.click("[value=by-delta]")
    assert colours() == ["none", "blue", "orange"]  # a function word is pale in both
    assert browser.text(".of-delta p:last-child").startswith("Tokens are coloured by Δ")
    assert not browser.run("return document.querySelector('.of-grounding').checkVisibility()")


@pytest.mark.parametrize("count", [1, 2])
def test_the_words_to_doubt_are_beside_the_picture(show, browser, photos, count):
    """And the first of them are on the first screen, however long the caption is."""
    show(*[make_trace(photos["astronaut"])] * count)
    browser.devtools("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
    script = """
        const box = (selector) => document.querySelector(selector).getBoundingClientRect();
        const [picture, words, row] = ['.picture', '.doubts', '.words tbody tr'].map(box);
        return [picture.left, picture.right, picture.top, picture.bottom, words.left, words.right, row.bottom];"""
    left, right, top, bottom, words_left, words_right, row = browser.run(script)
    beside = words_left >= right and top - 1 <= row <= bottom
    below = words_left >= left - 5 and words_right <= right + 5 and row > bottom
    assert beside if count > 1 else beside or below
    assert row < 900
    assert browser.run("return document.querySelector('.scroll').scrollHeight > 288")


def test_traces_side_by_side_do_not_disturb_each_other(show, browser):
    show(make_trace(), make_trace(k=7, seed=1), make_trace(alpha=1.0, seed=2), make_trace(seed=3), make_trace(seed=4))
    browser.devtools("Emulation.setDeviceMetricsOverride", width=1600, height=900, deviceScaleFactor=1, mobile=False)
    lefts = browser.run("return [...document.querySelectorAll('article')].map(card => card.offsetLeft)")
    assert len(set(lefts)) == 4
    before = [where(browser, trace) for trace in (1, 3)]
    browser.click(f"#trace-2 {token(10)}")
    browser.click("#trace-2 [value=probability]")
    assert where(browser, 2) == "Token 11 of 90"
    assert [where(browser, trace) for trace in (1, 3)] == before
    assert browser.run("return document.querySelectorAll('[value=probability]:checked').length") == 1


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("media", "scheme", "width"),
    [("screen", "light", 1280), ("screen", "dark", 1280), ("screen", "light", 320), ("print", "dark", 680)],
)
def test_nothing_is_wider_than_the_page(show, browser, photos, media, scheme, width, count):
    long = make_trace(photos["tall"], text=f"A {'x' * 300} cat. {CAPTION}", tracked=("cat", "y" * 60), model="m" * 200)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.devtools("Emulation.setEmulatedMedia", media=media, features=features)
    browser.devtools("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    show(*[long] * count, title="t" * 200)
    browser.run("document.querySelectorAll('details').forEach(details => details.open = true)")
    browser.run("document.querySelector('.strip .tok:nth-child(3)').click()")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 24, 28)" if (media, scheme) == ("screen", "dark") else "rgb(255, 255, 255)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read(show, browser, scheme):
    """WCAG AA, 4.5:1: words in every degree of doubt and of Δ, supported and not, and parts of characters."""
    deltas = {f"{name}{delta}": float(delta) for name in ("a", "b") for delta in range(-4, 5)}
    trace = make_trace(text=f"{' '.join(deltas)} c🐈", deltas=deltas, tracked=("cat",))
    for number, word in enumerate(trace[-1]["words"]):
        word["grounding"] = 0.1 + 0.2 * (number % 5)
    trace[-1]["words"][-1]["grounding"] = 0.1
    trace = looked_at(trace, **{word: 0.1 for word in deltas if word[0] == "a"})
    browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    show(trace, failed("x.jpg: no such file"))
    browser.run("document.querySelectorAll('details').forEach(details => details.open = true)")
    degrees = "return [...new Set([...document.querySelectorAll('.strip .tok')].flatMap(one => [...one.classList]))]"
    expected = {*(f"g{degree}" for degree in range(5)), *(f"d{level}" for level in range(-4, 5)), "unsupported"}
    assert expected <= {*browser.run(degrees)}
    for colours in ("by-grounding", "by-delta"):
        browser.run("document.querySelector(`[value=${arguments[0]}]`).click()", colours)
        found = contrasts(browser)
        texts = {text for text, _ in found}
        assert {"a-4", "b4", "[", "]", "#", "␣", "⟨F0⟩", "<|im_end|>", "KL", "Failed.", "[not supported]"} <= texts
        assert [(text, ratio) for text, ratio in found if ratio < 4.5] == [], colours
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 24, 28)" if scheme == "dark" else "rgb(255, 255, 255)")


@pytest.mark.smoke
def test_hostile_text_stays_text(show, browser):
    run = dict.fromkeys(("prompt", "model", "preset", "method", "file_name", "device"), HOSTILE)
    trace = make_trace(text=f"A cat {HOSTILE}", others=(HOSTILE, f" {HOSTILE}"), tracked=(HOSTILE,), **run)
    trace[-1] |= {"status": "error", "error": HOSTILE}
    show(trace, title=HOSTILE)
    for _ in range(len(trace) - 2):
        browser.click(".turn [data-turn='1']")
    assert not browser.alert()
    assert browser.run("return document.images.length") == 0
    assert browser.run("return document.title") == HOSTILE
    assert HOSTILE in browser.text(".strip")
    assert browser.text(".groups caption") == HOSTILE


def test_a_long_text_does_not_pile_up_elements(show, browser):
    show(make_trace(text=" ".join(["word"] * 511), top_k=25, tracked=("cat", "dog")))
    assert len(json.loads(browser.run("return document.querySelector('.data').textContent"))["tokens"][0]["rows"]) >= 24
    browser.click(token(0))
    browser.click(".all-rows")
    counts = browser.run(
        """const counts = [], next = document.querySelector('.turn [data-turn="1"]');
        for (let step = 0; step < 512; step++) {
            counts.push([document.querySelector('.where').textContent, document.getElementsByTagName('*').length]);
            next.click();
        }
        return counts;"""
    )
    assert [text for text, _ in counts] == [f"Token {step} of 512" for step in range(1, 513)]
    elements = [count for _, count in counts]
    assert max(elements) - min(elements) < 300  # some rows more, some rows less


def test_what_a_screen_reader_is_told(show, browser):
    show(make_trace(text="A cat sleeps."))
    found = all_accessible(browser)
    assert ("listbox", "Caption") in found
    assert [name for role, name in found if role == "option"] == ["A", "cat", "sleeps", ".", END]
    for view in ("Full", "CF", "Contrast"):
        assert ("columnheader", view) in found
    assert ("table", "Candidates for this token: logit and rank in each view") in found
    assert any(role == "rowheader" and name.endswith("(chosen)") for role, name in found)
    assert any(role == "status" for role, _ in found)


def test_without_scripts_all_but_the_panel_is_there(show, browser, photos):
    browser.devtools("Emulation.setScriptExecutionDisabled", value=True)
    try:
        show(make_trace(photos["chelsea"], text="A cat."))
        found = all_accessible(browser)
    finally:
        browser.devtools("Emulation.setScriptExecutionDisabled", value=False)
    assert ("image", "chelsea.jpg") in found
    assert ("columnheader", "Contrast") in found  # of the table of all tokens, which is open
    assert {("StaticText", piece) for piece in ("A", "cat", ".")} <= set(found)
    assert not any(role in ("listbox", "radio") for role, _ in found)


def test_pages_with_little_to_show(show, browser):
    still = make_trace(text="Yes")
    for line in still[1:-1]:
        line |= {"delta": 0.0, "kl": 0.0}
    still[-1]["words"][0] |= {"delta": 0.0, "grounding": 0.0}
    show(failed("x.jpg: no such file"), still, [still[0], *failed("out of memory")], still[:1])
    assert browser.text("#trace-1 .notice") == "Failed. x.jpg: no such file"
    assert where(browser, 2) == "Token 1 of 2"
    assert browser.text("#trace-3 .notice") == "Failed. out of memory"
    assert browser.text("#trace-4 .notice").startswith("Interrupted.")
    assert browser.run("return document.querySelectorAll('.empty').length") == 3
