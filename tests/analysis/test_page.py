"""`sira report`: the pages of traces and of records say what these say and nothing else."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
import shutil
import time
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from PIL import Image

from sira_cli.analysis.page import make_page, render, to_script
from sira_cli.analysis.page.cards import Card, Scale, label, token_texts
from sira_cli.analysis.trace.read import read_traces
from sira_cli.errors import DataError
from tests.support.browser import AXE, Browser, violations, wait
from tests.support.eval.writing import lines, read
from tests.support.records import caption_record
from tests.support.traces import END, HOSTILE, SCHEMA, failed, hostile, looked_at, make_trace, write_traces

MINUS = "\N{MINUS SIGN}"
OPEN = "document.querySelectorAll('details').forEach(details => details.open = true)"


class Page(HTMLParser):
    """What of a page the tests look at: elements with their attributes, its text, the tokens of the text, the data."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.text, self.elements, self.data = html, "", list[tuple[str, dict[str, str]]](), list[dict]()
        self.feed(html)
        self.tags = [tag for tag, _ in self.elements]
        self.tokens = [attrs for tag, attrs in self.elements if tag == "span" and "title" in attrs]
        self.strip = unescape(re.sub("<[^>]*>", "", self.part(r'<div class="strip".*?</div>')))

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.lasttag not in ("script", "style"):
            self.text += data
        elif data.strip() and self.elements[-1][1].get("type") == "application/json":
            self.data.append(json.loads(data))

    def part(self, pattern: str) -> str:
        return re.search(pattern, self.html, re.DOTALL)[0]


@pytest.fixture
def page_of(tmp_path):

    def make(*traces: list[dict]) -> Page:
        return Page(render(read_traces(write_traces(tmp_path / "trace.jsonl", *traces))))

    return make


# --- traces


def test_what_cannot_be_seen_has_a_sign(tmp_path):
    (trace,) = read_traces(write_traces(tmp_path / "trace.jsonl", make_trace(text="a\n🐈 b\u202ec")))
    shown = [str(piece) for piece in token_texts(trace.tokens)]
    assert shown[1:3] == ['<span class="sign" data-sign="↵"></span>\n', '<span class="sign">⟨F0⟩</span>']
    assert shown[5].startswith("🐈")
    assert shown[6] == ' b<span class="sign" data-sign="⟨U+202E⟩"></span>c'
    assert [label(trace.tokens[step]) for step in (1, 2, 5, 6)] == ["↵", "⟨F0⟩", "⟨88⟩", " b⟨U+202E⟩c"]


def test_every_token_has_the_doubt_of_its_word(page_of):
    trace = make_trace(text="There is a bookshelves, and a dog.")
    for word, grounding in zip(trace[-1]["words"], (0.05, 0.05, 0.05, 0.3, 0.05, 0.05, 0.95), strict=True):
        word["grounding"] = grounding
    page = page_of(trace)
    marks = [attrs["class"].split()[1] for attrs in page.tokens]
    #       There   is      a       booksh ' elves  ,       and     a       dog    .       end
    assert marks == ["pale", "pale", "pale", "g2", "g2", "pale", "pale", "pale", "g0", "pale", "pale"]
    assert (page.data[0]["first"], page.data[0]["tokens"][4]["grounding"]) == (3, 0.3)
    beside = page.part(r'<div class="evidence">.*?</section>')
    assert re.findall(r"<bdi>(.*?)</bdi>", beside) == ["bookshelves", "dog"]  # the least grounded first


def test_what_a_second_look_does_not_support_is_marked(page_of):
    """Each mention, over all its tokens; the lowest support first."""
    text = "There is a dog, a bookshelf and a cat. The bookshelf is old."
    trace = looked_at(make_trace(text=text), 0.7, dog=0.7, bookshelf=0.25, cat=0.699)
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(trace[-1])
    page = page_of(trace)
    marked = [
        (token["text"], *attrs["class"].split("unsupported")[1].split())
        for token, attrs in zip(page.data[0]["tokens"], page.tokens, strict=True)
        if "unsupported" in attrs["class"]
    ]
    shelf = [(" books", "begins"), ("helf", "ends")]
    assert marked == [*shelf, (" cat", "begins", "ends"), *shelf]
    supported = [(token["text"], token["support"]) for token in page.data[0]["tokens"] if token.get("supported")]
    assert supported == [(" dog", 0.7)]
    section = page.part(r'<section class="things".*?</section>')
    assert re.findall(r"<bdi>(.*?)</bdi>", section) == ["bookshelf", "cat", "dog"]
    assert section.count("[not supported]") == 2


def test_the_data_hold_every_candidate_and_the_chosen_one(page_of):
    trace = make_trace(text="A cat.", top_k=3, tracked=("cat",), forced=True)
    trace[1]["top"] = [row for row in trace[1]["top"] if row["token_id"] != trace[1]["token_id"]]
    (data,) = page_of(trace).data
    for token, line in zip(data["tokens"], trace[1:-1], strict=True):
        assert {row[0] for row in token["rows"]} == {row["token"] for row in line["top"]} | {line["token"]}
        chosen = token["rows"][token["chosen"]]
        assert chosen[1::3] == [round(line[view]["logit"], 4) for view in ("full", "cf", "contrast")]
        assert chosen[3::3] == [line[view]["rank"] for view in ("full", "cf", "contrast")]
        assert token["tracked"][0][0] == "cat"


def test_nothing_is_fetched_and_only_our_style_and_script_run(page_of, photos):
    page = page_of(make_trace(photos["chelsea"]))
    (source,) = [value for _, attrs in page.elements for key, value in attrs.items() if key in ("src", "href")]
    assert source.startswith("data:image/webp;base64,")
    assert not re.search(r"https?://|@import|url\(", page.html)
    policy = next(attrs["content"] for _, attrs in page.elements if "http-equiv" in attrs)
    for kind in ("style", "script"):
        (source,) = re.findall(f"<{kind}>(.*?)</{kind}>", page.html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "style=" not in page.html
    assert "unsafe" not in policy


def test_hostile_text_stays_text(page_of):
    trace, plain = hostile(), page_of(make_trace(text="A cat."))
    trace[-1]["reasoning"] = HOSTILE
    page = page_of(trace)
    assert plain.strip == f"A cat.{END}"
    assert page.tags.count("script") == plain.tags.count("script")
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert HOSTILE in page.strip
    value = {"text": "</script><!-- & \u2028 \u2029 'é'"}
    assert not set("<>&\u2028\u2029") & set(to_script(value))
    assert json.loads(to_script(value)) == value


def shown(path: Path) -> Card:
    (trace,) = read_traces(path)
    return Card(trace, Scale.fitted_to([trace]))


def test_the_picture_beside_the_trace_in_the_current_folder_or_where_it_was(tmp_path, photos, monkeypatch):
    (tmp_path / "sub").mkdir()
    photo = shutil.copy(photos["astronaut"], tmp_path / "sub/photo.jpg")
    trace = write_traces(tmp_path / "trace.jsonl", make_trace(photo, folder=tmp_path, text="A."))
    card = shown(trace)
    ((uri, *size),) = card.images
    assert (card.name, card.note, size) == ("sub/photo.jpg", "", [512, 512])
    assert Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).size == (512, 512)
    Image.new("RGB", (3000, 1500), "teal").save(photo)  # it is replaced
    assert "was replaced or changed" in shown(trace).note
    assert [image[1:] for image in shown(trace).images] == [(640, 320)]
    photo.write_bytes(b"\x89PNG\r\n")
    assert "not a picture" in shown(trace).note
    line = make_trace(photos["rocket"], text="A.")
    assert shown(write_traces(trace, line)).note == ""
    line[0]["image"]["path"] = ""  # as from stdin
    assert not shown(write_traces(trace, line)).images
    monkeypatch.chdir(photos["rocket"].parent)
    assert shown(trace).images


@pytest.mark.parametrize("file_name", ["../../cat.png", "x" * 300, "a\0b", "", ".", "s3://bucket/cat.png"])
def test_a_missing_picture_has_a_place(page_of, tmp_path, file_name):
    """Also one in an object store: nothing is fetched."""
    page = page_of(make_trace(text="A.", file_name=file_name))
    assert "img" not in page.tags
    assert re.search(r"Picture missing\s+640 . 480", page.text)
    card = shown(tmp_path / "trace.jsonl")
    assert (card.name.isprintable(), "../" in card.name, "not found" in card.note) == (True, False, True)
    assert card.images == []


def test_the_command_writes_a_page_and_a_folder_stands_for_its_traces(sira, tmp_path):
    traces, page = tmp_path / "traces", tmp_path / "page.html"
    whole = make_trace(text="A cat.")
    for name, trace in {"b": whole, "a": failed("photo.jpg: no such file"), "sub/c": whole[:3]}.items():
        lines(traces / f"{name}.trace.jsonl", trace)
    code, out, err = sira("report", traces, traces / "b.trace.jsonl", "-o", page)
    assert (code, out, "page.html: 4 traces" in err) == (0, "", True)
    html = page.read_text(encoding="utf-8")
    assert re.findall(r"(\w).trace.jsonl, line 1", html) == ["a", "b", "c", "b"]
    assert all(text in html for text in ("photo.jpg: no such file", "after 2 tokens"))


# --- records


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
    assert (code, out, "captions.html: 3 records, 0." in " ".join(err.split())) == (0, "", True)
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
    assert (code, f"{command} tells which objects are to doubt" in err) == (0, True)
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
    assert (cat["only"], cat["other"]["only"], cat["other"]["unsure"]) == ([[7, 10]], [[7, 11]], ["bird 0.30"])
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


# --- in a real browser: what one sees, points at, types, corrects, saves, prints


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


def test_keys_walk_through_the_text_and_the_panel_follows(show, browser):
    trace = make_trace(tracked=("cat", "dog"))
    show(trace)
    browser.click(".strip .tok:nth-child(4)")
    for keys, step in {("Right",): 4, ("Right", "Right", "Left"): 5, ("Home",): 0, ("Left",): 0, ("End",): 89}.items():
        browser.press(*keys)
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
def test_hostile_text_does_nothing_in_a_browser(show, browser):
    trace = hostile()
    show(trace)
    for _ in range(len(trace) - 2):
        browser.click(".turn [data-turn='1']")
    assert not browser.alert()
    assert browser.run("return document.images.length") == 0
    assert HOSTILE in browser.text(".strip")
    assert browser.text(".groups caption") == HOSTILE


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
