"""Which pictures a run is about, and in which order."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from PIL import Image

from sira_cli.errors import DataError, PictureError, SettingsError
from sira_cli.pictures import find
from sira_cli.pictures.find import Shard, find_pictures, read_list
from sira_cli.pictures.names import one_line
from sira_cli.pictures.sources import located
from sira_cli.pictures.stores import public


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Pictures, by name only; the current folder."""
    for name in (
        "b.jpg",
        "a.PNG",
        "note.txt",
        ".hidden.jpg",
        "sub/c.webp",
        "sub/deep/d.jpg",
        "zoo/e.jpg",
        ".git/f.jpg",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
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
    (tree / "[x].jpg").touch()
    (tree / "x.jpg").touch()
    assert paths("[x].jpg") == ["[x].jpg"]  # there is such a file


def test_links(tree):
    (tree / "loop").symlink_to(tree)
    (tree / "link.jpg").symlink_to("b.jpg")
    (tree / "dangling.jpg").symlink_to("nowhere.jpg")
    (tree / "self.jpg").symlink_to("self.jpg")
    found = paths(".", recursive=True)
    assert {"link.jpg", "dangling.jpg", "self.jpg"} <= set(found)  # the latter two fail when they are opened
    assert not any("loop" in path for path in found)
    assert paths("loop") == [f"loop/{name}" for name in ("a.PNG", "b.jpg", "dangling.jpg", "link.jpg", "self.jpg")]


def test_a_folder_that_cannot_be_read_is_not_forgotten(tree, monkeypatch):
    """As root every folder can be read, so the refusal is put in by hand."""
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied")
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


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "1/0", "a/b", "-1/4", "1/4/2"])
def test_bad_shards(text):
    with pytest.raises(SettingsError, match=r"expected I/N with I from 1 to N"):
        Shard.parse(text)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a.jpg\nb c.jpg\r\n\n", ["a.jpg", "b c.jpg"]),
        (b"a\nb.jpg\0c.jpg\0", ["a\nb.jpg", "c.jpg"]),
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


class Endless(io.BytesIO):
    """What a device gives; more than a lowered limit of it is never asked for."""

    def __init__(self, data: bytes) -> None:
        self.data, self.asked = data, 0

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None
        assert size >= 0
        self.asked += size
        assert self.asked <= 2**18
        return (self.data * (size // len(self.data) + 1))[:size]


@pytest.mark.parametrize("data", [b"\0", b"x", b"a.png\n", b"\xff\xfe"])
def test_a_list_without_an_end_is_no_list(monkeypatch, data):
    monkeypatch.setattr(find, "_MOST", 2**17)
    with pytest.raises(DataError, match="is not a list of paths"):
        read_list(Endless(data))


def test_nothing_to_do(tree):
    (tree / "empty").mkdir()
    with pytest.raises(SettingsError, match=r"empty: no pictures in this folder \(subfolders count with -r\)"):
        find_pictures(["empty"])
    with pytest.raises(SettingsError, match="a picture's path is empty"):
        find_pictures(["a.PNG", ""])
    with pytest.raises(SettingsError, match=r"'-' \(stdin\) can be given once"):
        find_pictures(["-", "-"])
    assert paths("x" * 5000) == ["x" * 5000]


def test_a_store_is_listed_as_a_folder_is(tmp_path):
    """fsspec's local filesystem stands for a store: other kinds need a network."""
    for name in ("b.png", "a.jpg", "notes.txt", ".hidden.png", "sub dir/c%20#.png", "sub dir/deep/d.png", ".git/e.png"):
        tmp_path.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 3)).save(tmp_path / name, "png")
    for recursive in (False, True):
        local = find_pictures([str(tmp_path)], recursive=recursive)
        store = find_pictures([tmp_path.as_uri()], recursive=recursive)
        assert [picture.relative for picture in store] == [picture.relative for picture in local]
        for there, here in zip(store, local, strict=True):
            assert there.read() == Path(here.location).read_bytes()
    assert find_pictures([f"{tmp_path.as_uri()}/b.png"])[0].location == f"{tmp_path.as_uri()}/b.png"
    with pytest.raises(PictureError, match=r"none\.png: no such file"):
        find_pictures([f"{tmp_path.as_uri()}/none.png"])[0].read()
    with pytest.raises(SettingsError, match="expected a store such as s3://"):
        find_pictures(["gopher://example.org/a.png"])


def test_folders_of_systems_and_excluded_ones_are_left_out_of_a_store_too(tmp_path):
    for name in ("a.png", "@eaDir/a.png", "sub/@eaDir/b.png", "sub/#recycle/c.png", "sub/d.png", "old/e.png"):
        tmp_path.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        tmp_path.joinpath(name).touch()
    for place in (str(tmp_path), tmp_path.as_uri()):
        found = find_pictures([place], recursive=True, exclude=["old"])
        assert [picture.relative for picture in found] == ["a.png", "sub/d.png"]
        assert found.left_out == {"@eaDir/": 2, "#recycle/": 1}


def test_credentials_are_not_shown():
    assert public("s3://me:secret@bucket/a.png?endpoint_override=x") == "s3://bucket/a.png"
    assert one_line("s3://me:secret@bucket/é.png") == "s3://bucket/é.png"
