"""The picture on the page at `/`: examples to begin with, broken files, the next picture, the same one large."""

from __future__ import annotations

import base64
import io
import re

import httpx
import numpy as np
import pytest
from PIL import Image

from sira_cli.models.answering.end_tokens import EndTokens
from sira_cli.serve.limits import Limits
from sira_cli.serve.page.examples import OUTCOMES, SEEDS
from tests.serve.conftest import running
from tests.serve.helpers import PICTURES, ROOT
from tests.serve.on_page import answering, opened, run, stream, texts
from tests.support.browser import Browser, accessible, wait

EXAMPLES = [ROOT / "examples" / f"scene-{seed}.png" for seed in SEEDS]
SHOWN = "return [...document.querySelectorAll(arguments[0])].map(one => one.checkVisibility())"
CHOSEN = "return document.querySelector('#file-name').textContent"


@pytest.fixture
def page(browser, address) -> Browser:
    """The page, without a picture."""
    opened(browser, address)
    return browser


def encoded(kind: str) -> bytes:
    data = io.BytesIO()
    Image.open(PICTURES[0]).save(data, kind)
    return data.getvalue()


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


def test_an_example_is_chosen_with_a_key_press(page, lvlm):
    names = [name for role, name in accessible(page) if role == "button" and name.startswith("Example: ")]
    assert names[0] == "Example: farm: SIRA names fewer absent objects than greedy"
    assert len(set(names)) == len(EXAMPLES)
    page.run("document.querySelector('#examples button:last-child').focus()")
    page.press("Enter")
    wait(page, CHOSEN, EXAMPLES[-1].name)
    assert run(page)[0] == lvlm.caption(EXAMPLES[-1]).text


def test_the_page_says_that_the_bundled_model_knows_drawn_scenes_only(page):
    page.type("#file", str(PICTURES[0]))
    wait(page, CHOSEN, PICTURES[0].name)
    assert "knows drawn scenes only; photographs need another preset" in page.text("#examples")


def test_other_models_get_no_drawn_scenes(browser, lvlm):
    other = lvlm.under(lvlm.decoder, lvlm.preset.model_copy(update={"model": "some/model"}))
    with running(other) as address:
        browser.open(address)
        wait(browser, "return document.querySelector('#prompt').value !== ''")
        assert browser.run(SHOWN, "main, #examples") == [True, False]


# --- broken files


@pytest.mark.parametrize(("name", "data"), [("broken.png", b"no picture"), ("empty.jpeg", b"")])
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


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_half_a_picture_is_taken_with_a_warning(page, kind):
    """A browser shows the half of it that there is, as if nothing were wrong."""
    data = encoded(kind)
    drop(page, f"half.{kind}", f"image/{kind.lower()}", data[: len(data) // 2])
    wait(page, "return document.querySelector('#missing').checkVisibility()")
    assert page.text("#missing").startswith(f"half.{kind} is damaged")
    drop(page, f"whole.{kind}", f"image/{kind.lower()}", data)
    wait(page, CHOSEN, f"whole.{kind}")
    assert page.run(SHOWN, "#missing") == [False]


def test_a_picture_that_only_the_server_knows_is_taken(page, lvlm, tmp_path):
    picture = tmp_path / "scan.tiff"
    picture.write_bytes(encoded("TIFF"))
    page.type("#file", str(picture))
    wait(page, CHOSEN, "scan.tiff: this browser cannot show it, the server may know it")
    assert page.run(SHOWN, "#picture, #invitation, #enlarge") == [False, True, False]
    assert run(page)[0] == lvlm.caption(PICTURES[0]).text


# --- the next picture


def test_texts_of_another_picture_go_when_one_is_chosen(page):
    page.type("#file", str(PICTURES[0]))
    thing = {"thing": "cat", "spans": [[2, 5]], "support": 0.1, "neither": 0}
    answering(page, 200, stream("A cat.", words=[], objects=[thing], warnings=["W"]))
    assert run(page) == ["A cat.", "A cat."]
    page.type("#file", str(PICTURES[1]))
    wait(page, CHOSEN, PICTURES[1].name)
    assert texts(page) == ["", ""]
    parts = ".only, .doubts, .things, .column .failure"
    assert page.run(SHOWN, parts) == 2 * 4 * [False]
    assert page.run("return [...document.querySelectorAll('.status')].map(one => one.textContent)") == ["", ""]
    assert page.run("return document.querySelector('#report').ariaDisabled") == "true"


def test_a_text_that_is_being_written_goes_with_its_picture(browser, lvlm, monkeypatch):
    monkeypatch.setattr(EndTokens, "of", lambda model, tokenizer: EndTokens((), lvlm.ends.padding))
    endless = lvlm.under(lvlm.decoder, lvlm.preset.with_settings(max_new_tokens=10**6))
    with running(endless, limits=Limits(tokens=10**6)) as address:
        opened(browser, address)
        browser.type("#file", str(PICTURES[0]))
        browser.click("#run")
        wait(browser, "return document.querySelector('.text').textContent.length > 20")
        browser.type("#file", str(PICTURES[1]))
        wait(browser, CHOSEN, PICTURES[1].name)
        assert texts(browser) == ["", ""]
        assert [browser.text(".status"), browser.text(".text")] == ["", ""]
        assert browser.run("return document.querySelector('#stop').ariaDisabled") == "true"


# --- large


@pytest.mark.parametrize("width", [1280, 360])
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


def test_escape_closes_the_large_picture_and_stops_nothing(page):
    page.type("#file", str(PICTURES[0]))
    wait(page, SHOWN.replace("arguments[0]", "'#enlarge'"), [True])
    page.run("window.fetch = () => new Promise(() => {})")
    page.click("#run")
    page.click("#enlarge")
    page.press("Escape")
    stoppable = "return document.querySelector('#stop').ariaDisabled"
    assert (page.run(SHOWN, "#large"), page.run(stoppable)) == ([False], "false")
    page.press("Escape")
    assert page.run(stoppable) == "true"
