"""The pages of `sira report` in a real browser: what one sees, points at, types, corrects, saves, prints."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest

from sira_cli.analysis.page import make_page
from tests.analysis.test_page import gallery, record
from tests.support.browser import AXE, Browser, violations, wait
from tests.support.eval.writing import lines
from tests.support.traces import HOSTILE, failed, hostile, looked_at, make_trace, write_traces

MINUS = "\N{MINUS SIGN}"
OPEN = "document.querySelectorAll('details').forEach(details => details.open = true)"


@pytest.fixture
def show(browser, tmp_path):

    def open_page(*traces: list[dict], records: Path | None = None, other: Path | None = None) -> Path:
        page, path = tmp_path / "page.html", records or write_traces(tmp_path / "trace.jsonl", *traces)
        page.write_bytes(make_page(path, other=other).html.encode("utf-8", "backslashreplace"))
        browser.open(page.as_uri())
        return page

    return open_page


def texts(browser: Browser, selector: str) -> list[str]:
    return browser.run("return [...document.querySelectorAll(arguments[0])].map(one => one.textContent)", selector)


# --- traces


def test_keys_walk_through_the_text_and_the_panel_follows(show, browser):
    trace = make_trace(tracked=("cat", "dog"))
    show(trace)
    browser.click(".strip .tok:nth-child(4)")
    for keys, step in {("Right",): 4, ("Right", "Right", "Left"): 5, ("Home",): 0, ("Left",): 0, ("End",): 89}.items():
        browser.press(*keys)
        assert browser.text(".where") == f"Token {step + 1} of 90"
        focused = "return [...document.querySelector('.strip').children].indexOf(document.activeElement)"
        assert browser.run(focused) == step
        status = f"Token {step + 1} of 90: {trace[step + 1]['token'].strip()}. Delta "
        assert texts(browser, "[role=status]")[0].startswith(status)
        views = [trace[step + 1][view] for view in ("full", "cf", "contrast")]
        logits = [f"{view['logit']:.2f}".replace("-", MINUS) for view in views]
        assert texts(browser, ".chosen .number") == logits
        assert texts(browser, ".chosen .rank") == [f"rank {view['rank']}" for view in views]
    browser.click("input[value=probability]")
    shown = [float(text.removeprefix("<")) for text in texts(browser, ".chosen .number")]
    assert shown == pytest.approx([math.exp(view["logprob"]) for view in views], abs=1e-4)
    assert texts(browser, ".groups caption") == ["cat", "dog"]


@pytest.mark.smoke
def test_all_text_can_be_read(show, browser, photos):
    """WCAG AA, 4.5:1: words in every degree of doubt and of Δ, supported and not, and parts of characters."""
    deltas = {f"{name}{delta}": 0.93 * delta for name in ("a", "b") for delta in range(-4, 5)}
    trace = make_trace(photos["chelsea"], text=f"{' '.join(deltas)}\nc🐈", deltas=deltas, tracked=("cat",))
    for number, word in enumerate(trace[-1]["words"]):
        word["grounding"] = 0.05 + 0.1 * (number % 5)
    trace[-1]["words"][-1]["grounding"] = 0.05
    show(looked_at(trace, **{word: 0.1 for word in deltas if word[0] == "a"}), failed("x.jpg: no such file"))
    browser.run(OPEN)
    degrees = "return [...new Set([...document.querySelectorAll('.strip .tok')].flatMap(one => [...one.classList]))]"
    expected = {*(f"g{degree}" for degree in range(5)), *(f"d{level}" for level in range(-4, 5)), "unsupported"}
    assert expected <= {*browser.run(degrees)}
    for colours in ("by-grounding", "by-delta"):
        browser.run("document.querySelector(`[value=${arguments[0]}]`).click()", colours)
        assert not AXE.exists() or violations(browser) == [], colours


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


# --- records


@pytest.mark.smoke
def test_doubtful_records_come_first_and_are_searched_corrected_and_saved(show, browser, tmp_path):
    page = show(records=gallery(tmp_path))
    assert texts(browser, ".card .name") == ["cat.png", "sure.png", "missing.png"]
    assert browser.text(".card .unsure") == "Unsure: cat 0.10, dog 0.70"
    assert texts(browser, ".tok.g4, .tok.g1")[-2:] == ["cat", "dog"]
    assert browser.run("return document.querySelector('.notice').textContent.includes('</script><img src=x')")
    assert not browser.alert()
    browser.type("#words", "tree")
    assert texts(browser, ".card .name") == ["sure.png"]
    empty = "words = document.querySelector('#words'); words.value = '';"
    browser.run(f"{empty} words.dispatchEvent(new Event('input')); words.blur()")
    browser.press("j", "e")
    browser.run("document.querySelector('textarea').value = ' A \"cat\".\\n'")
    browser.press_together("Control", "Enter")
    assert browser.text("#count") == "3 of 3 shown, 1 corrected, not saved."
    leave = "const event = new Event('beforeunload', {cancelable: true}); dispatchEvent(event);"
    leave += "return event.defaultPrevented"
    assert browser.run(leave)  # the browser asks
    deadline = time.monotonic() + 10
    browser.open(page.as_uri())  # another visit
    while browser.text(".card .text") != 'A "cat".':  # the browser may store a moment later
        assert time.monotonic() < deadline
        browser.open(page.as_uri())
    browser.devtools("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.press("s")
    wait(browser, "return document.querySelector('#count').textContent", "3 of 3 shown, 1 corrected.")
    saved, deadline = tmp_path / "corrections.jsonl", time.monotonic() + 60
    while not saved.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    line = {"schema": "sira.correction/1", "file_name": "cat.png", "key": "key of cat.png", "text": 'A "cat".'}
    assert [json.loads(each) for each in saved.read_text(encoding="utf-8").splitlines()] == [line]
    assert not browser.run(leave)
    assert {url.partition(":")[0] for url in browser.requests()} <= {"file", "data", "blob"}


@pytest.mark.smoke
def test_a_gallery_can_be_read(show, browser, tmp_path):
    own, other = record("cat.png", "A cat and a dog.", cat=0.1, dog=0.7), record("cat.png", "A bird.", bird=0.3)
    show(records=lines(tmp_path / "a.jsonl", [own]), other=lines(tmp_path / "b.jsonl", [other]))
    browser.press("j", "e")
    assert not AXE.exists() or violations(browser) == []
