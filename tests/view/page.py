"""What tests of the page of `sira view` do in a browser: open it, choose, wait, read."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.browser import Browser, wait
from tests.view.conftest import TOKEN

CARDS = "return document.querySelectorAll('.card').length"
COUNT = "return document.querySelector('#count').textContent"
READY = "document.querySelectorAll('.card').length > 0 && document.querySelector('.card.waiting') === null"
PROGRESS = "return document.querySelector('#progress').textContent"
# The places of the cards that are on the screen, below the bar.
INSIDE = """
    [...document.querySelectorAll('.card')].map((card) => [card.getBoundingClientRect(), Number(card.dataset.place)])
    .filter(([box]) => box.bottom > 300 && box.top < innerHeight).map(([, place]) => place)"""


def open_page(browser: Browser, address: str, cards: bool = True) -> None:
    browser.open(f"{address}/?token={TOKEN}")
    wait(browser, "return document.documentElement.classList.contains('script')")
    if cards:
        wait(browser, f"return {READY}")


def choose(browser: Browser, field: str, value: str) -> None:
    script = "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
    browser.run(f"{script} field.dispatchEvent(new Event(field.type === 'search' ? 'input' : 'change'))", field, value)


def opened(browser: Browser, name: str) -> None:
    wait(browser, "return document.querySelector('#picture h1')?.textContent", name)


def texts(browser: Browser) -> list[str]:
    return browser.run("return [...document.querySelectorAll('.card .text bdi')].map(text => text.textContent)")


def words(browser: Browser, expected: str) -> None:
    """Wait for a caption of the large picture."""
    wait(browser, "return document.querySelector('.words')?.textContent", expected)


def edits(source: Path) -> list[dict]:
    log = source.with_name(f"{source.stem}.edits.jsonl")
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
