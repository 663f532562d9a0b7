"""The page of `sira view` in a real browser: thousands of cards, keys, two windows, what is hostile, what one hears."""

from __future__ import annotations

import pytest

from tests.support.browser import contrasts, tab, violations, wait, without_axe
from tests.view.conftest import HOSTILE, looked_at, record, sized, write
from tests.view.page import COUNT, edits, open_page, opened

# --- to mend


@pytest.mark.smoke
def test_captions_are_mended_by_keys_alone(browser, serve, records):
    before = records.read_bytes()
    open_page(browser, serve(records))
    browser.press("/", *"number 1")
    wait(browser, COUNT, "1 of 3 captions")
    browser.press("Escape", "Enter")
    opened(browser, "pictures/1.png")
    browser.press("e")
    browser.press_together("Control", "a")
    browser.press(*"Two cats.")
    browser.press_together("Control", "Enter")
    wait(browser, "return document.querySelector('.words')?.textContent", "Two cats.")
    assert browser.text(".caption .state.edited") == "Edited"
    assert browser.text(".first") == "A cat and a dog, number 1."
    browser.press("a")
    wait(browser, "return document.querySelector('.state').textContent", "Accepted")
    browser.press("u")
    wait(browser, "return document.querySelector('.state').textContent", "Not yet decided")
    browser.press("u")
    wait(browser, "return document.querySelector('.words').textContent", "A cat and a dog, number 1.")
    browser.press("Escape")
    wait(browser, "return document.querySelector('#gallery').checkVisibility()")
    log = [(line["version"], line["action"], line["text"], line["decision"]) for line in edits(records)]
    original = "A cat and a dog, number 1."
    assert log == [
        (1, "change", "Two cats.", ""),
        (2, "change", "Two cats.", "accepted"),
        (3, "undo", "Two cats.", ""),
        (4, "undo", original, ""),
    ]
    assert records.read_bytes() == before


# --- what is odd or hostile


@pytest.mark.smoke
def test_hostile_captions_and_names_stay_text(browser, serve, folder):
    rows = [
        looked_at(0, cat=0.1, dog=0.1)
        | {"warnings": [HOSTILE], "method": HOSTILE, "prompt": HOSTILE, "reasoning": f"Let me look. {HOSTILE}"},
        record(1, file_name=HOSTILE, text=HOSTILE),
        record(2, status="error", error=HOSTILE, text=""),
    ]
    rows[0]["objects"][0]["thing"] = HOSTILE
    others = [record(0, text=f"{HOSTILE} A bird."), record(1, file_name=HOSTILE, text=f"A {HOSTILE}")]
    address = serve(write(folder / f"a{HOSTILE.replace('/', '')}.jsonl", rows), write(folder / "b.jsonl", others))
    open_page(browser, address)
    wait(browser, "return document.querySelectorAll('.card del').length > 0")
    wait(browser, "return document.querySelectorAll('.thumb img').length", 2)
    for number in range(3):
        browser.run("location.hash = arguments[0]", f"#{number + 1}")
        opened(browser, rows[number]["file_name"])
        browser.run("document.querySelectorAll('details').forEach((details) => (details.open = true))")
        shown = browser.run("return document.querySelector('#picture').innerText")
        assert HOSTILE in shown
        assert (f"Let me look. {HOSTILE}" in shown) == (number == 0)
        assert browser.run("return document.querySelectorAll('#picture img').length") == (number != 1)
    assert not browser.alert()
    assert browser.run("return document.querySelectorAll('script').length") == 1
    assert all(url.startswith((address, "data:")) for url in browser.requests())


# --- for everyone


@pytest.mark.smoke
def test_tab_comes_to_everything_and_one_sees_where(browser, serve, records):
    open_page(browser, serve(records))
    bar = ["Search", "Show", "Sort by", "Next undecided", "Export", "Keys"]
    card = ["A cat and a dog, number 0.", "Accept 0.png", "Reject 0.png"]
    assert tab(browser, 9) == bar + card
    browser.press("Enter")
    wait(browser, "return document.querySelectorAll('.card .state.rejected').length", 1)
    browser.press_together("Shift", "Tab")
    browser.press_together("Shift", "Tab")
    browser.press("Enter")
    opened(browser, "pictures/0.png")
    assert browser.run("return document.activeElement.tagName") == "H1"
    assert tab(browser, 7) == ["Previous←", "Next→", "Next undecidedn", "Edite", "Accepta", "Rejectr", "Undou"]
    browser.press("Escape")
    wait(browser, "return document.activeElement.innerText?.split('\\n')[0]", card[0])


@pytest.mark.smoke
@without_axe
def test_axe_finds_nothing(browser, serve, folder):
    rows = [
        looked_at(0, cat=0.1, dog=0.9) | {"warnings": ["is tiny"], "reasoning": "Let me look.", "model": "m"},
        record(1),
        record(2, status="error", error="no such file", text=""),
    ]
    others = [record(0, text="A bird."), record(1, text="A dog.")]
    open_page(browser, serve(write(folder / "a.jsonl", rows), write(folder / "b.jsonl", others)))
    wait(browser, "return document.querySelectorAll('.card del').length > 0")
    browser.press("Right", "r")
    wait(browser, "return document.querySelectorAll('.card .state.rejected').length", 1)
    assert violations(browser) == []
    browser.run("location.hash = '#1'")
    opened(browser, "pictures/0.png")
    browser.run("document.querySelectorAll('details').forEach((details) => (details.open = true))")
    assert violations(browser) == []
    browser.press("e", "Escape", "?")
    assert violations(browser) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_and_nothing_is_wider_than_a_telephone(browser, serve, folder, scheme):
    long = "x" * 300
    rows = [
        looked_at(0, cat=0.1, dog=0.1) | {"warnings": ["is tiny"]},
        record(1, text=f"A {long} cat."),
        record(2, status="error", error=f"no {long}", text=""),
        record(3, file_name=f"{long[:200]}.png", text=""),
    ]
    others = [record(0, text="A bird."), record(1, text="A dog.")]
    source = write(folder / f"{long[:150]}.jsonl", rows)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.devtools("Emulation.setEmulatedMedia", media="screen", features=features)
    address = serve(source, write(folder / "b.jsonl", others))
    open_page(browser, address)
    wait(browser, "return document.querySelectorAll('.card del').length > 0")
    browser.press("a", "r")
    wait(browser, "return document.querySelectorAll('.card .state.rejected').length", 1)
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 24, 28)" if scheme == "dark" else "rgb(255, 255, 255)")
    for width in (1280, 360):
        sized(browser, width, 740)
        for place in ("", "#1", "#2", "#3", "#4"):
            browser.run("location.hash = arguments[0]", place)
            if place:
                opened(browser, rows[int(place[1]) - 1]["file_name"])
            else:
                wait(browser, "return document.querySelector('#gallery').checkVisibility()")
            assert browser.run("return document.documentElement.scrollWidth") <= width, place
            found = contrasts(browser)
            assert len(found) > 10
            assert [(text, ratio) for text, ratio in found if ratio < 4.5] == []


def test_of_two_windows_the_second_sees_both_texts(browser, serve, records):
    address = serve(records)
    open_page(browser, address)
    first, second = browser.new_window()
    browser.click(".card a")
    opened(browser, "pictures/0.png")
    browser.switch(second)
    try:
        open_page(browser, address)
        browser.press("e")
        opened(browser, "pictures/0.png")
        browser.press_together("Control", "a")
        browser.press(*"Theirs.")
        browser.press_together("Control", "Enter")
        wait(browser, "return document.querySelector('.words')?.textContent", "Theirs.")
        browser.devtools("Page.close")
    finally:
        browser.switch(first)
    browser.press("e")
    browser.press_together("Control", "a")
    browser.press(*"Mine.")
    browser.press_together("Control", "Enter")
    wait(browser, "return document.querySelector('.conflict')?.textContent.includes('changed elsewhere')")
    shown = browser.text(".conflict")
    assert "Theirs." in shown
    assert "Mine." in shown
    assert [line["text"] for line in edits(records)] == ["Theirs."]
    browser.click("[data-do=again]")
    wait(browser, "return document.querySelector('.words')?.textContent", "Mine.")
    assert [(line["text"], line["version"]) for line in edits(records)] == [("Theirs.", 1), ("Mine.", 2)]
    (refused,) = browser.log("browser")  # the one thing that the browser itself says
    assert "409" in refused["message"]


def test_a_text_that_is_not_saved_is_not_left(browser, serve, records):
    open_page(browser, serve(records))
    browser.click(".card a")
    opened(browser, "pictures/0.png")
    browser.press("e", *"Still here. ")
    for leave in ("next", "back"):
        browser.click(f"[data-do={leave}]")
        wait(browser, "return document.querySelector('.conflict').textContent", "Save your text first, or cancel.")
        assert "Still here." in browser.run("return document.querySelector('textarea').value")
    browser.press("Escape")
    wait(browser, "return document.querySelector('textarea')", None)
    browser.click("[data-do=discard]")
    wait(browser, "return document.querySelector('.draft')", None)
    browser.press("e")
    wait(browser, "return document.activeElement.id", "mend")
    browser.click("[data-do=next]")  # nothing was typed
    opened(browser, "pictures/1.png")
