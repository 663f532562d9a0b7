"""Captions that exist already: found wherever they are, and written back in the form in which they came."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from sira_cli.errors import DataError, PictureError, SettingsError
from sira_cli.pictures.captions import find_captions
from tests.support.shards import content, write_tar


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


TWO = [("a.png", "A dog."), ("b.png", "A cat.")]


def test_text_files_beside_pictures(photos):
    captions = find_captions(photos)
    assert (texts(captions), captions.without) == ([("a.png", "A dog."), ("b.png", "")], 1)
    (photos / "c.caption").write_text("A cat.")
    captions = find_captions([photos], caption_extension="caption")
    assert (texts(captions), captions.without) == ([("c.png", "A cat.")], 2)
    assert texts(find_captions([photos / "a.png"])) == [("a.png", "A dog.")]
    for text in photos.glob("*.txt"):
        text.unlink()
    (photos / "metadata.jsonl").write_text(lines({"file_name": "c.png", "text": "A cat."}))  # of an `ImageFolder`
    captions = find_captions(photos)
    assert (texts(captions), captions.without) == ([("c.png", "A cat.")], 0)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("captions.jsonl", lines({"file_name": "a.png", "text": "A dog."}, {"file_name": "b.png", "text": "A cat."})),
        ("x.json", json.dumps([{"Image": "a.png", "caption": "A dog."}, {"Image": "b.png", "caption": "A cat."}])),
        ("x.csv", "image_path,id,Caption\r\na.png,1,A dog.\r\nb.png,2,A cat.\r\n"),
        ("x.tsv", "\ufeffdescription\tpath\nA dog.\ta.png\n\nA cat.\tb.png\n"),
        ("metadata.csv", "file_name,text,caption\na.png,A dog.,none\nb.png,A cat.,none\n"),
    ],
)
def test_files_of_captions(photos, name, content):
    (photos / name).write_text(content, encoding="utf-8")
    captions = find_captions(photos / name)
    assert texts(captions) == TWO
    assert all(picture.is_here() for picture in captions.pictures)


def test_columns_and_folders_that_are_given(photos, tmp_path):
    (tmp_path / "x.csv").write_text("pic,file_name,mine,text\na.png,n,A dog.,n\n")
    captions = find_captions(tmp_path / "x.csv", image_column="pic", text_column="mine", images=photos)
    assert texts(captions) == TWO[:1]


def test_records_of_sira(photos):
    """The newest of each picture counts, and one that failed has no caption."""
    start = {"schema": "sira.caption/1", "error": "", "key": "k"}
    rows = [("a.png", "error", ""), ("b.png", "ok", "A cat."), ("c.png", "error", ""), ("a.png", "ok", "A dog.")]
    records = ({**start, "file_name": name, "status": status, "text": text} for name, status, text in rows)
    (photos / "captions.jsonl").write_text(lines(*records))
    captions = find_captions(photos / "captions.jsonl")
    assert (texts(captions), captions.failed, captions.without) == (TWO, 1, 0)


def test_records_of_a_data_set_lead_to_its_pictures(photos):
    """By the names that records have; endings in capitals count, as in folders."""
    data = (photos / "a.png").read_bytes()
    write_tar(photos / "s.tar", [("0.PNG", data), ("1.JPG", b"x")])
    (photos / "t.csv").write_text("path\na.png\nb.png\n")
    names = ["s.tar/1.JPG", "s.tar/0.PNG", "t.csv/1", "s.tar/none.png", "c.png"]
    (photos / "said.jsonl").write_text(lines(*({"file_name": name, "text": "A dog."} for name in names)))
    found = find_captions(photos / "said.jsonl").pictures
    assert [picture.name_in(photos.resolve()) for picture in found] == names
    assert [content(found[number]) for number in (0, 1, 2)] == [b"x", data, (photos / "b.png").read_bytes()]
    assert found[3].is_here() is False


def test_several_captions_of_a_picture_and_rows_without_any(photos):
    (photos / "x.csv").write_text("image,text\na.png,one\nb.png,two\na.png,three\na.png,four\n")
    captions = find_captions(photos / "x.csv")
    assert texts(captions) == [("a.png", "one"), ("b.png", "two"), ("a.png#2", "three"), ("a.png#3", "four")]
    assert len({picture.identity for picture in captions.pictures}) == 4
    assert all(content(picture).startswith(b"\x89PNG") for picture in captions.pictures)
    rows = {"image": "a.png", "text": None}, {"image": "b.png"}, {"image": "c.png", "text": ""}
    (photos / "x.jsonl").write_text(lines(*rows))
    captions = find_captions(photos / "x.jsonl")
    assert (texts(captions), captions.without) == ([("c.png", "")], 2)


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("x.csv", "image,words\na.png,x\n", {}, r"x\.csv: expected a column text, .*found image, words.*`text_column="),
        ("x.csv", "image,text\na.png,x\n", {"text_column": "no"}, "no column 'no' .*but image, text"),
        ("x.csv", "image,text\na.png,x,y\n", {}, "row 2 has 3 cells, expected 2"),
        ("x.csv", "image,text,text\na.png,x,y\n", {}, "two columns have the same name"),
        ("x.csv", "image,text\n", {}, "holds no captions"),
        ("x.jsonl", '{"image": "a.png", "text": "x"}\n{"image', {}, "line 2 is not JSON"),
        ("x.jsonl", '{"image": "a.png", "text": ["x"]}', {}, "line 1: text is not text"),
        ("x.jsonl", '{"image": "", "text": "x"}', {}, "line 1: image is ''"),
        ("x.jsonl", '{"image": "a.png", "text": null}', {}, "holds no captions"),
        ("x.jsonl", '["x"]', {}, "row 1: expected a JSON object"),
    ],
)
def test_bad_files_are_named_with_what_is_wrong(photos, name, content, options, message):
    (photos / name).write_text(content)
    with pytest.raises(DataError, match=message):
        find_captions(photos / name, **options)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_decides_the_encoding(photos, encoding):
    (photos / "a.txt").write_bytes("Ein Café, schön.\n".encode(encoding))
    (photos / "x.csv").write_bytes("image;text\na.png;Ein Café, schön.\n".encode(encoding))
    for path in (photos / "a.png", photos / "x.csv"):
        assert texts(find_captions(path)) == [("a.png", "Ein Café, schön.")]


@pytest.mark.parametrize("data", ["Ein Café.".encode("cp1252"), "犬がいる".encode("shift-jis"), b"\xff\xfeA"])
def test_other_encodings_are_refused_by_name(photos, data):
    (photos / "a.txt").write_bytes(data)
    (photos / "x.csv").write_bytes(data if data.startswith(b"\xff") else b"image,text\na.png," + data)
    refused = r"is not UTF-8 text: save it as UTF-8 \(in a spreadsheet"
    with pytest.raises(DataError, match=rf"x\.csv: {refused}"):
        find_captions(photos / "x.csv")
    captions = find_captions(photos)  # an error of that picture only
    assert texts(captions) == [("a.png", ""), ("b.png", "")]
    with pytest.raises(PictureError, match=rf"a\.txt: {refused}"):
        captions.pictures[0].read()
    assert captions.pictures[1].open().image.size == (32, 32)
    assert (photos / "a.txt").read_bytes() == data


def test_paths_that_are_neither(photos, tmp_path):
    (tmp_path / "notes.md").write_text("A dog.")
    with pytest.raises(SettingsError, match=r"notes\.md: is neither a picture nor a file of captions \(\.jsonl, "):
        find_captions(tmp_path / "notes.md")
    with pytest.raises(DataError, match=r"none\.csv: no such file of captions"):
        find_captions(tmp_path / "none.csv")
    for missing in ("none", "none.txt", "none.tar", "none.parquet", "none.png"):
        with pytest.raises(PictureError, match=rf"{missing}: no such file$"):
            find_captions(tmp_path / missing)
    with pytest.raises(SettingsError, match="stdin"):
        find_captions("-")
    with pytest.raises(DataError, match=r"none of 3 pictures has a \.cap file next to it"):
        find_captions(photos, caption_extension=".cap")
    (tmp_path / "x.csv").write_text("image,text\nnone.png,x\nalso-none.png,y\n")
    with pytest.raises(PictureError, match=r"none\.png: no such file, nor any of the other 1; names .*`images=`"):
        find_captions(tmp_path / "x.csv")
