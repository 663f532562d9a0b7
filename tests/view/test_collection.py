"""Where captions come from, what is compared, and what is exported."""

from __future__ import annotations

import io
import json
import shutil
import tarfile

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from sira_cli.analysis.compare import compare
from sira_cli.data.captions.find import find_captions
from sira_cli.data.records.tables import write_table
from sira_cli.errors import DataError, PictureError, SettingsError
from sira_cli.pictures.find import find_pictures
from sira_cli.pictures.opening import decode_picture, small_picture
from sira_cli.view import Collection, Edits, OtherCaptions, export
from sira_cli.view.thumbnails import Thumbnails
from tests.support.clips import drawn, write_clip
from tests.view.conftest import COLOURS, HOSTILE, looked_at, record, write


def texts(captions: Collection) -> dict[str, str]:
    return {item.id: item.text for item in captions.items}


def test_records(folder):
    rows = [looked_at(0, cat=0.9, dog=0.2), record(1, status="error", text="", error="no such file"), record(2)]
    rows[2]["warnings"] = ["is tiny: 4 x 4 pixels"]
    captions = Collection.read(write(folder / "captions.jsonl", rows))
    first, failed, last = captions.items
    assert (first.support, [(thing.thing, thing.low) for thing in first.things]) == (
        0.2,
        [("dog", True), ("cat", False)],
    )
    assert first.text[slice(*first.things[0].spans[0])] == "dog"
    assert (failed.text, failed.error, failed.support) == ("", "no such file", None)
    assert last.warnings == ["is tiny: 4 x 4 pixels"]
    assert captions.missing == frozenset()


def test_broken_lines_are_counted_and_the_rest_is_read(folder):
    path = write(folder / "captions.jsonl", [record(0), record(1)])
    good = path.read_bytes()
    bad = [b"{", b"[]", b"null", b'{"text": "no picture"}', b'{"file_name": 7, "text": "x"}', b"\xff\xfe"]
    bad += [b'{"file_name": "a.png", "text": ["x"]}', b'{"file_name": "a\\u0000b", "text": "x"}']
    bad += [b'{"file_name": "a.png", "text": "\\ud800"}', b'{"file_name": "pictures/2.png", "tex']
    path.write_bytes(b"\n".join(bad[:5]) + b"\n\n" + good + b"\n".join(bad[5:]))
    captions = Collection.read(path)
    assert captions.broken == len(bad)
    assert texts(captions) == {f"pictures/{n}.png": f"A cat and a dog, number {n}." for n in range(2)}
    path.write_bytes(b"\n".join(bad))
    with pytest.raises(DataError, match="10 broken lines"):
        Collection.read(path)


def test_odd_things_in_records_are_left_out(folder):
    objects = [None, {"thing": "cat"}, {"thing": "cat", "spans": [[2, 500]], "support": 0.1}, 7]
    objects += [{"thing": "cat", "spans": [[2, 5]], "support": float("nan")}]
    objects += [{"thing": "dog", "spans": [[12, 15]], "support": 0.3}]
    rows = [record(0, objects=objects, verify=None, warnings="none"), record(1, objects={"a": 1}, verify=[1])]
    captions = Collection.read(write(folder / "captions.jsonl", rows))
    assert [thing.thing for thing in captions.items[0].things] == ["dog"]
    assert (captions.items[0].warnings, captions.items[1].things) == ([], [])


def test_of_records_about_a_picture_the_newest_counts_and_methods_stand_apart(folder):
    rows = [record(0, text="Old."), record(1), record(0, text="New."), record(0, text="Greedy.", method="greedy")]
    captions = Collection.read(write(folder / "captions.jsonl", rows))
    assert texts(captions) == {
        "pictures/0.png#sira": "New.",
        "pictures/1.png": rows[1]["text"],
        "pictures/0.png#greedy": "Greedy.",
    }
    others = [{"image": "pictures/0.png", "caption": text} for text in ("One.", "Two.")]
    captions = Collection.read(write(folder / "others.jsonl", others))
    assert texts(captions) == {"pictures/0.png": "One.", "pictures/0.png#2": "Two."}


def test_folders(folder):
    place = folder / "pictures"
    (place / "0.txt").write_text("\ufeffOne.\n", encoding="utf-8")
    assert texts(Collection.read(place)) == {"0.png": "One.", "1.png": "", "2.png": ""}
    (place / "0.txt").unlink()
    write(place / "metadata.jsonl", [{"file_name": "1.png", "text": "Of the metadata."}])
    assert texts(Collection.read(place)) == {"1.png": "Of the metadata."}
    (place / "metadata.jsonl").unlink()
    assert texts(Collection.read(place)) == {"0.png": "", "1.png": "", "2.png": ""}  # texts can be written for them


def test_a_folder_of_records_is_read_without_its_log_and_its_failures(folder):
    write(folder / "one.jsonl", [record(0)])
    write(folder / "two.jsonl", [record(1)])
    write(folder / "two.errors.jsonl", [record(2, status="error", text="", error="no such file")])
    captions = Collection.read(folder)
    Edits(captions.edits_file).change(captions.items[0], seen=0, text="Mended.")
    again = Collection.read(folder)
    assert (again.broken, texts(again)) == (0, {item.id: item.text for item in captions.items})
    assert [item.id for item in again.items] == ["pictures/0.png", "pictures/1.png"]


def test_pictures_inside_of_shards(folder):
    with tarfile.open(folder / "shard.tar", "w") as tar:
        for number in range(3):
            tar.add(folder / f"pictures/{number}.png", f"{number}.png")
            (folder / "text").write_text(f"Inside {number}.")
            tar.add(folder / "text", f"{number}.txt")
    (folder / "out").mkdir()
    rows = [record(number, file_name=f"../shard.tar/{number}.png") for number in range(3)]
    captions = Collection.read(write(folder / "out/shard.jsonl", rows))
    assert captions.missing == frozenset()
    expected = [(folder / f"pictures/{number}.png").read_bytes() for number in range(3)]
    assert [item.picture.read() for item in captions.items] == expected
    assert [item.text for item in Collection.read(folder / "out").items] == [row["text"] for row in rows]
    assert [item.text for item in Collection.read(folder / "shard.tar").items] == [f"Inside {n}." for n in range(3)]


def test_tables_with_pictures_inside(folder):
    images = [{"bytes": (folder / f"pictures/{number}.png").read_bytes(), "path": None} for number in range(3)]
    table = pyarrow.table({"image": images, "caption": ["One.", None, "Three."], "id": [1, 2, 3]})
    pyarrow.parquet.write_table(table, folder / "data.parquet")
    captions = Collection.read(folder / "data.parquet")
    assert [item.text for item in captions.items] == ["One.", "", "Three."]
    assert [item.picture.read() for item in captions.items] == [image["bytes"] for image in images]


def test_a_table_of_records_is_what_its_records_are(folder):
    found = [looked_at(0, 0.2, 0.9), record(1, status="failed", text="", error="boom"), record(2, warnings=["is tiny"])]
    records = write(folder / "captions.jsonl", found)
    write_table(
        records.read_bytes().splitlines(keepends=True), folder / "table.parquet", {"objects", "verify", "warnings"}
    )
    lines, table = Collection.read(records), Collection.read(folder / "table.parquet")
    for one, other in zip(lines.items, table.items, strict=True):
        for name in ("id", "name", "text", "error", "method", "warnings", "things", "image_column", "text_column"):
            assert getattr(one, name) == getattr(other, name)
        assert one.picture.read() == other.picture.read()
    exported = folder / "mended.jsonl"
    edits = Edits(table.edits_file)
    edits.change(table.items[2], seen=0, text="A horse.")
    export(table, edits, exported)
    rows = [json.loads(line) for line in exported.read_text().splitlines()]
    assert [(row["file_name"], row["text"]) for row in rows] == [
        *((row["file_name"], row["text"]) for row in found[:2]),
        ("pictures/2.png", "A horse."),
    ]
    assert rows[0]["objects"] == found[0]["objects"]


@pytest.mark.parametrize("lines_too", [False, True])
def test_a_table_of_records_in_a_folder_is_no_data_set(folder, lines_too):
    """Next to the lines that it was made from only these count; a table of other data is one of pictures."""
    lines = write(folder / "captions.jsonl", [record(number) for number in range(3)])
    write_table(lines.read_bytes().splitlines(keepends=True), folder / "captions.parquet", set())
    if lines_too:
        write(lines, [record(number) for number in range(2)])
    else:
        lines.unlink()
    shown = [item.name for item in Collection.read(folder).items]
    assert shown == [f"pictures/{number}.png" for number in range(2 if lines_too else 3)]
    for find in (find_captions, lambda path: find_pictures([str(path)])):
        with pytest.raises(SettingsError, match=r"no pictures, but records of sira: give .*captions\.parquet itself"):
            find(folder)
        assert len(getattr(found := find(folder / "captions.parquet"), "pictures", found)) == 3
    pyarrow.parquet.write_table(pyarrow.table({"file_name": ["pictures/1.png"]}), folder / "data.parquet")
    assert [picture.relative for picture in find_pictures([str(folder)])] == ["data.parquet/0"]


def test_records_of_shards_elsewhere_are_found_from_the_folder_that_is_given(folder):
    with tarfile.open(folder / "shard.tar", "w") as tar:
        tar.add(folder / "pictures/0.png", "0.png")
    (folder / "out").mkdir()
    records = write(folder / "out/shard.jsonl", [record(0, file_name="shard.tar/0.png")])
    assert Collection.read(records).missing == {0}
    captions = Collection.read(records, images=folder)
    assert captions.missing == frozenset()
    assert captions.items[0].picture.read() == (folder / "pictures/0.png").read_bytes()


@pytest.mark.parametrize("name", ["nothing.jsonl", "pictures/0.png", "empty"])
def test_what_holds_no_captions(folder, name):
    (folder / "empty").mkdir()
    with pytest.raises(SettingsError):
        Collection.read(folder / name)


# --- pictures


def test_small_pictures_are_those_of_the_usual_way_made_small(photos):
    data = photos["astronaut"].read_bytes()
    small = small_picture("a", data, 100)
    whole, _ = decode_picture("a", data)
    whole.thumbnail((100, 100))
    assert small.size == whole.size == (100, 100)
    difference = np.abs(np.asarray(small, float) - np.asarray(whole, float))
    assert difference.mean() < 2
    with pytest.raises(PictureError, match="a: is not a picture"):
        small_picture("a", b"no picture", 100)


# --- comparing


def test_differences_are_those_of_sira_compare(folder):
    rows = [record(number) for number in range(3)]
    keys = ("prompt", "preset", "model", "revision", "k", "layers", "alpha", "max_new_tokens", "temperature", "seed")
    rows = [row | dict.fromkeys(keys, "") | {"finish_reason": "stop"} for row in rows]
    other = [row | {"text": row["text"].replace("a dog", "two birds")} for row in rows[:2]]
    a, b = write(folder / "a.jsonl", rows), write(folder / "b.jsonl", other)
    compared = OtherCaptions(Collection.read(a), Collection.read(b))
    assert compared.pairs == 2
    assert compared.partner(2) is None
    assert compared.stretches(2, "x") == []
    for number, pair in enumerate(compare(b, a).pairs):
        assert compared.stretches(number, rows[number]["text"]) == pair.stretches


def test_pictures_are_found_by_name_path_or_content(folder):
    (folder / "runs").mkdir()
    rows = [record(number) for number in range(3)]
    a = Collection.read(write(folder / "a.jsonl", rows))
    paths = [row | {"file_name": f"../{row['file_name']}"} for row in rows]
    assert OtherCaptions(a, Collection.read(write(folder / "runs/b.jsonl", paths))).pairs == 3
    shutil.copytree(folder / "pictures", folder / "moved")
    moved = [row | {"file_name": f"moved/new-{number}.png"} for number, row in enumerate(rows)]
    assert OtherCaptions(a, Collection.read(write(folder / "c.jsonl", moved))).pairs == 3
    others = [row | {"file_name": f"x{row['file_name']}", "image_sha256": "f" * 64} for row in rows]
    with pytest.raises(DataError, match="no picture in common"):
        OtherCaptions(a, Collection.read(write(folder / "d.jsonl", others)))


# --- exporting


def test_an_export_is_the_original_with_the_edits(folder):
    """Lines that nobody changed are the same bytes, whatever is in them."""
    rows = [looked_at(number, cat=0.9, dog=0.2) | {"own": HOSTILE} for number in range(3)]
    path = folder / "captions.jsonl"
    odd = [json.dumps(row, indent=None, separators=(" , ", ":  ")) for row in rows]
    path.write_text("\n".join(odd), encoding="utf-8")
    captions = Collection.read(path)
    edits = Edits(captions.edits_file)
    target = folder / "mended.jsonl"
    assert export(captions, edits, target) == 3
    assert target.read_text(encoding="utf-8") == "\n".join(odd) + "\n"
    edits.change(captions.items[1], seen=0, text="A cat.")
    edits.change(captions.items[2], seen=0, decision="rejected")
    assert export(captions, edits, target) == 2
    first, second = target.read_text(encoding="utf-8").splitlines()
    assert first == odd[0]
    expected = rows[1] | {"text": "A cat.", "draft": rows[1]["text"]}
    del expected["objects"]  # it is said of the text as it was
    assert json.loads(second) == expected
    edits.undo(captions.items[1], seen=1)
    edits.undo(captions.items[2], seen=1)
    assert export(captions, edits, target) == 3
    assert target.read_text(encoding="utf-8") == "\n".join(odd) + "\n"


def test_an_export_elsewhere_names_the_same_pictures(folder, records):
    captions = Collection.read(records)
    (folder / "out").mkdir()
    export(captions, Edits(captions.edits_file), folder / "out/mended.jsonl")
    again = Collection.read(folder / "out/mended.jsonl")
    assert [item.name for item in again.items] == [f"../pictures/{number}.png" for number in range(3)]
    assert not again.missing


@pytest.mark.parametrize("named", ["file_name", "images"])
def test_pictures_that_were_shown_together(folder, named):
    """Of sira's records, and of anybody's lines with a list: all are seen, found, and named in an export elsewhere."""
    names = [f"pictures/{number}.png" for number in range(3)]
    rows = [record(7, file_name=" | ".join(names), images=names), record(8, file_name="pictures/1.png")]
    if named == "images":
        rows = [
            {"images": names, "text": "Three."},
            {"images": names[1:2], "text": "One."},
            {"images": [], "text": "?"},
        ]
    captions = Collection.read(write(folder / "captions.jsonl", rows))
    assert [item.name for item in captions.items] == [" | ".join(names), names[1]]
    thumbnails = Thumbnails(captions)
    sheet = Image.open(io.BytesIO(thumbnails.jpeg(0, 480)))
    assert max(sheet.size) <= 480
    for place, colour in zip(((30, 30), (270, 30), (30, 270)), COLOURS, strict=True):
        assert np.abs(np.array(sheet.getpixel(place), int) - colour).max() < 12
    assert sheet.getpixel((270, 270)) == (255, 255, 255)
    assert Image.open(io.BytesIO(thumbnails.jpeg(1, 480))).size == (64, 48)

    (folder / "out").mkdir()
    export(captions, Edits(captions.edits_file), folder / "out/moved.jsonl")
    lines = [json.loads(line) for line in (folder / "out/moved.jsonl").read_text().splitlines()]
    assert lines[0]["images"] == [f"../{name}" for name in names]
    again = Collection.read(folder / "out/moved.jsonl")
    assert not again.missing
    (folder / "pictures/2.png").unlink()
    assert captions.missing == again.missing == {0}


def test_a_text_for_a_picture_that_failed_makes_a_good_record(folder):
    failed = record(0, status="error", text="", error="out of memory")
    captions = Collection.read(write(folder / "captions.jsonl", [failed]))
    edits = Edits(captions.edits_file)
    edits.change(captions.items[0], seen=0, text="A cat.")
    export(captions, edits, folder / "mended.jsonl")
    (item,) = Collection.read(folder / "mended.jsonl").items
    assert (item.text, item.error) == ("A cat.", "")


def test_what_has_no_lines_is_exported_as_lines(folder):
    place = folder / "pictures"
    (place / "0.txt").write_text("One.")
    captions = Collection.read(place)
    edits = Edits(captions.edits_file)
    edits.change(captions.items[1], seen=0, text="Two.")
    export(captions, edits, place / "mended.jsonl")
    assert [json.loads(line) for line in (place / "mended.jsonl").read_text().splitlines()] == [
        {"file_name": f"{number}.png", "text": text} for number, text in enumerate(("One.", "Two.", ""))
    ]


def test_an_export_replaces_neither_captions_nor_log(records):
    captions = Collection.read(records)
    edits = Edits(captions.edits_file)
    edits.change(captions.items[0], seen=0, text="One.")
    for target in (records, edits.path):
        before = target.read_bytes()
        with pytest.raises(SettingsError, match="would replace"):
            export(captions, edits, target)
        assert target.read_bytes() == before


def test_a_picture_that_is_no_picture_is_said_so(folder, records):
    (folder / "pictures/0.png").write_bytes(b"no picture")
    Image.new("P", (30_000, 10)).save(folder / "pictures/1.png")
    thumbnails = Thumbnails(Collection.read(records))
    with pytest.raises(PictureError):
        thumbnails.jpeg(0, 480)
    assert thumbnails.jpeg(1, 480)


@pytest.mark.parametrize("kind", ["csv", "tsv", "json"])
def test_tables(folder, kind):
    path = folder / f"captions.{kind}"
    if kind == "json":
        path.write_text(json.dumps([{"image": "pictures/0.png", "caption": "One, two."}]))
    else:
        mark = "," if kind == "csv" else "\t"
        path.write_text(f'image{mark}caption\npictures/0.png{mark}"One, two."\n')
    captions = Collection.read(path)
    assert texts(captions) == {"pictures/0.png": "One, two."}
    assert not captions.missing


def test_a_clip_is_shown_as_the_frames_that_the_model_saw(folder):
    write_clip(folder / "a.mp4")
    record = {"file_name": "a.mp4", "text": "A bar.", "media": "video", "frames": [0.3, 1.7]}
    (folder / "clips.jsonl").write_text(json.dumps(record) + "\n")
    thumbnails = Thumbnails(Collection.read(folder / "clips.jsonl"))
    sheet = np.asarray(Image.open(io.BytesIO(thumbnails.jpeg(0, 480))).convert("L"), float)
    assert sheet.shape == (240, 480)  # two columns
    for number, left in ((3, 0), (17, 240)):
        expected = float(np.median(drawn(number)[..., 0]))
        assert np.median(sheet[30:60, left + 40 : left + 90]) == pytest.approx(expected, abs=8)


def test_thumbnails_have_a_limit_in_size(folder):
    captions = Collection.read(write(folder / "captions.jsonl", [record(number) for number in range(3)]))
    one = len(Thumbnails(captions).jpeg(0, 480))
    thumbnails = Thumbnails(captions, kept=2 * one + 10)
    for number in (0, 1, 2, 0, 2):
        assert thumbnails.jpeg(number, 480).startswith(b"\xff\xd8")
        assert 0 < sum(map(len, thumbnails._made.values())) <= 2 * one + 10
    (folder / "pictures/2.png").unlink()
    assert thumbnails.jpeg(2, 480)  # it is kept
    with pytest.raises(PictureError, match="no such file"):
        thumbnails.jpeg(2, 1600)
