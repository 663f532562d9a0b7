"""A page that stays open while its file changes, and one of more cards than an element is high."""

from __future__ import annotations

import json

import pytest

from tests.support.browser import wait
from tests.view.conftest import record, running, sized
from tests.view.page import CARDS, COUNT, INSIDE, READY, open_page, opened, texts, words

MANY = 105_000  # cards of 356 pixels below each other: browsers end an element at 33.5 million pixels


def test_an_open_page_shows_and_exports_what_is_there_now(browser, serve, records):
    open_page(browser, serve(records))
    assert browser.run(CARDS) == 3
    more = [record(3, file_name="pictures/0.png", id="again", text="One more."), record(1, text="Better.")]
    with records.open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in more))
    wait(browser, COUNT, "4 captions")
    wait(browser, f"return {READY} && [...document.querySelectorAll('.card .text')].at(-1).textContent", "One more.")
    assert texts(browser)[1] == "Better."
    export = "return fetch('export').then((answer) => answer.text())"
    assert [json.loads(line)["text"] for line in browser.run(export).splitlines()] == [
        *("A cat and a dog, number 0.", "Better.", "A cat and a dog, number 2.", "One more.")
    ]
    browser.press("Enter")
    opened(browser, "pictures/0.png")
    with records.open("a") as file:
        file.write(json.dumps(record(0, text="Newer.")) + "\n")
    words(browser, "Newer.")  # also one that is large


@pytest.fixture(scope="module")
def endless(tmp_path_factory) -> str:
    """The address of a page with more cards than a browser can lay below each other."""
    source = tmp_path_factory.mktemp("endless") / "captions.jsonl"
    with source.open("w") as file:
        for number in range(MANY):
            file.write(f'{{"image": "{number}.png", "text": "Number {number}."}}\n')
    with running(source) as address:
        yield address


def test_every_card_of_a_very_long_list_can_be_reached(browser, endless):
    sized(browser, 360, 740)
    open_page(browser, endless)
    wait(browser, COUNT, f"{MANY:,} captions")
    inside = INSIDE.replace("300", "50")
    height = browser.run("return document.documentElement.scrollHeight")
    browser.run("scrollTo(0, arguments[0])", height)
    wait(browser, f"return Math.max(...({inside}))", MANY - 1)
    browser.run("scrollTo(0, arguments[0])", height / 2)
    wait(browser, f"return Math.abs(Math.max(...({inside})) - {MANY / 2}) < 100")
    wait(browser, f"return {READY}")
    before = browser.run(f"return Math.min(...({inside}))")
    for _ in range(12):  # turns of the wheel move by so many pixels as ever
        browser.run("scrollBy({top: 400, behavior: 'instant'})")
        browser.run("return new Promise(requestAnimationFrame).then(() => 1)")
    wait(browser, f"return {READY}")
    moved = browser.run(f"return Math.min(...({inside}))") - before
    assert 11 <= moved <= 15  # 4,800 pixels, cards of 356 to 380 each
    shown = browser.run(f"return ({inside})")
    assert shown == [*range(shown[0], shown[-1] + 1)]
    browser.press("End")
    wait(
        browser,
        f"return {READY} && [...document.querySelectorAll('.card .text')].at(-1).textContent",
        f"Number {MANY - 1}.",
    )
    browser.press("Up")
    wait(browser, "return document.activeElement.closest('.card')?.dataset.place", str(MANY - 2))
    browser.press("Home")
    wait(browser, f"return {READY} && document.querySelector('.card .text').textContent", "Number 0.")
    assert browser.run("return scrollY") < 400
