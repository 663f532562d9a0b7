"""Pictures in data sets: which there are, what they are called, what is wrong with a file."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path

import datasets
import fsspec
import pyarrow
import pytest
import webdataset
from pyarrow import feather, parquet

from sira_cli.errors import DataError, PictureError, SettingsError
from sira_cli.pictures.datasets import pictures_in
from sira_cli.pictures.find import Shard, find_pictures
from tests.support.shards import EXAMPLES, claiming, content, drawn, write_tar

PICTURES = [path.read_bytes() for path in EXAMPLES[:3]]
STRUCT = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, with three shards of two pictures in shards/, and pictures in files/."""
    for name in ("shards", "files"):
        (tmp_path / name).mkdir()
    for number in range(3):
        write_tar(tmp_path / f"shards/cc-{number:05}.tar", drawn(2, 2 * number))
        (tmp_path / f"files/{number}.png").write_bytes(PICTURES[number])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*paths: str, **options) -> list[str]:
    return [picture.name_in(None) for picture in find_pictures(paths, **options)]


def reads(*paths: str, **options) -> list[bytes]:
    return [content(picture) for picture in find_pictures(paths, **options)]


def files(picture) -> list[bytes]:
    return [file for _, file in picture.files()]


def error(picture) -> str:
    with pytest.raises(PictureError) as caught:
        picture.read()
    return str(caught.value)


def errors(*paths: str, **options) -> list[str]:
    """What is said about the pictures that cannot be read."""
    found = []
    for picture in find_pictures(paths, **options):
        try:
            picture.read()
        except PictureError as error:
            found.append(str(error))
    return found


# --- tar files


@pytest.mark.parametrize(
    "path", ["shards/cc-{00000..00002}.tar", "shards/cc-*.tar", "shards", "shards/cc-0000{0..2}.tar"]
)
def test_each_key_is_a_picture(folder, path):
    pictures = find_pictures([path])
    assert [picture.name_in(None) for picture in pictures] == [
        f"shards/cc-{number // 2:05}.tar/{number:06}.png" for number in range(6)
    ]
    assert [content(picture) for picture in pictures] == [
        EXAMPLES[number % len(EXAMPLES)].read_bytes() for number in range(6)
    ]
    assert [picture.columns()["number"] for picture in reversed(pictures)] == [5, 4, 3, 2, 1, 0]
    assert pictures[3].columns() == {"tags": ["dog", "tree"], "number": 3, "txt": "scene 3"}
    parts = [names("shards", shard=Shard(index, 2)) for index in (1, 2)]
    assert sorted(parts[0] + parts[1]) == names("shards")
    assert {len(part) % 2 for part in parts} == {0}  # whole shards


def test_a_picture_is_what_others_wrote(folder):
    """WebDataset's own writer, and the standard library with members of every kind and names of every length."""
    with webdataset.TarWriter("real.tar.gz") as sink:
        for number, data in enumerate(PICTURES):
            sink.write({"__key__": f"sub/{number}", "png": data, "json": {"number": number}, "seg.png": b"x"})
    found = find_pictures(["real.tar.gz"])
    assert [(picture.sources[0].member, content(picture)) for picture in found] == [
        (f"sub/{number}.png", data) for number, data in enumerate(PICTURES)
    ]
    assert found[2].columns()["number"] == 2
    assert reads("real.tar.gz", image_column=".seg.png") == [b"x"] * 3
    long = "x" * 200
    with tarfile.open("odd.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(EXAMPLES[1], "./sub/a.PNG")
        archive.add(EXAMPLES[1].parent, "sub", recursive=False)
        for number, name in ((2, f"{long}.webp"), (0, "é.jpeg"), (0, "._hidden.png"), (0, "d.gif")):
            archive.add(EXAMPLES[number], name)
    found = find_pictures(["odd.tar"])
    assert [picture.sources[0].member for picture in found] == ["./sub/a.PNG", f"{long}.webp", "é.jpeg", "d.gif"]
    with tarfile.open("odd.tar") as archive:
        assert all(archive.extractfile(each.sources[0].member).read() == content(each) for each in found)


def test_a_picture_in_a_shard_travels_and_has_no_place_beside_it(folder):
    (picture, *_) = found = find_pictures(["shards"])
    assert pickle.loads(pickle.dumps(found)) == found
    assert len(pickle.dumps(picture)) < 1000  # its place, and no bytes: a worker of Ray reads the shard itself
    assert picture.address == f"{folder}/shards/cc-00000.tar/000000.png"
    assert picture.name_in(folder / "out") == "../shards/cc-00000.tar/000000.png"
    assert picture.mirrored(".txt") == Path("cc-00000.tar/000000.txt")
    with pytest.raises(SettingsError, match="texts are not written into a data set: give `output=`"):
        picture.text_file(".txt")


def test_what_a_folder_of_shards_stands_for(folder):
    """Not for the tables about each shard that img2dataset writes beside it; and a limit ends the search."""
    Path("shards/cc-00000.parquet").write_bytes(b"urls")
    Path("shards/cc-00000_stats.json").write_text("{}", encoding="utf-8")
    assert len(names("shards", "./shards/", "./shards/cc-00000.tar")) == 6
    Path("shards/cc-00001.tar").write_bytes(b"no tar file")
    assert names("shards", limit=2) == names("shards/cc-00000.tar")
    Path("shards/a.png").write_bytes(PICTURES[0])
    assert names("shards") == ["shards/a.png"]
    write_tar(Path("empty.tar"), [])
    write_tar(Path("texts.tar"), [("a.txt", b"text")])
    with pytest.raises(SettingsError, match=r"^empty\.tar and 1 more: no pictures inside$"):
        find_pictures(["empty.tar", "texts.tar"])
    with pytest.raises(SettingsError, match=r"cc-\{3\.\.0\}\.tar: the range \{3\.\.0\} is empty: expected the smaller"):
        find_pictures(["cc-{3..0}.tar"])


def test_a_damaged_shard_gives_what_is_whole(folder):
    path = Path("shards/cc-00000.tar")
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b"000001.png") + 2000])
    assert names("shards") == ["shards/cc-00000.tar/000000.png", "shards/cc-00000.tar", *names("shards")[2:]]
    assert errors("shards") == ["shards/cc-00000.tar: cannot be read after 000000.png: unexpected end of data"]
    path.write_bytes(whole.replace(b"000001.png", b"000001.pnG"))  # the header's checksum is wrong
    assert errors("shards") == ["shards/cc-00000.tar: cannot be read after 000000.png: a header is damaged"]
    Path("page.tar").write_text("<html>" * 1000, encoding="utf-8")
    Path("cut.tar.gz").write_bytes(gzip.compress(whole)[:-2000])
    assert [message.partition(":")[0] for message in errors("page.tar", "cut.tar.gz")] == ["page.tar", "cut.tar.gz"]
    *found, missing = find_pictures(["shards/cc-{00002..00003}.tar"])
    assert (len(found), missing.is_here(), error(missing)) == (2, False, "shards/cc-00003.tar: no such file")


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
@pytest.mark.parametrize("size", [-512, -2000, 2**62, 2**80])
def test_a_size_that_no_file_has_is_an_error_record(folder, kind, size):
    whole = Path("shards/cc-00000.tar").read_bytes().rstrip(b"\0")
    whole += bytes(-len(whole) % 512)
    Path("odd.tar").write_bytes(whole + claiming("000009.png", size, kind) + whole + bytes(1024))
    pictures = list(itertools.islice(pictures_in("odd.tar", "odd.tar"), 9))
    assert content(pictures[0]) == PICTURES[0]
    assert len(pictures) < 4
    assert pictures[-1].fault.startswith("odd.tar: cannot be read after 00000")


def test_a_key_with_several_pictures(folder):
    picture = PICTURES[0]
    write_tar(Path("two.tar"), [("a.jpg", picture), ("a.png", b"x"), ("b.png", picture), ("b.depth.png", b"y")])
    assert errors("two.tar") == ["two.tar/a: has 2 pictures (jpg, png), expected one: choose with `image_column=`"]
    assert reads("two.tar", image_column="png") == [b"x", picture]
    assert reads("two.tar", image_column=".depth.png") == [b"y"]
    write_tar(Path("dots.tar"), [("img.1.jpg", picture), ("img.2.jpg", picture)])
    assert errors("dots.tar")[0].startswith("dots.tar/img: has 2 pictures (1.jpg, 2.jpg), expected one: choose")


def test_several_members_of_a_key_are_shown_together(folder):
    pairs = [("a.left.png", 0), ("a.right.png", 1), ("b.left.png", 2), ("c.right.png", 1), ("c.left.png", 2)]
    members = [(name, PICTURES[number]) for name, number in pairs]
    write_tar(folder / "pairs.tar", [*members[:2], ("a.txt", b"dogs"), *members[2:]])
    first, second, third = find_pictures(["pairs.tar"], image_column="left.png,right.png")
    assert first.files() == [(f"pairs.tar/a, picture {n + 1}", PICTURES[n]) for n in range(2)]
    assert (first.sources[0].member, first.name_in(folder), first.images("pairs.tar/a")) == ("a", "pairs.tar/a", None)
    assert first.columns() == {"txt": "dogs"}
    assert error(second).endswith("b: has 1 picture (left.png), expected one of each of left.png, right.png")
    assert files(third) == [PICTURES[2], PICTURES[1]]  # in the order asked for
    (alone, *_) = find_pictures(["pairs.tar"], image_column="left.png")
    assert (content(alone), alone.name_in(folder)) == (PICTURES[0], "pairs.tar/a.left.png")


# --- tables

TEXTS = {
    "paths": [f"files/{number}.png" for number in range(3)],
    "base64": [base64.b64encode(data).decode() for data in PICTURES],
    "data URLs": [f"data:image/png;base64,{base64.b64encode(data).decode()}" for data in PICTURES],
}
BYTES = {
    "struct": [{"bytes": data, "path": f"{number}.png"} for number, data in enumerate(PICTURES)],
    "struct of paths": [{"bytes": None, "path": f"files/{number}.png"} for number in range(3)],
    "bytes": PICTURES,
}
KINDS = TEXTS | BYTES


def table(kind: str, **more: list) -> pyarrow.Table:
    values = pyarrow.array(KINDS[kind], STRUCT if kind.startswith("struct") else None)
    return pyarrow.table({"caption": ["a", "b", "c"], "image": values, **more})


def write(made: pyarrow.Table, name: str) -> str:
    match Path(name).suffix:
        case ".parquet":
            parquet.write_table(made, name, row_group_size=2)
        case ".arrow":
            with pyarrow.OSFile(name, "wb") as file, pyarrow.ipc.new_stream(file, made.schema) as stream:
                stream.write_table(made, max_chunksize=2)
        case ".csv" | ".tsv":
            made.to_pandas().to_csv(name, sep="\t" if name.endswith("tsv") else ",", index=False)
        case ".json":
            Path(name).write_text(json.dumps(made.to_pylist()), encoding="utf-8")
        case ".jsonl":
            Path(name).write_text("\n".join(map(json.dumps, made.to_pylist())), encoding="utf-8")
    return name


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow", "t.jsonl", "t.json", "t.csv", "t.tsv"])
def test_each_row_is_a_picture(folder, name):
    for kind in KINDS if name in ("t.parquet", "t.arrow") else TEXTS:  # text files hold no bytes
        pictures = find_pictures([write(table(kind), name)])
        assert [content(picture) for picture in pictures] == PICTURES
        assert [picture.name_in(folder) for picture in pictures] == [f"{name}/{row}" for row in range(3)]
        assert [picture.columns() for picture in reversed(pictures)] == [{"caption": each} for each in "cba"]
        assert pickle.loads(pickle.dumps(pictures)) == pictures


def test_what_others_saved(folder):
    """The `datasets` package writes a folder, and says which pictures are in it; polars and pandas have other texts."""
    features = datasets.Features({"image": datasets.Image(), "id": datasets.Value("string")})
    rows = {"image": [{"bytes": data, "path": None} for data in PICTURES], "id": ["x", "y", "z"]}
    made = datasets.Dataset.from_dict(rows, features=features)
    made.save_to_disk("saved", num_shards=2)
    pictures = find_pictures(["saved"])
    assert [picture.sources[0].member for picture in pictures] == ["0", "1", "0"]
    stored = datasets.load_from_disk("saved")
    assert [picture.open().image.tobytes() for picture in pictures] == [
        row["image"].convert("RGB").tobytes() for row in stored
    ]
    stored.filter(lambda row: row["id"] > "x", cache_file_name="saved/cache-0123456789abcdef_00000_of_00002.arrow")
    assert find_pictures(["saved"]) == pictures
    made.to_parquet("hub.parquet")
    assert reads("hub.parquet") == PICTURES
    for kind in (pyarrow.string_view(), pyarrow.dictionary(pyarrow.int32(), pyarrow.large_string())):
        feather.write_feather(pyarrow.table({"image": pyarrow.array(KINDS["paths"], kind)}), "file.arrow")
        assert reads("file.arrow") == PICTURES


def test_rows_in_any_order_and_of_a_file_that_is_replaced(folder):
    """As threads ask for them; and between two runs of one process."""
    values = [f"row {number}".encode() for number in range(3000)]
    parquet.write_table(pyarrow.table({"image": values}), "many.parquet", row_group_size=300)
    pictures = find_pictures(["many.parquet"])
    for number in [*range(100), 40, 2999, 0, 17, 16]:
        assert content(pictures[number]) == values[number]
    for thing in ("dog", "cat"):
        (picture,) = find_pictures([write(pyarrow.table({"image": ["files/0.png"], "thing": [thing]}), "again.csv")])
        assert picture.columns()["thing"] == thing


def test_columns_of_a_table_are_shown_together(folder):
    before = pyarrow.array([{"bytes": data, "path": None} for data in PICTURES], STRUCT)
    columns = {"before": before, "after": ["files/1.png", "files/2.png", None], "caption": ["a", "b", "c"]}
    write(pyarrow.table(columns), "pairs.parquet")
    first, second, third = find_pictures(["pairs.parquet"], image_column="before, after")
    assert first.files() == [(f"pairs.parquet/0, picture {n + 1}", PICTURES[n]) for n in range(2)]
    assert (first.name_in(folder), first.images("pairs.parquet/0")) == ("pairs.parquet/0", None)
    assert (len(second.open().images), first.columns()) == (2, {"caption": "a"})
    assert error(third).endswith("/2: has no picture in column after")
    assert reads("pairs.parquet") == PICTURES
    assert find_pictures(["pairs.parquet"], image_column="before,") == find_pictures(["pairs.parquet"])
    for wrong, column in ((",", ","), ("before,later", "later")):
        with pytest.raises(DataError, match=f"`image_column=` {column}: no such column"):
            find_pictures(["pairs.parquet"], image_column=wrong)


@pytest.mark.parametrize("kind", ["struct", "bytes", "paths"])
def test_a_column_of_lists_is_shown_together(folder, kind):
    each, types = KINDS[kind], {"struct": STRUCT, "bytes": pyarrow.binary(), "paths": pyarrow.string()}
    rows = pyarrow.array([each[:2], each, each[:1], []], pyarrow.list_(types[kind]))
    write(pyarrow.table({"images": rows, "caption": list("abcd")}), "groups.parquet")
    groups = find_pictures(["groups.parquet"], **({} if kind == "struct" else {"image_column": "images"}))
    assert [files(group) for group in groups[:3]] == [PICTURES[:2], PICTURES, PICTURES[:1]]
    assert error(groups[3]).endswith("/3: has no picture in column images")
    if kind != "struct":
        with pytest.raises(DataError, match="no column of pictures found"):
            find_pictures(["groups.parquet"])


@pytest.mark.parametrize("name", ["wrong.parquet", "wrong.jsonl"])
def test_what_is_wrong_with_columns(folder, name):
    write(pyarrow.table({"id": [1], "text": ["a"]}), name)
    for column, expected in {
        None: "no column of pictures found: the columns are id, text: name one with",
        "img": "`image_column=` img: no such column; the columns are id, text",
        "id": "`image_column=` id is of type int64: expected bytes, ",
    }.items():
        with pytest.raises(DataError) as caught:
            find_pictures([name], image_column=column)
        assert str(caught.value).startswith(f"{name}: {expected}")


def test_what_is_wrong_with_rows_and_files(folder):
    rows = [{"bytes": None, "path": None}, {"bytes": None, "path": "files/none.png"}, None, KINDS["struct"][0]]
    write(pyarrow.table({"image": pyarrow.array(rows, STRUCT)}), "rows.parquet")
    assert errors("rows.parquet") == [
        "rows.parquet/0: has no picture in column image",
        "files/none.png: no such file",
        "rows.parquet/2: has no picture in column image",
    ]
    bad = {"bad.parquet": b"no table", "bad.arrow": b"", "bad.jsonl": b'{"image": "a.png"}\n{"image": ', "bad.csv": b""}
    for name, data in bad.items():
        Path(name).write_bytes(data)
    assert [message.split(": ")[:2] for message in errors(*bad)] == [[name, "cannot be read"] for name in bad]
    both = pyarrow.table({"a": pyarrow.array(KINDS["struct"], STRUCT), "b": pyarrow.array(KINDS["struct"], STRUCT)})
    with pytest.raises(DataError, match="several columns of pictures: a, b: name one with `image_column=`, or several"):
        find_pictures([write(both, "both.parquet")])


def test_a_table_from_elsewhere_opens_no_connections(folder):
    rows = ["s3://bucket/a.png", "file:///etc/passwd", "http://127.0.0.1:1/a.png", "files/0.png"]
    assert [message.partition(": ")[2] for message in errors(write(pyarrow.table({"image": rows}), "far.csv"))] == [
        "s3://bucket/a.png: expected a path, or a URL of the web",
        "file:///etc/passwd: expected a path, or a URL of the web",
        "failed_to_download: 127.0.0.1 is at 127.0.0.1, which is no public address",
    ]


# --- stores, and what else a user would notice


def test_a_store_gives_the_same(folder):
    """fsspec's filesystem in memory stands for a store: others need a network."""
    store = fsspec.filesystem("memory")
    write(table("paths"), "t.parquet")
    write(table("bytes"), "shards/bytes.parquet")
    for path in ("shards", "files", "t.parquet"):
        store.put(path, f"/bucket/{path}", recursive=True)
    try:
        for path in ("shards", "shards/cc-{00000..00002}.tar", "shards/cc-*.tar", "shards/bytes.parquet", "t.parquet"):
            there, here = find_pictures([f"memory://bucket/{path}"]), find_pictures([path])
            assert [content(picture) for picture in there] == [content(picture) for picture in here]
            assert [picture.name_in(None).removeprefix("memory://bucket/") for picture in there] == [
                picture.name_in(None) for picture in here
            ]
        assert errors("memory://bucket/none.tar")[0].startswith("memory://bucket/none.tar: cannot be read: ")
    finally:
        store.rm("/bucket", recursive=True)


def test_what_is_not_installed_is_named(folder, monkeypatch):
    for uri in ("s3://bucket/photos", "s3://bucket/a.tar", "s3://bucket/a.parquet"):
        monkeypatch.setitem(sys.modules, "s3fs", None)
        with pytest.raises(SettingsError, match=rf"^{uri}: Install s3fs to access S3, with pip$"):
            find_pictures([uri])
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert len(names("shards")) == 6
    with pytest.raises(SettingsError, match=r"t\.csv: is a data set: .*pip install .*\[data\]'$"):
        find_pictures([write(table("paths"), "t.csv")])


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["parquet", "arrow", "tar"])
def test_memory_holds_few_samples_and_not_the_file(folder, ending):
    """2 GB in a process of its own, which says how much it took at most, with what it imports."""
    script = """
import io, os, resource, sys, tarfile
import pyarrow
from pyarrow import parquet
rows = [os.urandom(4 * 2**20) for _ in range(4)]
name, schema = "big." + sys.argv[2], pyarrow.schema([("image", pyarrow.binary())])
if sys.argv[1] == "write" and name.endswith("tar"):
    with tarfile.open(name, "w") as archive:
        for number in range(500):
            member = tarfile.TarInfo(f"{number}.png")
            member.size = 4 * 2**20
            archive.addfile(member, io.BytesIO(rows[number % 4]))
elif sys.argv[1] == "write":
    kind = parquet.ParquetWriter if name.endswith("parquet") else pyarrow.ipc.new_stream
    with kind(name, schema) as writer:
        for _ in range(125):
            writer.write_table(pyarrow.table({"image": rows}, schema))
else:
    from sira_cli.pictures.find import find_pictures
    assert sum(len(picture.files()[0][1]) for picture in find_pictures([name])) == 500 * 4 * 2**20
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
    for step in ("write", "read"):
        command = [sys.executable, "-c", script, step, ending]
        done = subprocess.run(command, capture_output=True, check=True, cwd=folder, text=True)
    assert 0 < int(done.stdout) < 900
