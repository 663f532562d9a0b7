"""The page at `/` in a real browser, of a real server with the bundled model: what one sees, types and hears."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from sira_cli.analysis.doubt import DOUBTED, bare, doubt, says_something
from sira_cli.models.answering.end_tokens import EndTokens
from sira_cli.serve.limits import Limits
from sira_cli.serve.page.examples import SEEDS
from tests.serve.conftest import running
from tests.serve.on_page import FINISHED, PICTURE, answering, opened, run, stream, texts
from tests.serve.test_serve import ask, said
from tests.support.browser import accessible, contrasts, tab, violations, wait, without_axe

ALPHA = "\N{GREEK SMALL LETTER ALPHA}"
HOSTILE = "</script><img src=x onerror=alert(1)>"


def marks_of(word: dict[str, Any]) -> str:
    """The class of a word: pale, or its degree of doubt if it is to be doubted at all."""
    if not says_something(word["word"]):
        return "pale"
    return f"g{doubt(word['grounding']) if word['grounding'] < DOUBTED else 0}"


# --- the texts


@pytest.mark.smoke
def test_the_texts_are_those_of_the_library_and_nobody_else_is_asked(page, address, lvlm):
    greedy = lvlm.under(lvlm.preset.method("greedy"), lvlm.preset)
    assert run(page) == [lvlm.caption(PICTURE).text, greedy.caption(PICTURE).text]
    assert page.run("return document.querySelector('#picture').naturalWidth") > 0
    own = (f"{address}/", "data:", f"blob:{address}/")
    sent = page.requests()
    assert f"{address}/v1/chat/completions" in sent
    assert [url for url in sent if not url.startswith(own)] == []


def test_words_and_things_are_marked_as_in_the_report(page, client, lvlm):
    """By the rules of `analysis.doubt`, on the words that any client is told."""
    run(page)
    answer = ask(client, said(lvlm.preset.prompts.caption, PICTURE), {"words": True, "verify": "flag"})
    words, things = answer.sira["words"], answer.sira["objects"]
    threshold = answer.sira["verify"]["min_support"]
    expected = [(bare(word["word"]), marks_of(word)) for word in words if bare(word["word"])]
    shown = page.run(
        """return [...document.querySelector('.text').querySelectorAll('.tok')].map(
            one => [one.textContent, [...one.classList].find(name => /^g\\d$|^pale$/.test(name))])"""
    )
    assert [tuple(one) for one in shown] == expected
    doubted = [word for word in words if says_something(word["word"]) and word["grounding"] < 0.4]
    assert page.text(".doubts h3") == f"Words to doubt: {len(doubted) or 'none'}"
    rows = page.run("return [...document.querySelector('.things tbody').rows].map(row => row.innerText.split(/\\s+/))")
    rows = [[row[0], row[1]] for row in rows]
    support = sorted((thing["support"], thing["thing"]) for thing in things)
    assert rows == [[f"[{name}]" if value < threshold else name, f"{value:.2f}"] for value, name in support]
    brackets = page.run("return document.querySelector('.text').querySelectorAll('.unsupported.begins').length")
    assert brackets == sum(len(thing["spans"]) for thing in things if thing["support"] < threshold)


def test_a_guided_text_shows_what_was_looked_for(page, lvlm):
    page.run("document.querySelector('#verify').value = 'guide'")
    shown = run(page)
    alone = lvlm.caption(PICTURE, verify="guide")
    assert shown[0] == alone.text
    absent = len(alone.forbidden)
    assert page.text(".things h3") == f"Looked for first; not supported: {absent or 'none'} of {len(alone.candidates)}"
    names = page.run("return [...document.querySelector('.things tbody').rows].map(row => row.cells[0].innerText)")
    assert sorted(name.strip("[]") for name in names) == sorted(one["thing"] for one in alone.candidates)


# --- keys, roles, colours, widths


@pytest.mark.smoke
def test_keys_are_enough(browser, address, lvlm):
    """From the top of the page to a text, without a mouse; the driver chooses the file: its dialogue is no page."""
    opened(browser, address)
    names = tab(browser, 10 + len(SEEDS))
    assert not [name for name in names if "(unseen)" in name]
    boxes = ["Score words", "Second look at objects"]
    expected = ["Caption", "Prompt", *boxes, "Run Ctrl Enter", "Stop Esc", "Method", "K of 8", ALPHA]
    assert [names[0], *names[1 + len(SEEDS) :]] == ["Choose a picture", *expected]
    browser.press_together("Control", "Enter")
    assert browser.text("#missing") == "Choose a picture first."
    assert browser.run("return document.activeElement.id") == "file"
    browser.type("#file", str(PICTURE))
    wait(browser, "return document.querySelector('#enlarge').checkVisibility()")
    browser.press(*["Tab"] * (1 + len(SEEDS)), "Tab", "Right")
    browser.press("Tab")
    assert browser.run("return [document.activeElement.id, document.querySelector('[value=ask]').checked]") == [
        "prompt",
        True,
    ]
    browser.type("#prompt", "Is there a dog in the image?")
    browser.press_together("Control", "Enter")
    wait(browser, FINISHED)
    assert texts(browser)[0] == lvlm.ask(PICTURE, "Is there a dog in the image?").text


def test_a_text_is_heard_as_it_grows_and_only_once(page):
    """Also where the pieces that come over the network end within a character, or within an event."""
    page.run(
        """window.fetch = async () => new Response(new ReadableStream({start(one) { window.feed ??= one; }}));
        window.given = (bytes) => window.feed.enqueue(Uint8Array.from(bytes));"""
    )
    data = "".join(f"data: {json.dumps(event, ensure_ascii=False)}\n\n" for event in stream("A café 🐈", words=[]))
    data = [*f"{data}data: [DONE]\n\n".encode()]
    end = data.index("🐈".encode()[0]) + 2
    page.click("#run")
    wait(page, "return window.feed !== undefined")
    page.run("window.given(arguments[0])", data[:end])
    assert page.text(".status") == "Waiting for its turn…"
    page.run("window.given(arguments[0])", data[end : end + 30])
    live = "return [document.querySelector('.text').textContent, document.querySelector('.text').ariaLive]"
    wait(page, "return document.querySelector('.text').textContent !== ''")
    assert page.run(live) == ["A café 🐈", "polite"]
    for byte in data[end + 30 :]:
        page.run("window.given([arguments[0]])", byte)
    wait(page, "return document.querySelector('.status').textContent.startsWith('3 tokens')")
    assert page.run(live) == ["A café 🐈", "off"]  # with its marks


@pytest.mark.smoke
@without_axe
def test_axe_finds_nothing(page, lvlm):
    word = {"word": "cat", "start": 2, "end": 5, "grounding": 0.1}
    thing = {"thing": "cat", "spans": [[2, 5]], "support": 0.1, "neither": 0}
    answering(page, 200, stream("A cat.", words=[word], objects=[thing], warnings=["is tiny"]))
    run(page)
    page.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert violations(page) == []
    assert page.run("return document.querySelector('.status').textContent").endswith("ended the text. Unsure: cat.")
    page.click("#enlarge")
    assert violations(page) == []
    with running(lvlm, api_key="secret") as address:
        page.open(address)
        wait(page, "return document.activeElement.id === 'key'")
        assert violations(page) == []
        assert all("401" in entry["message"] for entry in page.log("browser"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read(page, scheme):
    """WCAG AA, 4.5:1, also of words in every degree of doubt that no support is found for."""
    page.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    words = [f"word{degree}" for degree in range(5)]
    text = " ".join(words)
    scores = [
        {"word": word, "start": text.index(word), "end": text.index(word) + 5, "grounding": 0.9 - 0.2 * degree}
        for degree, word in enumerate(words)
    ]
    half = [
        {
            "thing": "word",
            "spans": [[word["start"], word["start"] + 2] for word in scores],
            "support": 0.1,
            "neither": 0,
        }
    ]
    answering(page, 200, stream(text, words=scores, objects=half))
    page.click("#run")
    wait(page, FINISHED)
    answering(page, 429, "64 requests wait already")
    page.run("document.querySelector('#report').click()")
    wait(page, "return document.querySelector('#report-status').textContent.startsWith('64')")
    page.run("document.querySelector('#missing').hidden = false; document.querySelector('#missing').textContent = 'x'")
    page.run("document.querySelector('#prompt').value = ''")
    found = contrasts(page)
    assert {
        "Please describe this image in detail.",
        "Run",
        "Stop",
        "Enter",
        "wo",
        "rd4",
        "0.10",
        "x",
        "Make the full report",
    } <= {text for text, _ in found}
    assert [(text, ratio) for text, ratio in found if ratio < 4.5] == []
    white = page.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert white == (scheme == "light")


@pytest.mark.parametrize("width", [1280, 800, 360, 320])
def test_nothing_is_wider_than_the_page(page, width):
    long = f"{'x' * 300} {HOSTILE}"
    page.devtools("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    answering(page, 200, stream(long, words=[], objects=[{"thing": long, "spans": [], "support": 0.1, "neither": 0}]))
    page.click("#run")
    wait(page, FINISHED)
    page.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.run("return document.documentElement.scrollWidth") <= width
    lefts, tops = page.run(
        """const boxes = [...document.querySelectorAll('.column')].map(one => one.getBoundingClientRect());
        return [boxes.map(box => box.left), boxes.map(box => box.top)];"""
    )
    assert (lefts[0] == lefts[1] and tops[0] < tops[1]) == (width < 700)


# --- what is hostile, and what goes wrong


@pytest.mark.smoke
def test_hostile_text_stays_text(browser, address, tmp_path):
    picture = tmp_path / "<img src=x onerror=alert(1)>.png"
    picture.write_bytes(PICTURE.read_bytes())
    opened(browser, address)
    browser.type("#file", str(picture))
    images = browser.run("return document.images.length")
    word = {"word": HOSTILE, "start": 0, "end": len(HOSTILE), "grounding": 0.1}
    thing = {"thing": HOSTILE, "spans": [[0, len(HOSTILE)]], "support": 0.1, "neither": 0}
    answering(browser, 200, stream(HOSTILE, words=[word], objects=[thing], warnings=[HOSTILE]))
    assert run(browser) == [HOSTILE, HOSTILE]
    assert browser.text(".things tbody th") == f"[{HOSTILE}]"
    assert browser.text(".column .failure") == HOSTILE
    assert browser.text("#file-name") == picture.name
    answering(browser, 400, HOSTILE)
    browser.click("#run")
    wait(browser, "return document.querySelector('.column .failure').textContent.startsWith('</script>')")
    assert browser.run("return document.images.length") == images
    assert not browser.alert()
    sinks = "try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error.name; }"
    assert browser.run(sinks) == "TypeError"  # the policy lets no text become elements, whoever tries
    assert "TrustedHTML" in browser.log("browser")[0]["message"]


def test_escape_stops_and_frees_the_server(browser, lvlm, monkeypatch):
    """Texts that would never end."""
    monkeypatch.setattr(EndTokens, "of", lambda model, tokenizer: EndTokens((), lvlm.ends.padding))
    endless = lvlm.under(lvlm.decoder, lvlm.preset.with_settings(max_new_tokens=10**6))
    with running(endless, limits=Limits(tokens=10**6)) as address:
        opened(browser, address)
        browser.type("#file", str(PICTURE))
        expected = lvlm.caption(PICTURE).text
        browser.click("#run")
        wait(browser, "return document.querySelector('.text').textContent.length > 20")
        browser.press("Escape")
        wait(browser, FINISHED)
        begun = texts(browser)[0]
        assert browser.text(".status") == "Stopped."
        assert begun[:20] == expected[:20]
        short = {"messages": said(), "max_tokens": 2}
        assert httpx.post(f"{address}/v1/chat/completions", json=short, timeout=60).status_code == 200
        assert texts(browser)[0] == begun


def test_a_key_is_asked_for_and_kept_in_the_tab(browser, lvlm):
    with running(lvlm, api_key="secret") as address:
        browser.open(address)
        wait(browser, "return document.activeElement.id === 'key'")
        assert not browser.run("return document.querySelector('#work').checkVisibility()")
        assert ("textbox", "This server asks for its key") in accessible(browser)
        browser.type("#key", "guess")
        browser.press("Enter")
        wait(browser, "return document.querySelector('#trouble').textContent === 'This is not the key of this server.'")
        browser.type("#key", "secret")
        browser.press("Enter")
        wait(browser, "return !document.querySelector('#work').hidden")
        assert all("401" in entry["message"] for entry in browser.log("browser"))
        opened(browser, address)  # again, without being asked
        browser.type("#file", str(PICTURE))
        assert run(browser)[0] == lvlm.caption(PICTURE).text
        assert not any("secret" in url for url in browser.requests())
        assert browser.run("return [document.cookie, localStorage.length]") == ["", 0]


# --- the report


def test_the_report_opens_and_has_both_texts(page):
    shown = run(page)
    page.click("#report")
    wait(page, "return !document.querySelector('#open').hidden")
    assert page.run("return document.activeElement.id") == "open"
    page.open(page.run("return document.querySelector('#open').href"))
    assert page.run("return document.title") == f"sira and greedy: {PICTURE.name}"
    read = "return [...document.querySelectorAll('.strip')].map(one => one.textContent.replace(/<[^>]*>$/, ''))"
    assert page.run(read) == shown
    assert page.run("return [...document.images].map(one => one.naturalWidth > 0)") == [True, True]
    assert page.run("return document.querySelectorAll('.strip [role=option]').length") > 20  # its script runs, too
