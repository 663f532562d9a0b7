"""The page of `sira report` in a real browser: what one sees, points at, types, prints."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from sira_cli.analysis.page import render
from sira_cli.analysis.trace.read import read_traces
from tests.support.browser import Browser, contrasts, violations, without_axe
from tests.support.traces import CAPTION, HOSTILE, failed, hostile, looked_at, make_trace, write_traces

MINUS = "\N{MINUS SIGN}"
OPEN = "document.querySelectorAll('details').forEach(details => details.open = true)"


@pytest.fixture
def show(browser, tmp_path):

    def open_page(*traces: list[dict]) -> Path:
        page = tmp_path / "page.html"
        page.write_text(render(read_traces(write_traces(tmp_path / "trace.jsonl", *traces))), encoding="utf-8")
        browser.open(page.as_uri())
        return page

    return open_page


def numbers(browser: Browser) -> list[str]:
    return browser.run("return [...document.querySelectorAll('.chosen .number')].map(cell => cell.textContent)")


@pytest.mark.smoke
def test_the_page_asks_the_network_for_nothing(show, browser, photos):
    page = show(make_trace(photos["chelsea"]), make_trace(photos["rocket"], k=7))
    assert browser.run("return [...document.images].map(image => image.naturalWidth)") == [451, 640]
    assert [url for url in browser.requests() if not url.startswith("data:image/")] == [page.as_uri()]
    assert browser.run("return performance.getEntriesByType('resource').length") == 0


def test_keys_walk_through_the_text_and_the_panel_follows(show, browser):
    trace = make_trace(tracked=("cat", "dog"))
    show(trace)
    browser.click(".strip .tok:nth-child(4)")
    for keys, step in {("Right",): 4, ("Right", "Right", "Left"): 5, ("Home",): 0, ("Left",): 0, ("End",): 89}.items():
        browser.press(*keys)
        assert browser.text(".where") == f"Token {step + 1} of 90"
        focused = "return [...document.querySelector('.strip').children].indexOf(document.activeElement)"
        assert browser.run(focused) == step
        assert browser.run("return document.querySelectorAll('.strip [tabindex=\"0\"]').length") == 1
        status = browser.run("return document.querySelector('[role=status]').textContent")
        assert status.startswith(f"Token {step + 1} of 90: {trace[step + 1]['token'].strip()}. Delta ")
        views = [trace[step + 1][view] for view in ("full", "cf", "contrast")]
        assert numbers(browser) == [f"{view['logit']:.2f}".replace("-", MINUS) for view in views]
        ranks = "return [...document.querySelectorAll('.chosen .rank')].map(cell => cell.textContent)"
        assert browser.run(ranks) == [f"rank {view['rank']}" for view in views]
    browser.click("input[value=probability]")
    shown = [float(text.removeprefix("<")) for text in numbers(browser)]
    assert shown == pytest.approx([math.exp(view["logprob"]) for view in views], abs=1e-4)
    words = "return [...document.querySelectorAll('.groups caption')].map(word => word.textContent)"
    assert browser.run(words) == ["cat", "dog"]
    assert browser.run("return document.querySelectorAll('.groups td').length") == 6


@pytest.mark.parametrize(
    ("media", "scheme", "width", "count"),
    [("screen", "light", 1280, 3), ("screen", "dark", 320, 1), ("screen", "dark", 320, 3), ("print", "dark", 680, 3)],
)
def test_nothing_is_wider_than_the_page(show, browser, photos, media, scheme, width, count):
    long = make_trace(photos["tall"], text=f"A {'x' * 300} cat. {CAPTION}", tracked=("cat", "y" * 60), model="m" * 200)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.devtools("Emulation.setEmulatedMedia", media=media, features=features)
    browser.devtools("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    show(*[long] * count)
    browser.run(OPEN)
    browser.run("document.querySelector('.strip .tok:nth-child(3)').click()")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 24, 28)" if (media, scheme) == ("screen", "dark") else "rgb(255, 255, 255)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read(show, browser, scheme):
    """WCAG AA, 4.5:1: words in every degree of doubt and of Δ, supported and not, and parts of characters."""
    deltas = {f"{name}{delta}": 0.93 * delta for name in ("a", "b") for delta in range(-4, 5)}
    trace = make_trace(text=f"{' '.join(deltas)} c🐈", deltas=deltas, tracked=("cat",))
    for number, word in enumerate(trace[-1]["words"]):
        word["grounding"] = 0.05 + 0.1 * (number % 5)
    trace[-1]["words"][-1]["grounding"] = 0.05
    trace = looked_at(trace, **{word: 0.1 for word in deltas if word[0] == "a"})
    browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    show(trace, failed("x.jpg: no such file"))
    browser.run(OPEN)
    degrees = "return [...new Set([...document.querySelectorAll('.strip .tok')].flatMap(one => [...one.classList]))]"
    expected = {*(f"g{degree}" for degree in range(5)), *(f"d{level}" for level in range(-4, 5)), "unsupported"}
    assert expected <= {*browser.run(degrees)}
    for colours in ("by-grounding", "by-delta"):
        browser.run("document.querySelector(`[value=${arguments[0]}]`).click()", colours)
        found = contrasts(browser)
        texts = {text for text, _ in found}
        assert {"a-4", "b4", "[", "]", "#", "␣", "⟨F0⟩", "<|im_end|>", "KL", "Failed.", "[not supported]"} <= texts
        assert [(text, ratio) for text, ratio in found if ratio < 4.5] == [], colours


@pytest.mark.smoke
def test_hostile_text_stays_text(show, browser):
    trace = hostile()
    show(trace)
    for _ in range(len(trace) - 2):
        browser.click(".turn [data-turn='1']")
    assert not browser.alert()
    assert browser.run("return document.images.length") == 0
    assert HOSTILE in browser.text(".strip")
    assert browser.text(".groups caption") == HOSTILE


@pytest.mark.smoke
@without_axe
def test_axe_finds_nothing(show, browser, photos):
    trace = make_trace(photos["chelsea"], text="A cat\nsits.", tracked=("cat",))
    show(looked_at(trace, cat=0.1), failed("x.jpg: no such file"))
    browser.run(OPEN)
    assert violations(browser) == []
