"""Which pictures a run is about, in which order, and what it leaves out."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from PIL import Image

from sira_cli.errors import DataError, PictureError, SettingsError
from sira_cli.pictures import find
from sira_cli.pictures.find import Shard, find_pictures, left_out_message, read_list
from sira_cli.pictures.sources import located
from tests.support.shards import content

FAST = ("-p", "demo", "--max-new-tokens", 3)


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Path:
    """Pictures, by name only; the current folder."""
    touch(tmp_path, "b.jpg", "a.PNG", "note.txt", ".hidden.jpg", ".git/f.jpg")
    touch(tmp_path, "sub/c.webp", "sub/deep/d.jpg", "zoo/e.jpg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def paths(*given: str, **options) -> list[str]:
    return [picture.location for picture in find_pictures(given, **options)]


def test_a_folder_is_its_pictures_by_name(tree):
    assert paths(".") == ["a.PNG", "b.jpg"]
    assert paths(".", recursive=True) == ["a.PNG", "b.jpg", "sub/c.webp", "sub/deep/d.jpg", "zoo/e.jpg"]
    assert paths("zoo", "b.jpg", "note.txt") == ["zoo/e.jpg", "b.jpg", "note.txt"]  # the order as given
    assert paths(".", "./b.jpg", "sub/../b.jpg", "b.jpg") == ["a.PNG", "b.jpg"]  # each once
    assert find_pictures([f"{tree}/sub"], recursive=True) == [
        located(f"{tree}/sub/{name}", name) for name in ("c.webp", "deep/d.jpg")
    ]


def test_globs_that_no_shell_has_expanded(tree):
    assert paths("*.jpg") == ["b.jpg"]
    assert paths("**/*.jpg") == ["b.jpg", "sub/deep/d.jpg", "zoo/e.jpg"]
    assert paths(f"{tree}/s*") == [f"{tree}/sub/c.webp"]  # a folder
    assert paths("*.tiff") == ["*.tiff"]  # an error of its own when it is opened
    touch(tree, "[x].jpg", "x.jpg")
    assert paths("[x].jpg") == ["[x].jpg"]  # there is such a file


def test_links(tree):
    for name, target in {"loop": tree, "a.jpg": "b.jpg", "none.jpg": "nowhere.jpg", "self.jpg": "self.jpg"}.items():
        (tree / name).symlink_to(target)
    named = ["a.PNG", "a.jpg", "b.jpg", "none.jpg", "self.jpg"]  # the latter two fail when they are opened
    assert paths(".", recursive=True) == [*named, "sub/c.webp", "sub/deep/d.jpg", "zoo/e.jpg"]
    assert paths("loop") == [f"loop/{name}" for name in named]


def test_a_folder_that_cannot_be_read_is_not_forgotten(tree, monkeypatch):
    """As root every folder can be read, so the refusal is put in by hand."""
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert paths(".", recursive=True) == ["a.PNG", "b.jpg", "sub", "zoo/e.jpg"]


def test_shards_are_disjoint_complete_and_stable(tree):
    names = [f"folder/{number}.jpg" for number in range(500)]
    shards = [paths(*names, shard=Shard(index, 4)) for index in (1, 2, 3, 4)]
    assert sorted(path for shard in shards for path in shard) == sorted(names)
    assert all(80 < len(shard) < 170 for shard in shards)
    more = paths(*names, "folder/one-more.jpg", shard=Shard(2, 4))
    assert [path for path in more if path in names] == shards[1]
    whole = paths(".", recursive=True, shard=Shard(1, 2))
    elsewhere = find_pictures([str(tree)], recursive=True, shard=Shard(1, 2))
    assert whole == [picture.relative for picture in elsewhere]
    assert paths(".", recursive=True, shard=Shard(1, 2), limit=1) == whole[:1]
    assert paths(".", recursive=True, limit=2) == ["a.PNG", "b.jpg"]
    for text in ("0/4", "5/4", "1", "1/0", "a/b", "-1/4", "1/4/2"):
        with pytest.raises(SettingsError, match=r"expected I/N with I from 1 to N"):
            Shard.parse(text)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a.jpg\nb c.jpg\r\n\n", ["a.jpg", "b c.jpg"]),
        (b"\xff.jpg\n", [os.fsdecode(b"\xff.jpg")]),
        (b"", []),
        (b"a\nb\r", ["a", "b"]),
        ("\ufeffé.jpg\nb.jpg\n".encode(), ["é.jpg", "b.jpg"]),
        ("é.jpg\r\nb.jpg\r\n".encode("utf-16"), ["é.jpg", "b.jpg"]),
        ("\ufeffé.jpg\nb.jpg".encode("utf-16-be"), ["é.jpg", "b.jpg"]),
    ],
)
def test_lists(data, expected):
    assert read_list(io.BytesIO(data)) == expected


@pytest.mark.parametrize("data", [b"\0", b"x", b"a.png\n", b"\xff\xfe"])
def test_a_list_without_an_end_is_no_list(monkeypatch, data):
    monkeypatch.setattr(find, "_MOST", 2**17)
    endless = io.BytesIO(data * 2**19)
    with pytest.raises(DataError, match="is not a list of paths"):
        read_list(endless)
    assert endless.tell() <= 2**17 + 1  # what a device gives is not read on


def test_nothing_to_do(tree):
    (tree / "empty").mkdir()
    for given, message in {
        ("empty",): r"empty: no pictures in this folder \(subfolders count with -r\)",
        ("a.PNG", ""): "a picture's path is empty",
        ("-", "-"): r"'-' \(stdin\) can be given once",
        ("gopher://example.org/a.png",): "expected a store such as s3://",
    }.items():
        with pytest.raises(SettingsError, match=message):
            find_pictures(given)
    assert paths("x" * 5000) == ["x" * 5000]


def test_a_store_is_listed_as_a_folder_is(tmp_path):
    """fsspec's local filesystem stands for a store: other kinds need a network."""
    names = ("b.png", "a.jpg", "sub dir/c%20#.png", "sub dir/deep/d.png", "sub/e.png", "old/f.png")
    touch(tmp_path, *names, "notes.txt", ".hidden.png", ".git/e.png")
    touch(tmp_path, "@eaDir/a.png", "sub/@eaDir/b.png", "sub/#recycle/c.png")
    for name in names:
        Image.new("RGB", (2, 3)).save(tmp_path / name, "png")
    for recursive, left_out in ((False, {}), (True, {"@eaDir/": 2, "#recycle/": 1})):
        local = find_pictures([str(tmp_path)], recursive=recursive, exclude=["old"])
        store = find_pictures([tmp_path.as_uri()], recursive=recursive, exclude=["old"])
        assert [picture.relative for picture in store] == [picture.relative for picture in local]
        assert len(store) == (5 if recursive else 2)
        assert not recursive or store.left_out == local.left_out == left_out
        for there, here in zip(store, local, strict=True):
            assert content(there) == Path(here.location).read_bytes()
    assert find_pictures([f"{tmp_path.as_uri()}/b.png"])[0].location == f"{tmp_path.as_uri()}/b.png"
    with pytest.raises(PictureError, match=r"none\.png: no such file"):
        find_pictures([f"{tmp_path.as_uri()}/none.png"])[0].read()


# --- what is left out


@pytest.fixture
def photos(tmp_path) -> Path:
    folder = tmp_path / "photos"
    touch(folder, "b.jxl", "c.WMV", "d.wmv", "notes.txt", "a.json", "Thumbs.db", ".DS_Store", "a.xmp", "list.csv")
    Image.new("RGB", (64, 64), "red").save(folder / "a.png")
    return folder


def test_a_run_names_what_it_left_out(sira, photos, tmp_path):
    touch(photos, "sub/e.mpg", "f.NEF")
    output = tmp_path / "captions.jsonl"
    code, _, err = sira("caption", photos, "-r", *FAST, "-o", output)
    assert (code, err.count("5 files were not read: 2 .wmv, 1 .jxl, 1 .mpg, 1 .nef\n")) == (0, 1)
    counts = {".wmv": 2, ".jxl": 1, ".mpg": 1, ".nef": 1}
    assert json.loads(output.with_suffix(".run.json").read_text())["left_out"] == counts
    code, _, err = sira("caption", photos / "a.png", *FAST)
    assert (code, "not read" in err) == (0, False)
    (photos / "a.txt").write_text("There is a cat.")
    output = tmp_path / "checks.jsonl"
    code, _, err = sira("check", photos, "-p", "demo", "-o", output)
    assert (code, err.count("4 files were not read: 2 .wmv, 1 .jxl, 1 .nef")) == (0, 1)
    assert json.loads(output.with_suffix(".run.json").read_text())["left_out"][".wmv"] == 2


def test_a_video_is_no_picture_and_the_way_to_its_frames_is_named(sira, photos):
    touch(photos, "e.MP4")
    code, out, err = sira("caption", photos / "e.MP4", photos / "a.png", *FAST)
    assert (code, out.count("\n")) == (3, 1)
    assert "e.MP4: is a video, expected a picture: write its frames into a folder with ffmpeg" in err


def test_folders_of_systems_are_left_out_and_subfolders_named(sira, photos):
    touch(photos, *(f"{name}/a.png" for name in ("@eaDir", "sub/$RECYCLE.BIN", "sub/Previews.lrdata", "sub/deep")))
    touch(photos, "text/a.md")
    found = find_pictures([str(photos)], recursive=True)
    assert [picture.relative for picture in found] == ["a.png", "sub/deep/a.png"]
    said = "thumbnails and deleted files were left out: 1 $RECYCLE.BIN, 1 @eaDir, 1 Previews.lrdata"
    assert left_out_message(found.left_out) == f"3 files were not read: 2 .wmv, 1 .jxl; {said}"
    alone = find_pictures([str(photos)])
    assert left_out_message(alone.left_out).endswith("; 1 subfolder with pictures (-r includes them): sub")
    assert (len(paths(f"{photos}/**/*.png")), len(paths(f"{photos}/@eaDir/*.png"))) == (2, 1)
    code, out, _ = sira("caption", photos, "-r", "--exclude", "dee*", "--exclude", "x", *FAST, "--json")
    assert (code, out.count("\n"), "deep" in out) == (0, 1, False)
    assert "--exclude * leaves out all pictures" in sira("caption", photos, "--exclude", "*", *FAST)[2]
