"""`sira report`: the pages of traces say what these say and nothing else."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
import shutil
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
from PIL import Image

from sira_cli.analysis.page import render, to_script
from sira_cli.analysis.page.cards import Card, Scale, label, token_texts
from sira_cli.analysis.trace.read import read_traces
from tests.support.browser import AXE, texts, violations
from tests.support.eval.writing import lines
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


def test_the_picture_is_found_near_the_trace_or_where_it_was(tmp_path, photos, monkeypatch):
    (tmp_path / "sub").mkdir()
    photo = shutil.copy(photos["astronaut"], tmp_path / "sub/photo.jpg")
    trace = write_traces(tmp_path / "trace.jsonl", make_trace(photo, folder=tmp_path, text="A."))
    card = shown(trace)
    ((uri, *size),) = card.images
    assert card.name == "sub/photo.jpg"
    assert card.note == ""
    assert size == [512, 512]
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
    assert card.name.isprintable() is True
    assert "../" not in card.name
    assert "not found" in card.note
    assert card.images == []


def test_the_command_writes_a_page_and_a_folder_stands_for_its_traces(sira, tmp_path):
    traces, page = tmp_path / "traces", tmp_path / "page.html"
    whole = make_trace(text="A cat.")
    for name, trace in {"b": whole, "a": failed("photo.jpg: no such file"), "sub/c": whole[:3]}.items():
        lines(traces / f"{name}.trace.jsonl", trace)
    code, out, err = sira("report", traces, traces / "b.trace.jsonl", "-o", page)
    assert code == 0
    assert out == ""
    assert "page.html: 4 traces" in err
    html = page.read_text(encoding="utf-8")
    assert re.findall(r"(\w).trace.jsonl, line 1", html) == ["a", "b", "c", "b"]
    assert all(text in html for text in ("photo.jpg: no such file", "after 2 tokens"))


# --- in a real browser: what one sees, points at, types, corrects, saves, prints


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
