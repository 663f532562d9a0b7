"""Pictures in Parquet and Arrow files: every way in which they are kept there, and what is wrong with a table."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow
import pytest
from pyarrow import feather, parquet

from sira_cli.errors import DataError, PictureError
from sira_cli.pictures.find import find_pictures
from tests.support.shards import EXAMPLES

PICTURES = [path.read_bytes() for path in EXAMPLES[:3]]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "files").mkdir()
    for number, data in enumerate(PICTURES):
        (tmp_path / f"files/{number}.png").write_bytes(data)
    return tmp_path


KINDS = {
    "struct": [{"bytes": data, "path": f"{number}.png"} for number, data in enumerate(PICTURES)],
    "struct of paths": [{"bytes": None, "path": f"files/{number}.png"} for number in range(3)],
    "bytes": PICTURES,
    "paths": [f"files/{number}.png" for number in range(3)],
}


def struct_type() -> pyarrow.DataType:
    return pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])


def table(kind: str, **more: list) -> pyarrow.Table:
    values = pyarrow.array(KINDS[kind], struct_type() if kind.startswith("struct") else None)
    return pyarrow.table({"caption": ["a", "b", "c"], "image": values, **more})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("store", [False, True])
def test_each_row_is_a_picture(folder, kind, store):
    parquet.write_table(table(kind), "train.parquet", row_group_size=2)
    pictures = find_pictures([(folder / "train.parquet").as_uri() if store else "train.parquet"])
    assert [picture.read() for picture in pictures] == PICTURES
    if not store:
        assert [picture.name_in(folder) for picture in pictures] == [f"train.parquet/{row}" for row in range(3)]
    assert pickle.loads(pickle.dumps(pictures)) == pictures
    assert [picture.read() for picture in reversed(pictures)] == PICTURES[::-1]


@pytest.mark.parametrize("kind", [pyarrow.string_view(), pyarrow.dictionary(pyarrow.int32(), pyarrow.large_string())])
def test_texts_of_other_types(folder, kind):
    """As polars and pandas write them."""
    feather.write_feather(pyarrow.table({"image": pyarrow.array(KINDS["paths"], kind)}), "file.arrow")
    assert [picture.read() for picture in find_pictures(["file.arrow"])] == PICTURES


def test_both_formats_of_arrow(folder):
    feather.write_feather(table("struct"), "file.arrow")
    with pyarrow.OSFile("stream.arrow", "wb") as file, pyarrow.ipc.new_stream(file, table("bytes").schema) as stream:
        stream.write_table(table("bytes"), max_chunksize=2)
    for name in ("file.arrow", "stream.arrow"):
        assert [picture.read() for picture in find_pictures([name])] == PICTURES


def test_what_datasets_saved(folder, tmp_path):
    """The `datasets` package writes the folder, and says which pictures are in it."""
    features = datasets.Features({"image": datasets.Image(), "id": datasets.Value("string")})
    rows = {"image": [{"bytes": data, "path": None} for data in PICTURES], "id": ["x", "y", "z"]}
    made = datasets.Dataset.from_dict(rows, features=features)
    made.save_to_disk("saved", num_shards=2)
    pictures = find_pictures(["saved"], id_column="id")
    assert [picture.member for picture in pictures] == ["x", "y", "z"]
    stored = datasets.load_from_disk("saved")
    assert [picture.open().image.tobytes() for picture in pictures] == [
        row["image"].convert("RGB").tobytes() for row in stored
    ]
    stored.filter(lambda row: row["id"] > "x", cache_file_name="saved/cache-0123456789abcdef_00000_of_00002.arrow")
    assert find_pictures(["saved"], id_column="id") == pictures
    made.to_parquet("hub.parquet")
    assert [picture.read() for picture in find_pictures(["hub.parquet"])] == PICTURES


def test_rows_in_any_order(folder):
    """Against the table as a whole, rows as threads, shards and resumed runs ask for them."""
    values = [f"row {number}".encode() for number in range(5000)]
    parquet.write_table(pyarrow.table({"image": values}), "many.parquet", row_group_size=300)
    pictures = find_pictures(["many.parquet"])
    order = [*range(100), 4999, 0, 17, 16, 3000, *random.Random(0).sample(range(5000), 40)]
    assert [pictures[number].read() for number in order] == [values[number] for number in order]


def test_a_file_of_the_same_name_is_read_anew(folder, tmp_path, monkeypatch):
    """Replaced between two runs of one process, or in another folder."""
    for place, thing in ((tmp_path, "dog"), (tmp_path, "cat"), (folder, "tree")):
        monkeypatch.chdir(place)
        parquet.write_table(pyarrow.table({"image": [EXAMPLES[0].read_bytes()], "thing": [thing]}), "again.parquet")
        (picture,) = find_pictures(["again.parquet"])
        assert picture.columns(["thing"]) == {"thing": thing}


@pytest.mark.slow
def test_memory_holds_a_row_group_and_not_the_file(folder):
    """Twenty row groups of 20 MB, in a process of its own: pyarrow says how much it held at most."""
    script = """
import os, sys
import pyarrow
from pyarrow import parquet
rows = [os.urandom(4 * 2**20) for _ in range(4)]
schema = pyarrow.schema([("image", pyarrow.binary())])
if sys.argv[1] == "write":
    with parquet.ParquetWriter("big.parquet", schema, compression="none", use_dictionary=False) as writer:
        writer.write_table(pyarrow.table({"image": rows * 25}, schema), row_group_size=5)
else:
    from sira_cli.pictures.find import find_pictures
    assert sum(len(picture.read()) for picture in find_pictures(["big.parquet"])) == 100 * 4 * 2**20
    print(pyarrow.default_memory_pool().max_memory() // 2**20)
"""
    peak = 0
    for step in ("write", "read"):
        command = [sys.executable, "-c", script, step]
        done = subprocess.run(command, capture_output=True, check=True, cwd=folder, text=True)
        peak = int(done.stdout or 0)
    assert 0 < peak < 200


def test_columns_that_are_named(folder):
    more = {"thumb": pyarrow.array(KINDS["struct"][::-1], struct_type()), "key": [7, 8, 9]}
    parquet.write_table(table("struct", **more), "two.parquet")
    pictures = find_pictures(["two.parquet"], image_column="thumb", id_column="key")
    assert [picture.read() for picture in pictures] == PICTURES[::-1]
    assert [picture.name_in(None) for picture in pictures] == ["two.parquet/7", "two.parquet/8", "two.parquet/9"]


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        ({"id": [1], "text": ["a"]}, {}, "no column of pictures found: the columns are id, text: name one with"),
        (
            {"id": [1], "text": ["a"]},
            {"image_column": "img"},
            "`image_column=` img: no such column; the columns are id, ",
        ),
        ({"id": [1], "text": ["a"]}, {"image_column": "id"}, "`image_column=` id is of type int64: expected bytes, "),
        (
            {"image": [b"x"], "n": [1]},
            {"id_column": "key"},
            "`id_column=` key: no such column; the columns are image, n",
        ),
        ({"image": [b"x"] * 2, "n": ["a"] * 2}, {"id_column": "n"}, "`id_column=` n has 'a' twice: expected a unique"),
        ({"image": [b"x"] * 2, "n": ["a", None]}, {"id_column": "n"}, "`id_column=` n is empty: expected a unique"),
    ],
)
def test_what_is_wrong_with_columns(folder, columns, options, expected):
    parquet.write_table(pyarrow.table(columns), "wrong.parquet")
    with pytest.raises(DataError) as caught:
        find_pictures(["wrong.parquet"], **options)
    assert str(caught.value).startswith(f"wrong.parquet: {expected}")


def test_what_is_wrong_with_rows_and_files(folder):
    rows = [{"bytes": None, "path": None}, {"bytes": None, "path": "files/none.png"}, None, KINDS["struct"][0]]
    parquet.write_table(pyarrow.table({"image": pyarrow.array(rows, struct_type())}), "rows.parquet")
    Path("bad.parquet").write_text("no table", encoding="utf-8")
    Path("bad.arrow").write_bytes(b"")
    found = []
    for picture in find_pictures(["rows.parquet", "bad.parquet", "bad.arrow"]):
        try:
            picture.read()
        except PictureError as error:
            found.append(str(error))
    assert found[:3] == [
        "rows.parquet/0: row 0 has no picture in column image",
        "files/none.png: no such file",
        "rows.parquet/2: row 2 has no picture in column image",
    ]
    assert [message.partition(": ")[2].partition(":")[0] for message in found[3:]] == [
        "is not a table that can be read"
    ] * 2


def test_two_columns_of_one_name_are_that_files_error(tmp_path):
    data = pyarrow.array([EXAMPLES[0].read_bytes()])
    twice = pyarrow.Table.from_arrays([data, data], names=["image", "image"])
    parquet.write_table(twice, tmp_path / "twice.parquet")
    parquet.write_table(twice.select([0]), tmp_path / "whole.parquet")
    bad, good = find_pictures([str(tmp_path / "twice.parquet"), str(tmp_path / "whole.parquet")])
    with pytest.raises(PictureError, match=r"twice\.parquet: .*two columns have the name image$"):
        bad.read()
    assert good.read() == EXAMPLES[0].read_bytes()
