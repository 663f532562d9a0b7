"""Texts of pictures: captions that exist already, files of questions, prompts filled from columns and text files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from sira_cli import DataError, PictureError, SettingsError, load, run_pictures
from sira_cli.pictures import picture
from sira_cli.pictures.captions import find_captions
from sira_cli.pictures.find import find_pictures
from sira_cli.pictures.selection import listed_pictures, needs_columns
from sira_cli.pictures.sources import FileSource
from sira_cli.run.events import Finished
from tests.support.helpers import under
from tests.support.shards import EXAMPLES, content, drawn, write_tar

# --- captions that exist already


@pytest.fixture
def photos(tmp_path):
    """Three pictures, of which the first two have a text file."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a", "b", "c"):
        Image.new("RGB", (32, 32)).save(folder / f"{name}.png")
    (folder / "a.txt").write_text("\ufeffA dog.\n", encoding="utf-8")
    (folder / "b.txt").write_text("\n")
    return folder


def texts(captions):
    return [(picture.name_in(None).rpartition("/")[2], picture.caption) for picture in captions.pictures]


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_text_files_beside_pictures(photos):
    captions = find_captions(photos)
    assert (texts(captions), captions.without) == ([("a.png", "A dog."), ("b.png", "")], 1)
    assert texts(find_captions(photos, limit=1)) == [("a.png", "A dog.")]
    (photos / "c.caption").write_text("A cat.")
    captions = find_captions([photos], caption_extension="caption")
    assert (texts(captions), captions.without) == ([("c.png", "A cat.")], 2)
    for text in photos.glob("*.txt"):
        text.unlink()
    (photos / "metadata.jsonl").write_text(lines({"file_name": "c.png", "text": "A cat."}))  # of an `ImageFolder`
    assert texts(find_captions(photos)) == [("c.png", "A cat.")]


TWO = [("a.png", "A dog."), ("b.png", "A cat.")]
OWN = {"image_column": "pic", "text_column": "mine"}
RECORDS = [
    {"schema": "sira.caption/1", "file_name": f"{name}.png", "status": "ok" if text else "error", "text": text}
    for name, text in (("a", ""), ("b", "A cat."), ("c", ""), ("a", "A dog."))
]
ROWS = [{"image": f"{name}.png", "text": text} for name, text in (("a", "1"), ("b", None), ("a", "2"), ("c", ""))]


@pytest.mark.parametrize(
    ("name", "content", "given", "expected", "without"),
    [
        ("x.jsonl", lines(*({"file_name": name, "text": text} for name, text in TWO)), {}, TWO, 0),
        ("x.json", json.dumps([{"Image": name, "caption": text} for name, text in TWO]), {}, TWO, 0),
        ("x.csv", "image_path,id,Caption\r\na.png,1,A dog.\r\nb.png,2,A cat.\r\n", {}, TWO, 0),
        ("x.tsv", "\ufeffdescription\tpath\nA dog.\ta.png\n\nA cat.\tb.png\n", {}, TWO, 0),
        ("metadata.csv", "file_name,text,caption\na.png,A dog.,none\nb.png,A cat.,none\n", {}, TWO, 0),
        ("../x.csv", "pic,file_name,mine,text\na.png,n,A dog.,n\nb.png,n,A cat.,n\n", OWN, TWO, 0),
        # The newest record of each picture counts, and one that failed has no caption.
        ("captions.jsonl", lines(*RECORDS), {}, TWO, 0),
        ("x.jsonl", lines(*ROWS, {"image": "b.png"}), {}, [("a.png", "1"), ("a.png#2", "2"), ("c.png", "")], 2),
    ],
)
def test_files_of_captions(photos, name, content, given, expected, without):
    (photos / name).write_text(content, encoding="utf-8")
    captions = find_captions(photos / name, images=photos if given else None, **given)
    assert (texts(captions), captions.without) == (expected, without)
    assert captions.failed == (name == "captions.jsonl")
    assert len({picture.identity for picture in captions.pictures}) == len(expected)
    assert all(picture.open().image.size == (32, 32) for picture in captions.pictures)


def test_records_of_a_data_set_lead_to_its_pictures(photos):
    """By the names that records have; endings in capitals count, as in folders."""
    data = (photos / "a.png").read_bytes()
    write_tar(photos / "s.tar", [("0.PNG", data), ("1.JPG", b"x")])
    (photos / "t.csv").write_text("path\na.png\nb.png\n")
    names = ["s.tar/1.JPG", "s.tar/0.PNG", "t.csv/3", "s.tar/none.png"]
    (photos / "x.jsonl").write_text(lines(*({"file_name": name, "text": "A dog."} for name in names)))
    *found, missing = find_captions(photos / "x.jsonl").pictures
    assert [picture.name_in(photos.resolve()) for picture in found] == names[:3]
    assert [content(each) for each in found] == [b"x", data, (photos / "b.png").read_bytes()]
    assert missing.is_here() is False


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("x.csv", "image,words\na.png,x\n", {}, r"x\.csv: expected a column text, .*found image, words.*`text_column="),
        ("x.csv", "image,text\na.png,x\n", {"text_column": "no"}, "no column 'no' .*but image, text"),
        ("x.csv", "image,text,text\na.png,x,y\n", {}, "two columns have the same name"),
        ("x.csv", "image,text\n", {}, "holds no captions"),
        ("x.jsonl", '{"image": "a.png", "text": ["x"]}', {}, "line 1: text is not text"),
        ("x.jsonl", '{"image": "", "text": "x"}', {}, "line 1: image is ''"),
        ("x.jsonl", '["x"]', {}, "row 1: expected a JSON object"),
        ("x.csv", "image,text\nno.png,x\n2.png,y\n", {}, r"no\.png: no such file, nor any of the other 1; .*`images="),
        ("notes.md", "A dog.", {}, r"notes\.md: is neither a picture nor a file of captions \(\.jsonl, "),
        ("none.csv", None, {}, r"none\.csv: no such file of captions"),
        *((f"none{end}", None, {}, rf"none{end}: no such file$") for end in (".txt", ".tar")),
        (".", None, {"caption_extension": ".cap"}, r"none of 3 pictures has a \.cap file next to it"),
        ("-", None, {}, "stdin"),
    ],
)
def test_what_has_no_captions_is_refused_with_what_is_wrong(photos, monkeypatch, name, content, options, message):
    monkeypatch.chdir(photos)
    if content is not None:
        Path(name).write_text(content, encoding="utf-8")
    with pytest.raises((DataError, PictureError, SettingsError), match=message):
        find_captions(name, **options)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_decides_the_encoding(photos, encoding):
    (photos / "a.txt").write_bytes("Ein Café, schön.\n".encode(encoding))
    (photos / "x.csv").write_bytes("image;text\na.png;Ein Café, schön.\n".encode(encoding))
    for path in (photos / "a.png", photos / "x.csv"):
        assert texts(find_captions(path)) == [("a.png", "Ein Café, schön.")]


@pytest.mark.parametrize("data", ["Ein Café.".encode("cp1252"), b"\xff\xfeA"])
def test_other_encodings_are_refused_by_name(photos, data):
    (photos / "a.txt").write_bytes(data)
    (photos / "x.csv").write_bytes(data if data.startswith(b"\xff") else b"image,text\na.png," + data)
    refused = r"is not UTF-8 text: save it as UTF-8 \(in a spreadsheet"
    with pytest.raises(DataError, match=rf"x\.csv: (line 2: )?{refused}"):
        find_captions(photos / "x.csv")
    first, second = find_captions(photos).pictures  # an error of that picture only
    with pytest.raises(PictureError, match=rf"a\.txt: {refused}"):
        first.read()
    assert second.open().image.size == (32, 32)


# --- questions about each picture

QUESTIONS = [
    {"question_id": number * 3 + index, "image": f"{number}.png", "text": f"Is there a {thing}?", "category": "conv"}
    for number in range(3)
    for index, thing in enumerate(("dog", "tree", "car"))
]


@pytest.fixture(scope="module")
def lvlm(demo):
    return under(demo, max_new_tokens=4)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, with two pictures and what is none in photos/, q.jsonl about them, and a.tar."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for number in range(2):
        shutil.copy(EXAMPLES[number], tmp_path / f"photos/{number}.png")
    (tmp_path / "photos/2.png").write_text("no picture")
    write("q.jsonl", QUESTIONS)
    write_tar(tmp_path / "a.tar", drawn(3))
    return tmp_path


def write(name: str, rows: list[dict]) -> None:
    Path(name).write_text(lines(*rows) + "\n", encoding="utf-8")


def read(name: str) -> list[dict]:
    return [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]


def run(lvlm, paths: str | list[str], prompt: str, output: str = "captions.jsonl", **options) -> list[dict]:
    list(run_pictures(lvlm, paths, prompt=prompt, output=output, **options))
    return read(output)


def test_answers_are_those_of_single_questions(sira, folder, monkeypatch):
    reads, once = [], FileSource.read
    monkeypatch.setattr(FileSource, "read", lambda picture: reads.append(picture.location) or once(picture))
    monkeypatch.setattr("sira_cli.cli.loading.note_bundled", lambda *rest: None)  # it reads them, too
    code, _, err = sira("ask", "photos", "--questions", "q.jsonl", "-p", "demo", "-o", "answers.jsonl", "-b", 4)
    assert code == 3
    assert "6 of 9 pictures done" in err
    records = read("answers.jsonl")
    assert [(record["id"], record["file_name"], record["prompt"]) for record in records] == [
        (str(row["question_id"]), f"photos/{row['image']}", row["text"]) for row in QUESTIONS
    ]
    assert sorted(reads) == [f"photos/{number}.png" for number in range(3)]  # each once
    lvlm = load("demo")
    for record in records[:6]:
        assert record["text"] == lvlm.ask(record["file_name"], record["prompt"]).text
    assert all(record["error"].startswith("photos/2.png: is not a picture") for record in records[6:])


@pytest.mark.parametrize(("method", "batch_size", "passes"), [("sira", 4, 1), ("vcd", 1, 2)])
def test_pictures_are_decoded_and_encoded_once(folder, monkeypatch, method, batch_size, passes):
    """The second pass of vcd looks at a picture with noise."""
    write("q.jsonl", [row | {"text": f"Describe the {row['text'][11:-1]}."} for row in QUESTIONS])
    samples, pictures, decode = [], [], picture.decode_picture
    monkeypatch.setattr(picture, "decode_picture", lambda name, data: samples.append(name) or decode(name, data))
    lvlm = load("demo", method=method, max_new_tokens=6)
    hook = lvlm.model.get_encoder(modality="image").register_forward_hook
    with hook(lambda module, args, output: pictures.append(len(output[0]))):
        events = list(run_pictures(lvlm, "photos", questions="q.jsonl", output="a.jsonl", batch_size=batch_size))
    assert (sorted(samples), pictures) == (["photos/0.png", "photos/1.png"], [1] * (2 * passes))
    records = [event.record for event in events if isinstance(event, Finished)]
    done = {(record.file_name, record.prompt): record.text for record in records}
    assert done == {asked: lvlm.ask(*asked).text for asked in done}
    assert len(set(done.values())) > 1


def test_a_changed_question_alone_is_asked_again(folder, lvlm):
    list(run_pictures(lvlm, "photos", questions="q.jsonl", output="answers.jsonl"))
    write("q.jsonl", [row | ({"text": "What is there?"} if row["question_id"] == 4 else {}) for row in QUESTIONS])
    events = list(run_pictures(lvlm, "photos", questions="q.jsonl", output="answers.jsonl"))
    assert [event.id for event in events[1:] if type(event).__name__ != "Skipped"] == ["4"]
    assert [record["id"] for record in read("answers.jsonl")] == [str(number) for number in range(9)]


def test_plain_questions_in_a_table_and_numbers_with_empty_cells(folder):
    plain = [{"image": row["image"], "question": row["text"]} for row in QUESTIONS]
    write("p.jsonl", plain)
    parquet.write_table(pyarrow.Table.from_pylist(plain), "p.parquet")
    for kind in ("jsonl", "parquet"):
        found = listed_pictures(Path(f"p.{kind}"), str, folder="photos")
        expected = [(row["text"], f"photos/{row['image']}", f"{row['image']}: {row['text']}") for row in QUESTIONS]
        assert [(each.asked(""), each.location, each.id) for each in found] == expected
    ids = pyarrow.array([7.0, None, float("nan")])  # as pandas writes them
    parquet.write_table(pyarrow.table({"id": ids, "image": ["a"] * 3, "question": ["?", "!", "."]}), "ids.parquet")
    assert [each.id for each in listed_pictures(Path("ids.parquet"), str)] == ["7", "a: !", "a: ."]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("bad.jsonl", '{"image": "0.png"}', "line 1: expected text or question, found image"),
        ("bad.jsonl", "{?", "line 1 is not JSON"),
        ("bad.jsonl", "", "holds no questions"),
        ("bad.jsonl", '{"id": [1], "image": "a", "text": "?"}', "line 1: id is [1]: expected a text or a whole number"),
        ("bad.jsonl", '{"id": 1, "image": "a", "text": "?"}\n' * 2, "line 2: the question '1' stands twice: give each"),
        ("bad.csv", "image,question\n0.png,A dog, or a cat?\n", "line 2: has 3 cells, expected 2 (image, question): a"),
        ("bad.csv", 'image,question\n0.png,"A dog?\n1.png,A cat?\n', "line 2: is not a table: unexpected end of data"),
        ("bad.jsonl", "\0", "is not a text file: it has NUL bytes"),
    ],
)
def test_what_is_wrong_with_a_file_of_questions(folder, name, content, expected):
    Path(name).write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        listed_pictures(Path(name), str)
    assert str(caught.value).startswith(f"{name}: ")
    assert expected in str(caught.value)


# --- prompts with `{names}`


def test_members_of_a_shard(lvlm, folder):
    records = run(lvlm, "a.tar", "Number {number}, {txt}: {tags}?", batch_size=2)
    assert [record["prompt"] for record in records] == [
        f"Number {number}, scene {number}: dog, tree?" for number in range(3)
    ]
    for number, record in enumerate(records):
        alone = lvlm.caption(EXAMPLES[number], prompt=record["prompt"])
        assert (record["text"], record["prompt_tokens"]) == (alone.text, alone.prompt_tokens)
    with pytest.raises(SettingsError, match="prompt"):  # the file is of another prompt
        run(lvlm, "a.tar", "Number {number}")


def test_a_column_that_is_missing(lvlm, folder):
    """For all pictures it is said before anything is decoded; for one, it is its error."""
    with pytest.raises(SettingsError) as caught:
        run(lvlm, "a.tar", "Tags: {tag}")
    assert str(caught.value) == "the prompt holds {tag}, but a.tar/000000.png has only the columns tags, number, txt"
    assert not Path("captions.jsonl").exists()
    members = [member for member in drawn(3) if member[0] != "000001.json"]
    write_tar(folder / "b.tar", [(name, b"[1]" if name == "000002.json" else data) for name, data in members])
    assert [record["error"] for record in run(lvlm, "b.tar", "Tags: {tags}")] == [
        "",
        "b.tar/000001.png: the prompt holds {tags}, but its columns are txt",
        "b.tar/000002.png: its .json is not a JSON object: 'list' object is not a mapping",
    ]
    placeholder = lvlm.processor.image_token
    write_tar(folder / "c.tar", [("0.png", EXAMPLES[0].read_bytes()), ("0.txt", placeholder.encode())])
    (record,) = run(lvlm, "c.tar", "Not {txt}", "placeholders.jsonl")
    assert record["error"] == f"c.tar/0.png: the prompt holds {placeholder}, this model's placeholder; leave it out"


def test_files_beside_a_picture(lvlm, folder):
    Path("photos/2.png").unlink()
    prompt = 'Known: {txt}. Answer as {"a": 1} or {}.'
    assert {record["prompt"] for record in run(lvlm, "photos", prompt)} == {prompt}  # nothing is: braces are braces
    Path("photos/0.txt").write_text("tags\n", encoding="utf-8")
    assert not needs_columns("Answer as {answer}.", find_pictures(["photos"]))
    found = [(record["prompt"], record["error"]) for record in run(lvlm, "photos", prompt, "texts.jsonl")]
    error = "photos/1.png: the prompt holds {txt}, but its columns are none"
    assert found == [('Known: tags. Answer as {"a": 1} or {}.', ""), (prompt, error)]
