"""Pictures that are shown together: names, hashes and files of a group, wherever its pictures are kept."""

from __future__ import annotations

import hashlib
import io
import pickle
import tracemalloc

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from sira_cli.errors import DataError, HugePictureError, PictureError, SettingsError
from sira_cli.pictures import picture as picture_module
from sira_cli.pictures.find import find_pictures
from sira_cli.pictures.names import joined, parted
from sira_cli.pictures.picture import pack, unpack
from sira_cli.pictures.sources import as_picture, recorded
from tests.support.shards import EXAMPLES, write_tar

PICTURES = [path.read_bytes() for path in EXAMPLES[:3]]
STRUCT = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, data in enumerate(PICTURES):
        (tmp_path / f"{number}.png").write_bytes(data)
    return tmp_path


def digest(*files: bytes) -> str:
    return hashlib.sha256("".join(hashlib.sha256(data).hexdigest() for data in files).encode()).hexdigest()


@pytest.mark.parametrize(
    "names",
    [
        ["a.jpg", "b.jpg"],
        ["a | b.jpg", "c|d.jpg"],
        ["\\", "|", "x"],
        ["a\\|b", "\\ | \\"],
        ["a.jpg"],
        ["s3://a/b", "-"],
    ],
)
def test_names_come_back(names):
    assert parted(joined(names)) == names


@pytest.mark.parametrize("files", [[b"a", b"", b"bc"], [b""], [b"\0" * 9, b"x"]])
def test_files_come_back(files):
    assert unpack(pack(files)) == files


def test_a_group_is_its_pictures(folder):
    group = as_picture(["0.png", "1.png", Image.open("2.png")])
    assert [type(source).__name__ for source in group.sources] == ["FileSource", "FileSource", "MemorySource"]
    files = as_picture(["0.png", "1.png"])
    data = files.read()
    assert files.files(data) == [("0.png", PICTURES[0]), ("1.png", PICTURES[1])]
    assert files.digest(data) == digest(*PICTURES[:2])
    assert files.name_in(folder.parent) == f"{folder.name}/0.png | {folder.name}/1.png"
    assert files.images("x/0.png | x/1.png") == ["x/0.png", "x/1.png"]
    assert files.address == f"{folder}/0.png | {folder}/1.png"
    assert (files.file_size(), files.is_here(), files.is_missing()) == (
        len(PICTURES[0]) + len(PICTURES[1]),
        True,
        False,
    )
    assert files.identity != as_picture(["1.png", "0.png"]).identity
    assert pickle.loads(pickle.dumps(files)) == files
    opened = files.open()
    assert opened.sha256 == files.opened(data).sha256 == digest(*PICTURES[:2])
    assert [image.tobytes() for image in opened.images] == [
        as_picture(source.location).open().image.tobytes() for source in files.sources
    ]
    assert len(group.open().images) == 3
    assert as_picture(["0.png"] * 9).shown == "0.png | 0.png | 0.png | 0.png and 5 more"
    for refuse in (files.text_file, files.mirrored):
        with pytest.raises(
            SettingsError, match=r"0\.png \| 1\.png: a text about several pictures is written as a record"
        ):
            refuse(".txt")


def test_one_picture_in_a_group_has_its_own_hash_and_name(folder):
    group, alone = as_picture(["0.png"]), as_picture("0.png")
    assert group.digest(group.read()) == alone.digest(alone.read()) == alone.open().sha256 == group.open().sha256
    assert group.name_in(None) == "0.png"
    assert group.images("0.png") == ["0.png"]
    assert alone.images("0.png") is None
    assert group.open().shown.tobytes() == alone.open().shown.tobytes()
    assert group.text_file(".txt") == alone.text_file(".txt")
    assert group.mirrored(".txt") == alone.mirrored(".txt")


def test_a_stroke_in_the_name_of_one_picture_does_not_part_it(folder):
    (folder / "a | b.png").write_bytes(PICTURES[0])
    assert as_picture(["a | b.png"]).images("x/a | b.png") == ["x/a | b.png"]


def test_the_name_of_a_group_leads_to_its_pictures(folder):
    group = recorded("0.png | 1.png", folder)
    assert [source.location for source in group.sources] == [f"{folder}/0.png", f"{folder}/1.png"]
    (folder / "0.png | 1.png").write_bytes(PICTURES[2])
    assert recorded("0.png | 1.png", folder).read() == PICTURES[2]  # a file of this name
    text = group.known(caption="A dog.", number=2)
    assert text.images(text.name_in(folder)) == ["0.png", "1.png"]
    assert [name for name, _ in text.files(text.read())] == [f"{folder}/0.png", f"{folder}/1.png"]
    web = recorded("https://a.org/x.png | s3://b/y.png", folder)
    assert [type(source).__name__ for source in web.sources] == ["WebSource", "StoreSource"]


def test_a_group_is_missing_with_any_of_its_pictures(folder):
    group = as_picture(["0.png", "none.png"])
    assert (group.is_missing(), group.is_here()) == (True, False)
    with pytest.raises(PictureError, match=r"^none\.png: no such file$"):
        group.read()
    (folder / "bad.png").write_bytes(b"no picture")
    bad = as_picture(["0.png", "bad.png"])
    for read in (bad.pixels, bad.opened):
        with pytest.raises(PictureError, match=r"^bad\.png: is not a picture"):
            read(bad.read())


def test_pixels_are_counted_together_before_any_is_decoded(folder, monkeypatch):
    """Small files of many pixels: a group that would fill the memory is refused by its headers."""
    file = io.BytesIO()
    Image.fromarray(np.zeros((6000, 6000), np.uint8)).save(file, "PNG")
    (folder / "large.png").write_bytes(file.getvalue())
    assert as_picture(["large.png"] * 7).pixels(as_picture(["large.png"] * 7).read()) == 7 * 36_000_000
    many = as_picture(["large.png"] * 8)
    data = many.read()
    tracemalloc.start()
    with pytest.raises(HugePictureError, match="8 pictures have 288,000,000 pixels together, expected at most 268,435"):
        many.pixels(data)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    monkeypatch.setattr(picture_module, "MOST_PIXELS", 10)
    alone = as_picture("large.png")
    assert alone.pixels(alone.read()) == 36_000_000  # the limit is for groups


def test_columns_of_a_table_are_shown_together(folder):
    columns = {
        "before": pyarrow.array([{"bytes": data, "path": None} for data in PICTURES], STRUCT),
        "after": ["1.png", "2.png", None],
        "caption": ["a", "b", "c"],
    }
    parquet.write_table(pyarrow.table(columns), "pairs.parquet")
    first, second, third = find_pictures(["pairs.parquet"], image_column="before, after")
    assert [file for _, file in first.files(first.read())] == [PICTURES[0], PICTURES[1]]
    assert [name for name, _ in first.files(first.read())] == [
        "pairs.parquet/0, picture 1",
        "pairs.parquet/0, picture 2",
    ]
    assert first.digest(first.read()) == digest(*PICTURES[:2])
    assert (first.name_in(folder), first.images("pairs.parquet/0")) == ("pairs.parquet/0", None)
    assert len(second.open().images) == 2
    assert first.columns() == {"caption": "a"}
    with pytest.raises(PictureError, match="/2: has no picture in column after"):
        third.read()
    (alone, *_) = find_pictures(["pairs.parquet"])
    assert alone.read() == PICTURES[0]
    assert find_pictures(["pairs.parquet"], image_column="before,") == find_pictures(["pairs.parquet"])
    with pytest.raises(DataError, match="`image_column=` ,: no such column"):
        find_pictures(["pairs.parquet"], image_column=",")
    with pytest.raises(DataError, match="`image_column=` later: no such column"):
        find_pictures(["pairs.parquet"], image_column="before,later")


@pytest.mark.parametrize("kind", ["struct", "bytes", "paths"])
def test_a_column_of_lists_is_shown_together(folder, kind):
    each = {
        "struct": [{"bytes": data, "path": None} for data in PICTURES],
        "bytes": PICTURES,
        "paths": [f"{number}.png" for number in range(3)],
    }[kind]
    types = {"struct": STRUCT, "bytes": pyarrow.binary(), "paths": pyarrow.string()}
    rows = pyarrow.array([each[:2], each, each[:1], []], pyarrow.list_(types[kind]))
    parquet.write_table(pyarrow.table({"images": rows, "caption": list("abcd")}), "groups.parquet")
    named = {} if kind == "struct" else {"image_column": "images"}
    groups = find_pictures(["groups.parquet"], **named)
    assert [[file for _, file in group.files(group.read())] for group in groups[:3]] == [
        PICTURES[:2],
        PICTURES,
        PICTURES[:1],
    ]
    with pytest.raises(PictureError, match="/3: has no picture in column images"):
        groups[3].read()
    if kind != "struct":
        with pytest.raises(DataError, match="no column of pictures found"):
            find_pictures(["groups.parquet"])


def test_several_members_of_a_key_are_shown_together(folder):
    members = [
        ("a.left.png", PICTURES[0]),
        ("a.right.png", PICTURES[1]),
        ("a.txt", b"dogs"),
        ("b.left.png", PICTURES[2]),
        ("c.right.png", PICTURES[1]),
        ("c.left.png", PICTURES[2]),
    ]
    write_tar(folder / "pairs.tar", members)
    first, second, third = find_pictures(["pairs.tar"], image_column="left.png,right.png")
    assert first.files(first.read()) == [
        ("pairs.tar/a, picture 1", PICTURES[0]),
        ("pairs.tar/a, picture 2", PICTURES[1]),
    ]
    assert (first.sources[0].member, first.name_in(folder), first.images("pairs.tar/a")) == ("a", "pairs.tar/a", None)
    assert first.columns() == {"txt": "dogs"}
    with pytest.raises(
        PictureError, match=r"b: has 1 picture \(left\.png\), expected one of each of left\.png, right\.png"
    ):
        second.read()
    assert [file for _, file in third.files(third.read())] == [PICTURES[2], PICTURES[1]]  # in the order asked for
    (alone, *_) = find_pictures(["pairs.tar"], image_column="left.png")
    assert (alone.read(), alone.name_in(folder)) == (PICTURES[0], "pairs.tar/a.left.png")
