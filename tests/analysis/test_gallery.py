"""The gallery of `sira report`: records as cards, in a file and in a real browser."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sira_cli.analysis.page import make_page
from sira_cli.errors import DataError
from tests.support.browser import violations, wait, without_axe
from tests.support.records import caption_record

HOSTILE = "</script><img src=x onerror=alert(1)><!-- \u2028 \ud800"


def record(name: str, text: str, **supports: float) -> dict[str, Any]:
    """A record of a caption; with a second look, if it has supports."""
    spans = {thing: [[text.index(thing), text.index(thing) + len(thing)]] for thing in supports}
    objects = [{"thing": name, "spans": spans[name], "support": each, "neither": 0} for name, each in supports.items()]
    look = {"objects": objects, "verify": {"mode": "flag", "min_support": 0.8}} if supports else {}
    return caption_record(name, text, image_sha256="", **look)


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in records), encoding="utf-8")
    return path


@pytest.fixture
def captions(tmp_path) -> Path:
    for name in ("sure.png", "cat.png"):
        Image.new("RGB", (900, 600), "teal").save(tmp_path / name)
    failed = record("missing.png", "") | {"status": "error", "error": f"missing.png: no such file {HOSTILE}"}
    return write(
        tmp_path / "captions.jsonl",
        record("sure.png", "A tree.", tree=0.95),
        failed,
        record("cat.png", "An old text."),
        record("cat.png", "A 🐈, a cat and a dog.", cat=0.1, dog=0.7),
    )


def content(html: str) -> dict[str, Any]:
    return json.loads(html.partition('id="records">')[2].partition("</script>")[0])


def test_the_newest_records_have_their_doubtful_words_marked(captions):
    page = make_page(captions)
    sure, failed, cat = content(page.html)["entries"]
    assert (sure["marks"], sure["support"]) == ([], 0.95)
    assert (failed["error"], failed["support"]) == (f"missing.png: no such file {HOSTILE}", None)
    assert (cat["text"], cat["unsure"]) == ("A 🐈, a cat and a dog.", ["cat 0.10", "dog 0.70"])
    assert cat["marks"] == [[7, 10, 4, "cat 0.10"], [17, 20, 1, "dog 0.70"]]
    assert (page.shows, page.notes) == ("3 records", ("without their picture: 1 (the cards say why)",))
    pictures = page.html.partition('id="pictures">')[2].partition("</script>")[0].split("\n")
    assert [picture[:23] for picture in pictures] == ["data:image/webp;base64,", "", "data:image/webp;base64,"]
    limited = make_page(captions, limit=1)
    assert ([entry["name"] for entry in content(limited.html)["entries"]], limited.shows) == (
        ["cat.png"],
        "1 record, the most doubtful of 3",
    )


def test_two_runs_side_by_side(captions, tmp_path):
    other = record("cat.png", "A 🐈, a bird and a dog.", bird=0.3) | {"method": "greedy"}
    page = make_page(captions, other=write(tmp_path / "greedy.jsonl", other, record("else.png", "A.")))
    sure, _, cat = content(page.html)["entries"]
    assert (content(page.html)["names"], sure["other"]) == (["sira", "greedy"], None)
    assert (cat["only"], cat["other"]["only"], cat["other"]["unsure"]) == ([[7, 10]], [[7, 11]], ["bird 0.30"])
    assert "left out: 1 that only the other run has" in page.notes


def test_without_a_second_look_words_of_low_grounding_are_marked(tmp_path):
    words = [{"word": word, "start": start, "grounding": 0.05} for word, start in (("A", 0), ("“cat”.", 2))]
    found = content(make_page(write(tmp_path / "a.jsonl", record("a.png", "A “cat”.") | {"words": words})).html)
    assert [(entry["marks"], entry["support"]) for entry in found["entries"]] == [([[3, 6, 4, "cat 0.05"]], None)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objects": [{"thing": "cat", "support": 2, "spans": []}]}, "a support is not from 0 to 1"),
        ({"objects": [{"thing": "cat", "support": 0.1, "spans": [[0, 99]]}]}, "places outside the text"),
        ({"objects": "cat"}, "TypeError"),
        ({"objects": [{"support": 0.1}]}, "KeyError"),
    ],
)
def test_a_record_that_sira_did_not_write_is_named(tmp_path, change, message):
    with pytest.raises(DataError, match=rf"a\.jsonl: the record of a\.png is not as sira writes it: .*{message}"):
        make_page(write(tmp_path / "a.jsonl", record("a.png", "A cat.", cat=0.1) | change))


def test_the_command(sira, captions):
    code, out, err = sira("report", captions)
    assert (code, out) == (0, "")
    assert re.search(r"captions\.html: 3 records, 0\.\d MB; open it in a browser", " ".join(err.split()))
    assert sira("report", captions, "--limit", 1)[0] == 2  # another page is there
    assert sira("report", captions, "-o", captions, "--overwrite")[0] == 2


@pytest.mark.smoke
def test_in_a_browser_doubtful_first_searched_corrected_and_saved(browser, captions, tmp_path):
    page = tmp_path / "page.html"
    page.write_bytes(make_page(captions).html.encode("utf-8", "backslashreplace"))
    browser.open(page.as_uri())
    cards = "return [...document.querySelectorAll('.card .name')].map(one => one.textContent)"
    assert browser.run(cards) == ["cat.png", "sure.png", "missing.png"]
    assert browser.text(".card .unsure") == "Unsure: cat 0.10, dog 0.70"
    marked = "return [...document.querySelectorAll('.tok.g4, .tok.g1')].slice(-2).map(one => one.textContent)"
    assert browser.run(marked) == ["cat", "dog"]
    assert browser.run("return document.querySelector('.notice').textContent.includes('</script><img src=x')")
    assert not browser.alert()
    browser.type("#words", "tree")
    assert browser.run(cards) == ["sure.png"]
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
    assert [entry for entry in browser.log("browser") if entry["level"] == "SEVERE"] == []
    assert {url.partition(":")[0] for url in browser.requests()} <= {"file", "data", "blob"}


@pytest.mark.smoke
@without_axe
def test_axe_core_finds_nothing(browser, captions, tmp_path):
    other, page = record("cat.png", "A 🐈, a bird and a dog.", bird=0.3) | {"method": "greedy"}, tmp_path / "page.html"
    html = make_page(captions, other=write(tmp_path / "greedy.jsonl", other)).html
    page.write_bytes(html.encode("utf-8", "backslashreplace"))
    browser.open(page.as_uri())
    browser.press("j", "e")
    assert violations(browser) == []
