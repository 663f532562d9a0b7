"""`sira report`: galleries of records say what these say, the doubtful first."""

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
from tests.support.browser import AXE, texts, violations, wait
from tests.support.eval.writing import lines, read
from tests.support.records import caption_record


def record(name: str, text: str, **supports: float) -> dict[str, Any]:
    """A record of a caption; with a second look, if it has supports."""
    spans = {thing: [[text.index(thing), text.index(thing) + len(thing)]] for thing in supports}
    objects = [{"thing": name, "spans": spans[name], "support": each, "neither": 0} for name, each in supports.items()]
    look = {"objects": objects, "verify": {"mode": "flag", "min_support": 0.8}} if supports else {}
    return caption_record(name, text, image_sha256="", **look)


def gallery(folder: Path) -> Path:
    """Records of four captions of three pictures, one of which is missing."""
    for name in ("sure.png", "cat.png"):
        Image.new("RGB", (900, 600), "teal").save(folder / name)
    failure = {"status": "error", "error": "missing.png: </script><img src=x onerror=alert(1)><!-- \u2028 \ud800"}
    records = record("sure.png", "A tree.", tree=0.95), record("missing.png", "") | failure
    cats = record("cat.png", "An old text."), record("cat.png", "A 🐈, a cat and a dog.", cat=0.1, dog=0.7)
    return lines(folder / "captions.jsonl", [*records, *cats])


def content(html: str) -> dict[str, Any]:
    return json.loads(html.partition('id="records">')[2].partition("</script>")[0])


def test_the_newest_records_have_their_doubtful_words_marked(sira, tmp_path):
    page = make_page(captions := gallery(tmp_path))
    code, out, err = sira("report", captions)
    assert code == 0
    assert out == ""
    assert "captions.html: 3 records, 0." in " ".join(err.split())
    assert (tmp_path / "captions.html").read_bytes() == page.html.encode("utf-8", "backslashreplace")
    sure, failure, cat = content(page.html)["entries"]
    assert (sure["marks"], sure["support"]) == ([], 0.95)
    assert (failure["error"][-10:], failure["support"]) == (")><!-- \u2028 \ud800", None)
    assert (cat["text"], cat["support"]) == ("A 🐈, a cat and a dog.", 0.1)
    assert cat["unsure"] == ["cat 0.10", "dog 0.70"]
    assert cat["marks"] == [[7, 10, 4, "cat 0.10"], [17, 20, 1, "dog 0.70"]]
    assert (page.shows, page.notes) == ("3 records", ("without their picture: 1 (the cards say why)",))
    pictures = page.html.partition('id="pictures">')[2].partition("</script>")[0].split("\n")
    assert [picture[:23] for picture in pictures] == ["data:image/webp;base64,", "", "data:image/webp;base64,"]
    limited = make_page(captions, limit=1)
    names = [entry["name"] for entry in content(limited.html)["entries"]]
    assert (names, limited.shows) == (["cat.png"], "1 record, the most doubtful of 3")


def test_a_warning_ranks_as_the_threshold_and_is_on_the_page(tmp_path):
    warned = record("warned.png", "A tree.", tree=0.95) | {"warnings": ["the picture is tiny"]}
    doubtful, sure = record("doubtful.png", "A cat.", cat=0.1), record("sure.png", "A dog.", dog=0.9)
    path = lines(tmp_path / "a.jsonl", [sure, warned, doubtful])
    entries = content(make_page(path).html)["entries"]
    assert [entry["rank"] for entry in entries] == [0.9, 0.8, 0.1]
    assert [entry["warnings"] for entry in entries] == [[], ["the picture is tiny"], []]
    first = content(make_page(path, limit=2).html)["entries"]
    assert [entry["name"] for entry in first] == ["warned.png", "doubtful.png"]


def test_captions_without_a_second_look_name_the_command_for_one(sira, tmp_path):
    path = lines(tmp_path / "captions.jsonl", [record("a.png", "A cat.") | {"preset": "demo"}])
    command = f"sira check {path} -p demo -o {tmp_path / 'checks.jsonl'}"
    code, _, err = sira("report", path)
    assert code == 0
    assert f"{command} tells which objects are to doubt" in err
    assert f"<code>{command}</code>" in (tmp_path / "captions.html").read_text(encoding="utf-8")
    for other in (record("a.png", "No") | {"schema": "sira.ask/1"}, record("a.png", "A cat.", cat=0.9)):
        assert "sira check" not in make_page(lines(tmp_path / "b.jsonl", [other])).html


@pytest.mark.parametrize(
    ("more", "orders"),
    [({}, []), ({"warnings": ["tiny"]}, ["warnings first"]), ({"cat": 0.1}, ["lowest support"])],
)
def test_the_orders_to_choose_from_begin_with_the_one_in_force(tmp_path, more, orders):
    made = record("a.png", "A cat.") | more if "warnings" in more else record("a.png", "A cat.", **more)
    page = make_page(lines(tmp_path / "a.jsonl", [made])).html
    select = page.partition('<select id="sort">')[2].partition("</select>")[0]
    assert re.findall(r">([\w ]+)</option>", select) == [*orders, "order of the file", "name"]


def test_two_runs_side_by_side(tmp_path):
    other = record("cat.png", "A 🐈, a bird and a dog.", bird=0.3) | {"method": "greedy"}
    page = make_page(gallery(tmp_path), other=lines(tmp_path / "greedy.jsonl", [other, record("else.png", "A.")]))
    sure, _, cat = content(page.html)["entries"]
    assert (content(page.html)["names"], sure["other"]) == (["sira", "greedy"], None)
    assert cat["only"] == [[7, 10]]
    assert cat["other"]["only"] == [[7, 11]]
    assert cat["other"]["unsure"] == ["bird 0.30"]
    assert "left out: 1 that only the other run has" in page.notes


def test_without_a_second_look_words_of_low_grounding_are_marked(tmp_path):
    words = [{"word": word, "start": start, "grounding": 0.05} for word, start in (("A", 0), ("“cat”.", 2))]
    path = lines(tmp_path / "a.jsonl", [record("a.png", "A “cat”.") | {"words": words}])
    (entry,) = content(make_page(path).html)["entries"]
    assert (entry["marks"], entry["support"]) == ([[3, 6, 4, "cat 0.05"]], None)


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([{"thing": "cat", "support": 2, "spans": []}], "a support is not from 0 to 1"),
        ([{"thing": "cat", "support": 0.1, "spans": [[0, 99]]}], "places outside the text"),
        ([{"support": 0.1}], "KeyError"),
    ],
)
def test_a_record_that_sira_did_not_write_is_named(tmp_path, objects, message):
    path = lines(tmp_path / "a.jsonl", [record("a.png", "A cat.", cat=0.1) | {"objects": objects}])
    with pytest.raises(DataError, match=rf"a\.jsonl: the record of a\.png is not as sira writes it: .*{message}"):
        make_page(path)


# --- in a real browser


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
    browser.run("words.value = ''; words.dispatchEvent(new Event('input')); words.blur()")  # the element with this id
    browser.press("j", "e")
    browser.run("document.querySelector('textarea').value = ' A \"cat\".\\n'")
    browser.press("Control", "Enter", together=True)
    assert browser.text("#count") == "3 of 3 shown, 1 corrected, not saved."
    leave = "return !dispatchEvent(new Event('beforeunload', {cancelable: true}))"
    assert browser.run(leave)  # the browser asks
    deadline, shown = time.monotonic() + 60, ""
    while shown != 'A "cat".':  # on another visit; the browser may store a moment later
        assert time.monotonic() < deadline
        browser.open(page.as_uri())
        shown = browser.text(".card .text")
    browser.devtools("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.press("s")
    wait(browser, "return document.querySelector('#count').textContent", "3 of 3 shown, 1 corrected.")
    saved, deadline = tmp_path / "corrections.jsonl", time.monotonic() + 60
    while not saved.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    line = {"schema": "sira.correction/1", "file_name": "cat.png", "key": "key of cat.png", "text": 'A "cat".'}
    assert read(saved) == [line]
    assert not browser.run(leave)
    assert {url.partition(":")[0] for url in browser.requests()} <= {"file", "data", "blob"}


@pytest.mark.smoke
def test_warnings_are_among_the_doubtful_and_doubt_stays_while_one_edits(show, browser, tmp_path):
    warned = record("warned.png", "A tree.") | {"warnings": ["the picture is tiny"]}
    doubtful, sure = record("doubtful.png", "A cat.", cat=0.1), record("sure.png", "A dog.", dog=0.9)
    show(records=lines(tmp_path / "a.jsonl", [sure, warned, doubtful]))
    assert texts(browser, ".card .name") == ["doubtful.png", "warned.png", "sure.png"]
    browser.run("filter.value = 'doubtful'; filter.dispatchEvent(new Event('input'))")
    assert texts(browser, ".card .unsure") == ["Unsure: cat 0.10", "Warning: the picture is tiny"]
    browser.press("j", "e", "Escape", "j", "e")
    assert texts(browser, ".card .unsure") == ["Unsure: cat 0.10", "Warning: the picture is tiny"]
    browser.press("Escape", "k", "e")
    assert texts(browser, ".card:has(textarea) .tok.g4") == ["cat"]


@pytest.mark.smoke
@pytest.mark.parametrize("phone", [False, True])
def test_keys_are_explained_where_there_are_some(show, browser, tmp_path, phone):
    show(records=gallery(tmp_path))
    if phone:
        browser.devtools("Emulation.setTouchEmulationEnabled", enabled=True)
        screen = {"width": 390, "height": 844, "deviceScaleFactor": 3, "mobile": True}
        browser.devtools("Emulation.setDeviceMetricsOverride", **screen)
    try:
        assert browser.run("return document.querySelector('.keys').checkVisibility()") is not phone
        assert browser.text("#count") == "3 of 3 shown."
    finally:
        browser.devtools("Emulation.setTouchEmulationEnabled", enabled=False)
        browser.devtools("Emulation.clearDeviceMetricsOverride")


@pytest.mark.smoke
def test_a_gallery_can_be_read(show, browser, tmp_path):
    own, other = record("cat.png", "A cat and a dog.", cat=0.1, dog=0.7), record("cat.png", "A bird.", bird=0.3)
    show(records=lines(tmp_path / "a.jsonl", [own]), other=lines(tmp_path / "b.jsonl", [other]))
    browser.press("j", "e")
    assert not AXE.exists() or violations(browser) == []


@pytest.mark.smoke
def test_a_later_file_of_corrections_knows_the_earlier_ones(show, browser, tmp_path):
    """So that a text file which has one is replaced, also by the model's own text."""
    show(records=gallery(tmp_path))
    browser.run("URL.createObjectURL = (blob) => (blob.text().then((text) => { window.saved = text; }), 'data:,')")
    model = browser.run("return entries.find((entry) => entry.name === 'sure.png').text")
    found = []
    for text in ("One.", "Two.", model):
        browser.run("correct(entries.find((entry) => entry.name === 'sure.png'), arguments[0]); save()", text)
        wait(browser, "return JSON.parse(window.saved ?? '{}').text", text)
        found.append(json.loads(browser.run("return window.saved")).get("earlier"))
    assert found == [None, ["One."], ["One.", "Two."]]
    assert browser.run("return [...kept().earlier.values()]") == [["One.", "Two."]]  # on another visit
