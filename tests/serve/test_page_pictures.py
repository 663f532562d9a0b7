"""The picture on the page at `/`: examples to begin with, broken files, the next picture, the same one large."""

from __future__ import annotations

import base64
import io
import re

import httpx
import numpy as np
import pytest
from PIL import Image

from sira_cli.serve.page.examples import OUTCOMES, SEEDS
from tests.serve.helpers import PICTURES, ROOT
from tests.serve.on_page import opened
from tests.support.browser import Browser, accessible, wait

EXAMPLES = [ROOT / "examples" / f"scene-{seed}.png" for seed in SEEDS]
SHOWN = "return [...document.querySelectorAll(arguments[0])].map(one => one.checkVisibility())"
CHOSEN = "return document.querySelector('#file-name').textContent"


@pytest.fixture
def page(browser, address) -> Browser:
    """The page, without a picture."""
    opened(browser, address)
    return browser


def drop(browser: Browser, name: str, kind: str, data: bytes) -> None:
    """Drop a file of that type, as the browser makes it out of the ending."""
    script = """
        const bytes = Uint8Array.from(atob(arguments[2]), letter => letter.charCodeAt(0));
        const data = new DataTransfer();
        data.items.add(new File([bytes], arguments[0], {type: arguments[1]}));
        document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}));"""
    browser.run(script, name, kind, base64.b64encode(data).decode())


# --- examples


def test_examples_are_the_pictures_of_the_repository(address):
    found = httpx.get(f"{address}/settings").json()["examples"]
    assert [example["name"] for example in found] == [path.name for path in EXAMPLES]
    for path in EXAMPLES:
        answer = httpx.get(f"{address}/page/{path.name}")
        assert answer.headers["content-type"] == "image/png"
        pixels = [np.asarray(Image.open(file)) for file in (io.BytesIO(answer.content), path)]
        assert np.array_equal(*pixels)


def test_examples_are_the_first_of_each_outcome():
    """Counted in the table that `tools.examples` writes of twenty scenes, where absent objects are bold."""
    first = {}
    for line in (ROOT / "examples" / "README.md").read_text().splitlines():
        if line.startswith("| <img"):
            _, picture, _, *texts = line.split("|")
            greedy, sira = (len(set(re.findall(r"\*\*(.*?)\*\*", text))) for text in texts[:2])
            more = "more" if sira > greedy else "fewer" if sira < greedy else "as many"
            outcome = more if greedy or sira else "neither"
            first.setdefault(outcome, int(re.search(r"scene-(\d+)", picture)[1]))
    shown = {outcome: seed for seed, words in OUTCOMES.items() for outcome in first if outcome in words}
    assert shown == first
    assert len(first) == 4


# --- broken files


@pytest.mark.parametrize(("name", "data"), [("broken.png", b"no picture")])
def test_what_is_no_picture_is_refused_at_once(page, name, data):
    """By its name it is one; the picture before, if there is one, stays."""
    for before in ("No picture yet", PICTURES[0].name):
        if before != "No picture yet":
            page.type("#file", str(PICTURES[0]))
            wait(page, CHOSEN, before)
            assert page.run(SHOWN, "#missing") == [False]
        drop(page, name, f"image/{name.partition('.')[2]}", data)
        wait(page, "return document.querySelector('#missing').checkVisibility()")
        assert page.text("#missing").startswith(f"{name} cannot be shown: it is damaged")
        assert page.run(CHOSEN) == before
    assert not any("completions" in url for url in page.requests())


# --- large


@pytest.mark.parametrize("width", [360])
def test_the_picture_can_be_enlarged(page, width):
    page.devtools("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    assert page.run(SHOWN, "#enlarge") == [False]
    page.type("#file", str(PICTURES[0]))
    wait(page, SHOWN.replace("arguments[0]", "'#enlarge'"), [True])
    small, natural = page.run("const one = document.querySelector('#picture'); return [one.width, one.naturalWidth]")
    page.click("#enlarge")
    size = """
        const image = document.querySelector('#sheet img');
        return Math.min(image.clientWidth, image.clientHeight)"""
    assert page.run(size) > (natural if width > natural else small)
    assert page.run("return document.querySelector('#large').scrollWidth") <= width
    assert ("dialog", "The picture, large") in accessible(page)
    page.click("#actual")
    assert page.run(size) == natural
    assert page.run("return document.querySelector('#actual').ariaPressed") == "true"
    page.press("Escape")
    assert page.run(SHOWN, "#large") == [False]
    assert page.run("return document.activeElement.id") == "enlarge"
