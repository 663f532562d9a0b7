"""The page at / in a real browser: two texts beside each other."""

from __future__ import annotations

import httpx
import pytest

from sira_cli.look.claims import bare, doubt, says_something
from tests.serve.helpers import PICTURES, post, running, said
from tests.support.browser import tab, wait

FINISHED = "return document.querySelector('#stop').ariaDisabled === 'true'"
TEXTS = "return [...document.querySelectorAll('.text')].map(one => one.textContent)"


def opened(browser, address) -> None:
    browser.open(address)
    wait(browser, "return !document.querySelector('#ask').hidden")


@pytest.mark.smoke
def test_a_picture_is_described_by_two_methods(browser, lvlm, tmp_path):
    """A name that is code stays a name, and words to doubt are marked as in the record."""
    picture = tmp_path / "<img src=x onerror=alert(1)>.png"
    picture.write_bytes(PICTURES[3].read_bytes())
    lvlm = lvlm.under(lvlm.decoder, lvlm.preset.with_settings(max_new_tokens=100))
    methods = ["sira", "greedy"]
    expected = [lvlm.under(lvlm.preset.method(name)).caption(picture).text for name in methods]
    with running(lvlm) as address:
        opened(browser, address)
        browser.click("#run")
        assert browser.text("#trouble") == "Choose a picture first."
        browser.type("#file", str(picture))
        assert tab(browser, 3) == ["Question", "Run Ctrl Enter", "Stop Esc"]
        browser.press("Control", "Enter", together=True)
        wait(browser, "return document.querySelector('[role=status]').textContent !== ''")
        wait(browser, FINISHED)
        assert browser.run("return [...document.querySelectorAll('h2')].map(one => one.textContent)") == methods
        assert browser.run(TEXTS) == expected
        sira = {"method": "greedy", "words": True}
        scored = post(address, messages=said(lvlm.preset.prompts.caption, picture), sira=sira).json()["sira"]["words"]
        doubted = [bare(word["word"]) for word in scored if says_something(word["word"]) and doubt(word["grounding"])]
        marked = "return [...document.querySelectorAll('article:last-child .tok')].map(one => one.textContent)"
        assert browser.run(marked) == doubted != []
        assert browser.text("#name") == picture.name
        browser.type("#question", "Is there a dog in the image?")
        browser.click("#run")
        wait(browser, FINISHED)
        assert browser.run(TEXTS)[0] == lvlm.ask(picture, "Is there a dog in the image?").text
        sinks = "try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error.name; }"
        assert browser.run(sinks) == "TypeError"  # the policy lets no text become elements
        assert "TrustedHTML" in browser.log("browser")[0]["message"]
        assert not browser.alert()
        assert all(url.startswith((address, "data:", "blob:")) for url in browser.requests())


def test_isolating_headers(address):
    headers = httpx.get(address).headers
    policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data: blob:; connect-src 'self'; "
    policy += "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    assert headers["content-security-policy"] == policy
    for path in ("", "/page/style.css", "/page/script.js", "/page/element.js"):
        headers = httpx.get(address + path).headers
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert headers["cross-origin-resource-policy"] == "same-origin"
