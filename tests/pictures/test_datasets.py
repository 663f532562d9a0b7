"""Pictures in data sets: which there are, what they are called, what is wrong with a file."""

from __future__ import annotations

import base64
import gzip
import itertools
import pickle
import sys
import tarfile
from pathlib import Path

import datasets
import fsspec
import pyarrow
import pytest
import webdataset
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import feather, parquet

from sira_cli.errors import DataError, PictureError, SettingsError
from sira_cli.pictures.captions import find_captions
from sira_cli.pictures.datasets import pictures_in
from sira_cli.pictures.find import Shard, find_pictures
from sira_cli.pictures.selection import filled, needs_columns
from tests.support.shards import EXAMPLES, content, drawn, write_tar

PICTURES = [path.read_bytes() for path in EXAMPLES[:3]]
ALONE = [[data] for data in PICTURES]
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


def reads(*paths: str, **options) -> list[list[bytes]]:
    """The files of each picture."""
    return [[file for _, file in picture.files()] for picture in find_pictures(paths, **options)]


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


@pytest.mark.parametrize("path", ["shards/cc-{00000..00002}.tar", "shards/cc-*.tar", "shards"])
def test_each_key_is_a_picture(folder, path):
    pictures = find_pictures([path])
    assert [(picture.name_in(None), content(picture)) for picture in pictures] == [
        (f"shards/cc-{number // 2:05}.tar/{number:06}.png", EXAMPLES[number % len(EXAMPLES)].read_bytes())
        for number in range(6)
    ]
    assert [picture.columns()["number"] for picture in reversed(pictures)] == [5, 4, 3, 2, 1, 0]
    assert pictures[3].columns() == {"tags": ["dog", "tree"], "number": 3, "txt": "scene 3"}
    assert pickle.loads(pickle.dumps(pictures)) == pictures
    assert len(pickle.dumps(pictures[0])) < 1000  # its place, and no bytes: a worker of Ray reads the shard itself
    assert pictures[0].name_in(folder / "out") == "../shards/cc-00000.tar/000000.png"
    assert pictures[0].mirrored(".txt").parts[-2:] == ("cc-00000.tar", "000000.txt")
    with pytest.raises(SettingsError, match="texts are not written into a data set: give `output=`"):
        pictures[0].text_file(".txt")
    parts = [names("shards", shard=Shard(index, 2)) for index in (1, 2)]
    assert sorted(parts[0] + parts[1]) == names("shards")
    assert {len(part) % 2 for part in parts} == {0}  # whole shards


def test_shards_are_what_others_wrote(folder):
    """WebDataset's own writer, and the standard library with members of other kinds and long names."""
    with webdataset.TarWriter("real.tar.gz") as sink:
        for number, data in enumerate(PICTURES):
            sink.write({"__key__": f"sub/{number}", "png": data, "json": {"number": number}, "seg.png": b"x"})
    assert [picture.columns()["number"] for picture in find_pictures(["real.tar.gz"])] == [0, 1, 2]
    assert reads("real.tar.gz") == ALONE
    assert reads("real.tar.gz", image_column=".seg.png") == [[b"x"]] * 3
    members = ("./sub/a.PNG", f"{'x' * 200}.webp", "é.jpeg", "._hidden.png")
    with tarfile.open("odd.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(EXAMPLES[0].parent, "sub", recursive=False)
        for number, name in enumerate(members):
            archive.add(EXAMPLES[number], name)
    assert [picture.sources[0].member for picture in find_pictures(["odd.tar"])] == [*members[:3]]
    assert reads("odd.tar") == ALONE


def test_what_a_folder_of_shards_stands_for(folder):
    """Not for the tables about each shard that img2dataset writes beside it; and a limit ends the search."""
    Path("shards/cc-00000.parquet").write_bytes(b"urls")
    Path("shards/cc-00001.tar").write_bytes(b"no tar file")
    assert names("shards", "./shards/", limit=2) == names("shards/cc-00000.tar")
    Path("shards/a.png").write_bytes(PICTURES[0])
    assert names("shards") == ["shards/a.png"]
    write_tar(Path("texts.tar"), [("a.txt", b"text")])
    with pytest.raises(SettingsError, match=r"^texts\.tar: no pictures inside$"):
        find_pictures(["texts.tar"])
    with pytest.raises(SettingsError, match=r"cc-\{3\.\.0\}\.tar: the range \{3\.\.0\} is empty: expected the smaller"):
        find_pictures(["cc-{3..0}.tar"])


def test_a_damaged_shard_gives_what_is_whole(folder, monkeypatch):
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
    assert errors("shards/cc-{00002..00003}.tar") == ["shards/cc-00003.tar: no such file"]
    monkeypatch.setattr("sira_cli.pictures.shards._LARGEST", 99)  # bytes of a member
    assert errors("shards/cc-00002.tar")[0].startswith("shards/cc-00002.tar: cannot be read: 000004.png has more than")


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
@pytest.mark.parametrize("size", [-512, -2000, 2**62, 2**80])
def test_a_size_that_no_file_has_is_an_error_record(folder, kind, size):
    whole = Path("shards/cc-00000.tar").read_bytes().rstrip(b"\0")
    whole += bytes(-len(whole) % 512)
    member = tarfile.TarInfo("000009.png")
    member.type, member.size = kind, size
    Path("odd.tar").write_bytes(whole + member.tobuf(tarfile.GNU_FORMAT) + whole + bytes(1024))
    pictures = list(itertools.islice(pictures_in("odd.tar", "odd.tar"), 9))
    assert content(pictures[0]) == PICTURES[0]
    assert len(pictures) < 4
    assert pictures[-1].fault.startswith("odd.tar: cannot be read after 00000")


def test_a_key_with_several_pictures(folder):
    numbers = {"a.left.png": 0, "a.right.png": 1, "b.left.png": 2, "c.right.png": 1, "c.left.png": 2}
    members = [(name, PICTURES[number]) for name, number in numbers.items()]
    write_tar(folder / "pairs.tar", [*members[:2], ("a.txt", b"dogs"), *members[2:]])
    choose = "pairs.tar/a: has 2 pictures (left.png, right.png), expected one: choose with `image_column=`"
    assert errors("pairs.tar")[0] == choose
    first, second, third = find_pictures(["pairs.tar"], image_column="left.png,right.png")
    assert first.files() == [(f"pairs.tar/a, picture {n + 1}", PICTURES[n]) for n in range(2)]
    assert (first.name_in(folder), first.images("pairs.tar/a")) == ("pairs.tar/a", None)
    assert first.columns() == {"txt": "dogs"}
    assert second.fault.endswith("b: has 1 picture (left.png), expected one of each of left.png, right.png")
    assert [file for _, file in third.files()] == [PICTURES[2], PICTURES[1]]  # in the order asked for
    assert reads("pairs.tar", image_column=".left.png") == [[PICTURES[n]] for n in (0, 2, 2)]


def test_an_unsorted_shard_is_named_where_its_columns_are_missed(folder):
    """Members of a key that stand apart are other samples, as in WebDataset; a key that is whole is as ever."""
    members = [("0.txt", b"none"), ("1.json", b'{"tags": "blue"}'), ("1.txt", b"two"), ("0.json", b'{"tags": "red"}')]
    write_tar(folder / "s.tar", [("0.png", PICTURES[0]), members[0], ("1.png", PICTURES[1]), *members[1:]])
    first, second = find_pictures(["s.tar"], limit=2)
    assert filled("{tags}", second) == "blue"
    says = r"s\.tar is not sorted, 0\.json stands apart from the picture: unpack it, and pack it with tar --sort=name$"
    with pytest.raises(
        PictureError, match=rf"s\.tar/0\.png: the prompt holds {{tags}}, but its columns are txt: {says}"
    ):
        filled("{tags}", first)
    with pytest.raises(SettingsError, match=says):
        needs_columns("{tags}", [first])
    write_tar(folder / "bare.tar", [("0.png", PICTURES[0])])
    bare = find_pictures(["bare.tar"])
    with pytest.raises(SettingsError, match=r"but bare\.tar/0\.png has no columns$"):
        needs_columns("{tags}", bare)
    assert needs_columns("{tags}", [first, second])
    assert [each.read()[0][0][1] for each in (first, second)] == PICTURES[:2]  # a prompt without names needs no more


def test_captions_of_an_unsorted_shard_are_not_missed_in_silence(folder):
    members = [(f"{n}.png", PICTURES[n]) for n in range(3)] + [("2.txt", b"two"), ("0.txt", b"none")]
    write_tar(folder / "s.tar", members)
    found = find_captions("s.tar")
    assert [picture.caption for picture in found.pictures if not picture.fault] == ["two"]
    (bad,) = [picture.fault for picture in found.pictures if picture.fault]
    assert bad.startswith("s.tar/0.png: no caption was found: s.tar is not sorted, 0.txt stands apart")
    assert found.without == 1


# --- tables

BASE64 = [base64.b64encode(data).decode() for data in PICTURES]
TEXTS = {"paths": [f"files/{number}.png" for number in range(3)], "base64": BASE64}
TEXTS["data URLs"] = [f"data:image/png;base64,{data}" for data in BASE64]
KINDS = TEXTS | {
    "struct": [{"bytes": data, "path": f"{number}.png"} for number, data in enumerate(PICTURES)],
    "struct of paths": [{"bytes": None, "path": f"files/{number}.png"} for number in range(3)],
    "bytes": PICTURES,
}


def table(kind: str) -> pyarrow.Table:
    values = pyarrow.array(KINDS[kind], STRUCT if kind.startswith("struct") else None)
    return pyarrow.table({"caption": ["a", "b", "c"], "image": values})


def write(made: pyarrow.Table, name: str) -> str:
    match Path(name).suffix:
        case ".parquet":
            parquet.write_table(made, name, row_group_size=2)
        case ".arrow":
            with pyarrow.OSFile(name, "wb") as file, pyarrow.ipc.new_stream(file, made.schema) as stream:
                stream.write_table(made, max_chunksize=2)
        case ".csv" | ".tsv":
            made.to_pandas().to_csv(name, sep="\t" if name.endswith("tsv") else ",", index=False)
        case ".json" | ".jsonl":
            made.to_pandas().to_json(name, orient="records", lines=name.endswith("l"))
    return name


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow", "t.jsonl", "t.json", "t.csv", "t.tsv"])
def test_each_row_is_a_picture(folder, name):
    for kind in KINDS if name in ("t.parquet", "t.arrow") else TEXTS:  # text files hold no bytes
        pictures = find_pictures([write(table(kind), name)])
        assert [content(picture) for picture in pictures] == PICTURES
        first = 2 if name in ("t.csv", "t.tsv") else 1  # rows are lines, and the first line of these names the columns
        assert [picture.name_in(folder) for picture in pictures] == [f"{name}/{first + row}" for row in range(3)]
        assert [picture.columns() for picture in reversed(pictures)] == [{"caption": each} for each in "cba"]
        assert pickle.loads(pickle.dumps(pictures)) == pictures


def test_what_others_saved(folder):
    """The `datasets` package writes a folder, and says which pictures are in it; polars has texts of another type."""
    rows = {"image": [{"bytes": data, "path": None} for data in PICTURES], "id": ["x", "y", "z"]}
    made = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    made.save_to_disk("saved", num_shards=2)
    pictures = find_pictures(["saved"])
    assert [picture.sources[0].member for picture in pictures] == ["1", "2", "1"]
    assert reads("saved") == ALONE
    made.filter(lambda row: row["id"] > "x", cache_file_name="saved/cache-0123456789abcdef_00000_of_00002.arrow")
    assert find_pictures(["saved"]) == pictures
    feather.write_feather(pyarrow.table({"image": pyarrow.array(KINDS["paths"], pyarrow.string_view())}), "file.arrow")
    assert reads("file.arrow") == ALONE


def test_rows_in_any_order_and_of_a_file_that_is_replaced(folder):
    """As threads ask for them; and between two runs of one process."""
    values = [f"row {number}".encode() for number in range(300)]
    parquet.write_table(pyarrow.table({"image": values}), "many.parquet", row_group_size=30)
    pictures = find_pictures(["many.parquet"])
    for number in [*range(50), 40, 299, 0, 17, 16]:
        assert content(pictures[number]) == values[number]
    for thing in ("dog", "cat"):
        (picture,) = find_pictures([write(pyarrow.table({"image": ["files/0.png"], "thing": [thing]}), "again.csv")])
        assert picture.columns()["thing"] == thing


def test_columns_of_a_table_are_shown_together(folder):
    columns = {"before": pyarrow.array(KINDS["struct"], STRUCT), "after": ["files/1.png", "files/2.png", None]}
    write(pyarrow.table(columns | {"caption": ["a", "b", "c"]}), "pairs.parquet")
    first, *_ = find_pictures(["pairs.parquet"], image_column="before, after")
    assert first.files() == [(f"pairs.parquet/1, picture {n + 1}", PICTURES[n]) for n in range(2)]
    assert (first.name_in(folder), first.images("pairs.parquet/0")) == ("pairs.parquet/1", None)
    assert first.columns() == {"caption": "a"}
    assert errors("pairs.parquet", image_column="before,after") == ["pairs.parquet/3: has no picture in column after"]
    assert reads("pairs.parquet", image_column="before,") == reads("pairs.parquet") == ALONE
    with pytest.raises(DataError, match="`image_column=` later: no such column"):
        find_pictures(["pairs.parquet"], image_column="before,later")


@pytest.mark.parametrize("kind", ["struct", "paths"])
def test_a_column_of_lists_is_shown_together(folder, kind):
    rows = [KINDS[kind][:2], KINDS[kind], KINDS[kind][:1], []]
    types = pyarrow.list_({"struct": STRUCT, "paths": pyarrow.string()}[kind])
    write(pyarrow.table({"images": pyarrow.array(rows, types)}), "groups.parquet")
    how = {} if kind == "struct" else {"image_column": "images"}
    found = find_pictures(["groups.parquet"], **how)[:3]
    assert [[file for _, file in group.files()] for group in found] == [PICTURES[:2], PICTURES, PICTURES[:1]]
    assert errors("groups.parquet", **how) == ["groups.parquet/4: has no picture in column images"]


@pytest.mark.parametrize("name", ["wrong.parquet", "wrong.jsonl"])
def test_what_is_wrong_with_columns(folder, name):
    write(pyarrow.table({"id": [1], "text": ["a"]}), name)
    for column, expected in {
        None: "no column of pictures found: the columns are id, text: name one with",
        "img": "`image_column=` img: no such column; the columns are id, text",
        "id": "`image_column=` id is of type int",
    }.items():
        with pytest.raises(DataError) as caught:
            find_pictures([name], image_column=column)
        assert str(caught.value).startswith(f"{name}: {expected}")
    both = pyarrow.table({name: pyarrow.array(KINDS["struct"], STRUCT) for name in "ab"})
    with pytest.raises(DataError, match="several columns of pictures: a, b: name one with `image_column=`, or several"):
        find_pictures([write(both, "both.parquet")])


def test_what_is_wrong_with_rows_and_files(folder):
    rows = [{"bytes": None, "path": None}, {"bytes": None, "path": "files/none.png"}, None, KINDS["struct"][0]]
    write(pyarrow.table({"image": pyarrow.array(rows, STRUCT)}), "rows.parquet")
    nothing = [f"rows.parquet/{row}: has no picture in column image" for row in (1, 3)]
    assert errors("rows.parquet") == [nothing[0], "files/none.png: no such file", nothing[1]]
    for name, data in {"bad.parquet": b"no table", "bad.arrow": b"", "bad.csv": b""}.items():
        Path(name).write_bytes(data)
    unreadable = [message.split(": ")[:2] for message in errors("bad.parquet", "bad.arrow", "bad.csv")]
    assert unreadable == [
        ["bad.parquet", "cannot be read"],
        ["bad.arrow", "cannot be read"],
        ["bad.csv", "holds no rows"],
    ]


def test_a_table_from_elsewhere_opens_no_connections(folder):
    rows = ["s3://bucket/a.png", "file:///etc/passwd", "http://127.0.0.1:1/a.png", "files/0.png"]
    assert [message.partition(": ")[2] for message in errors(write(pyarrow.table({"image": rows}), "far.csv"))] == [
        "s3://bucket/a.png: expected a path, or a URL of the web",
        "file:///etc/passwd: expected a path, or a URL of the web",
        "failed_to_download: 127.0.0.1 is at 127.0.0.1, which is no public address",
    ]


# --- stores, and what else a user would notice


def test_a_store_gives_the_same(folder, monkeypatch):
    """fsspec's filesystem in memory stands for a store: others need a network."""
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    store = fsspec.filesystem("memory")
    write(table("paths"), "t.parquet")
    write(table("bytes"), "shards/bytes.parquet")
    for path in ("shards", "files", "t.parquet"):
        store.put(path, f"/bucket/{path}", recursive=True)
    for path in ("shards", "shards/cc-{00000..00002}.tar", "shards/cc-*.tar", "shards/bytes.parquet", "t.parquet"):
        assert reads(f"memory://bucket/{path}") == reads(path)
        assert names(f"memory://bucket/{path}") == [f"memory://bucket/{name}" for name in names(path)]
    assert errors("memory://bucket/none.tar")[0].startswith("memory://bucket/none.tar: cannot be read: ")


def test_what_is_not_installed_is_named(folder, monkeypatch):
    for package in ("s3fs", "datasets"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SettingsError, match=r"^s3://bucket/a\.tar: Install s3fs to access S3, with pip$"):
        find_pictures(["s3://bucket/a.tar"])
    assert len(names("shards")) == 6
    with pytest.raises(SettingsError, match=r"t\.parquet: is a data set: .*pip install 'datasets>=[\d.]+'$"):
        find_pictures([write(table("paths"), "t.parquet")])
