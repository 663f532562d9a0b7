"""`sira report` of traces: the page says what they say and nothing else."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
from PIL import Image

from sira_cli.analysis.page import render, to_script
from sira_cli.analysis.page.cards import Card, Scale, label, token_texts
from sira_cli.analysis.trace.read import read_traces
from tests.support.traces import CAPTION, END, HOSTILE, SCHEMA, failed, hostile, looked_at, make_trace, write_traces

VOID = ("img", "input", "meta", "path")


class Page(HTMLParser):
    """What of a page the tests look at: elements with their attributes, text by element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.strip, self.text = html, "", ""
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.data: list[dict] = []
        self._open: list[tuple[str, dict[str, str]]] = []
        self.feed(html)
        self.tokens = [attrs for tag, attrs in self.elements if tag == "span" and "title" in attrs]

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(self.elements[-1])

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self._open.pop()[0] == tag

    def handle_data(self, data):
        tag, attributes = self._open[-1] if self._open else ("", {})
        if tag == "script":
            if attributes.get("type") == "application/json":
                self.data.append(json.loads(data))
            return
        if tag != "style":
            self.text += data
        if any(attributes.get("class") == "strip" for _, attributes in self._open):
            self.strip += data

    def count(self, tag, name=None):
        return sum(found == tag and name in (None, *attrs.get("class", "").split()) for found, attrs in self.elements)

    def part(self, pattern: str) -> str:
        return re.search(pattern, self.html, re.DOTALL)[0]


@pytest.fixture
def page_of(tmp_path):

    def make(*traces: list[dict]) -> Page:
        return Page(render(read_traces(write_traces(tmp_path / "trace.jsonl", *traces))))

    return make


@pytest.fixture
def one() -> list[dict]:
    return make_trace(text="A cat.")


def test_what_cannot_be_seen_has_a_sign(tmp_path):
    def tokens_of(text: str) -> list:
        return read_traces(write_traces(tmp_path / "trace.jsonl", make_trace(text=text)))[0].tokens

    tokens = tokens_of("a\n🐈 b\u202ec")
    shown = [str(piece) for piece in token_texts(tokens)]
    assert shown[1:3] == ['<span class="sign" data-sign="↵"></span>\n', '<span class="sign">⟨F0⟩</span>']
    assert [label(token) for token in tokens[1:6]] == ["↵", "⟨F0⟩", "⟨9F⟩", "⟨90⟩", "⟨88⟩"]
    assert shown[5].startswith("🐈")
    assert shown[6] == ' b<span class="sign" data-sign="⟨U+202E⟩"></span>c'
    assert [label(tokens_of(text)[0]) for text in ("ab\u202ecd", "\0")] == ["ab⟨U+202E⟩cd", "␀"]


def test_every_token_has_the_doubt_of_its_word(page_of):
    trace = make_trace(text="There is a bookshelves, and a dog.")
    for word, grounding in zip(trace[-1]["words"], (0.05, 0.05, 0.05, 0.3, 0.05, 0.05, 0.95), strict=True):
        word["grounding"] = grounding
    page = page_of(trace)
    marks = [attrs["class"].split()[1] for attrs in page.tokens]
    #       There   is      a       booksh ' elves  ,       and     a       dog    .       end
    assert marks == ["pale", "pale", "pale", "g2", "g2", "pale", "pale", "pale", "g0", "pale", "pale"]
    assert (page.data[0]["first"], page.data[0]["tokens"][4]["grounding"]) == (3, 0.3)


def test_what_a_second_look_does_not_support_is_marked(page_of):
    """Each mention, over all its tokens; the lowest support first."""
    text = "There is a dog, a bookshelf and a cat. The bookshelf is old."
    trace = looked_at(make_trace(text=text), 0.7, dog=0.7, bookshelf=0.25, cat=0.699)
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(trace[-1])
    page = page_of(trace)
    marked = [
        f"{token['text']}: {' '.join(mark for mark in attrs['class'].split() if mark in ('begins', 'ends'))}"
        for token, attrs in zip(page.data[0]["tokens"], page.tokens, strict=True)
        if "unsupported" in attrs["class"]
    ]
    shelf = [" books: begins", "helf: ends"]
    assert marked == [*shelf, " cat: begins ends", *shelf]
    supported = [(token["text"], token["support"]) for token in page.data[0]["tokens"] if token.get("supported")]
    assert supported == [(" dog", 0.7)]
    section = page.part(r'<section class="things".*?</section>')
    assert "Objects not supported: 2 of 3" in section
    assert re.findall(r"<bdi>(.*?)</bdi>", section) == ["bookshelf", "cat", "dog"]
    assert re.findall(r"<td>([\d.]+)</td>", section) == ["0.25", "0.70", "0.70"]
    assert section.count("[not supported]") == 2


def test_the_words_to_doubt_stand_beside_the_picture(page_of):
    trace = make_trace(text="There is a cat, and a dog on a sofa.")
    for word in trace[-1]["words"]:
        word["grounding"] = {"cat,": 0.9, "dog": 0.104, "sofa.": 0.3999}.get(word["word"], 0.0)
    page = page_of(trace)
    evidence = page.part(r'<div class="evidence">.*?</section>')
    assert "Words to doubt: 2 of 3" in evidence
    assert re.findall(r"<bdi>(.*?)</bdi>", evidence) == ["dog", "sofa", "cat"]
    # A probability has no sign.
    assert re.findall(r'<td data-value="[^"]*">([^<]*)<svg', evidence) == ["0.10", "0.40", "0.90"]
    strip = page.part(r'<div class="strip".*?</div>')
    assert '</span> <span class="tok ' in strip
    # Colour begins where doubt does, as on a terminal and in the server's page.
    coloured = re.findall(r'<span class="tok [^"]*\bg[1-4]\b[^"]*"[^>]*>([^<]*)<', strip)
    assert [word.strip(" .,") for word in coloured] == ["dog", "sofa"]
    assert not re.search(r'<span class="tok [^>]*> ', strip)  # no coloured space at the end of a line


def test_one_trace_can_be_read_without_the_script(page_of):
    trace = make_trace(tracked=("cat", "dog"), file_name="../../photos/cat.png")
    trace[-1]["reasoning"] = "A <b>cat</b>?"
    page = page_of(trace)
    assert (page.count("article", "trace"), page.count("main", "one")) == (1, 1)
    for text in ("SIRA, K = 14 of 28", "Describe this image in detail.", "Qwen/Qwen2.5-VL-7B-Instruct",
                 "greedy, at most 512 tokens", "the model ended the text", "transformers 5.23.0", "not proof",
                 "Tracked words in the text", "cc594898137f460bfe9f0759e9844b3ce807cfb5", "A <b>cat</b>?",
                 "Trace of photos/cat.png"):  # fmt: skip
        assert text in page.text
    assert ".." not in page.text  # the way to a picture is not its name
    assert page.strip == CAPTION + END
    assert re.fullmatch(r"The: delta [+-]\d.*KL \d\.\d{3}", page.tokens[0]["title"])


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
    assert data["tokens"][0]["chosen"] == len(trace[1]["top"])


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


def test_hostile_text_stays_text(page_of, one):
    page, plain = page_of(hostile()), page_of(one)
    assert page.count("script") == plain.count("script")
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert HOSTILE in page.strip
    value = {"text": "</script><!-- & \u2028 \u2029 'é'"}
    assert not set("<>&\u2028\u2029") & set(to_script(value))
    assert json.loads(to_script(value)) == value


def test_several_traces_show_what_differs(page_of):
    page = page_of(make_trace(), make_trace(k=7, seed=1), failed("photo.jpg: no such file"), make_trace()[:9])
    assert (page.count("article"), page.count("main", "many")) == (4, 1)
    assert page.count("div", "differs") == 3  # K alone, of the three that have settings
    for text in ("4 traces of cat.png", "Failed.", "photo.jpg: no such file", "Interrupted.", "after 8 tokens"):
        assert text in page.text


def shown(path: Path) -> tuple[str, str, list]:
    """Name, note and images of the picture."""
    (trace,) = read_traces(path)
    card = Card(trace, Scale.fitted_to([trace]))
    return card.name, card.note, card.images


def test_the_picture_beside_the_trace_in_the_current_folder_or_where_it_was(tmp_path, photos, monkeypatch):
    (tmp_path / "sub").mkdir()
    photo = tmp_path / "sub" / "photo.jpg"
    photo.write_bytes(photos["astronaut"].read_bytes())
    trace = write_traces(tmp_path / "trace.jsonl", make_trace(photo, folder=tmp_path, text="A."))
    name, note, ((uri, *size),) = shown(trace)
    assert (name, note, size) == ("sub/photo.jpg", "", [512, 512])
    assert Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).size == (512, 512)
    photo.write_bytes(photos["rocket"].read_bytes())  # it is replaced
    assert "was replaced or changed" in shown(trace)[1]
    assert shown(trace)[2]
    Image.new("RGB", (3000, 1500), "teal").save(photo)
    assert [image[1:] for image in shown(trace)[2]] == [(640, 320)]
    photo.write_bytes(b"\x89PNG\r\n")
    assert "not a picture" in shown(trace)[1]
    line = make_trace(photos["rocket"], text="A.")
    assert shown(write_traces(trace, line))[1] == ""
    line[0]["image"]["path"] = ""  # as from stdin
    assert not shown(write_traces(trace, line))[2]
    monkeypatch.chdir(photos["rocket"].parent)
    assert shown(trace)[2]


@pytest.mark.parametrize("file_name", ["cat.png", "x" * 300, "a\0b", "", ".", "s3://bucket/cat.png"])
def test_a_missing_picture_has_a_place(page_of, tmp_path, file_name):
    """Also one in an object store: nothing is fetched."""
    page = page_of(make_trace(text="A.", file_name=file_name))
    assert page.count("img") == 0
    assert re.search(r"Picture missing\s+640 . 480", page.text)
    name, note, images = shown(tmp_path / "trace.jsonl")
    assert (name.isprintable(), "not found" in note, images) == (True, True, [])


def test_the_command_writes_a_page_and_a_folder_stands_for_its_traces(sira, tmp_path, one):
    traces, page = tmp_path / "traces", tmp_path / "page.html"
    (traces / "sub").mkdir(parents=True)
    for name in ("b.trace.jsonl", "a.trace.jsonl", "sub/c.trace.jsonl"):
        write_traces(traces / name, one)
    code, out, err = sira("report", traces, traces / "b.trace.jsonl", "-o", page)
    assert (code, out, "page.html: 4 traces" in err) == (0, "", True)
    html = page.read_text(encoding="utf-8")
    assert re.findall(r"(\w).trace.jsonl, line 1", html) == ["a", "b", "c", "b"]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["page.html"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("trace.jsonl", "-o", "trace.jsonl"), 2, "expected a file that ends in .html"),
        (("trace.jsonl", "-o", "."), 2, "is a folder, expected a file"),
        (("trace.jsonl", "-o", "no/page.html"), 2, "does not exist: make it first"),
        (("gone.jsonl", "-o", "page.html"), 1, "gone.jsonl: cannot be read: No such file"),
        (("bare", "-o", "page.html"), 1, "bare: holds no .jsonl files; `sira trace IMAGE --output-dir"),
        (("trace.jsonl", "empty.jsonl", "-o", "page.html"), 1, "empty.jsonl: is empty, expected a trace"),
    ],
)
def test_mistakes_on_the_command_line(sira, tmp_path, monkeypatch, one, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    trace = write_traces(tmp_path / "trace.jsonl", one)
    before = trace.read_bytes()
    Path("empty.jsonl").touch()
    Path("bare").mkdir()
    found, out, err = sira("report", *arguments)
    assert (found, out, message in err, trace.read_bytes() == before) == (code, "", True, True)
    assert not Path("page.html").exists()
