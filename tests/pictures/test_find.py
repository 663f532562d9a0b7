"""Which pictures a run is about, in which order, and what it leaves out; where each is and what it is called."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
import os
import sys
import unicodedata
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image

from sira_cli.errors import DataError, HugePictureError, PictureError, SettingsError
from sira_cli.pictures import find
from sira_cli.pictures import picture as picture_module
from sira_cli.pictures.captions import find_captions
from sira_cli.pictures.find import Shard, find_pictures, left_out_message, read_list
from sira_cli.pictures.names import as_text, from_text, joined, one_line, parted, public
from sira_cli.pictures.sources import as_picture, located, recorded
from sira_cli.run.output import Sidecars
from tests.support.shards import EXAMPLES, content

PICTURES = [path.read_bytes() for path in EXAMPLES[:3]]
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


@pytest.mark.parametrize(
    ("given", "options", "expected"),
    [
        (["."], {}, "a.PNG b.jpg"),
        (["."], {"recursive": True}, "a.PNG b.jpg sub/c.webp sub/deep/d.jpg zoo/e.jpg"),
        (["."], {"recursive": True, "limit": 2}, "a.PNG b.jpg"),
        (["zoo", "b.jpg", "note.txt"], {}, "zoo/e.jpg b.jpg note.txt"),  # the order as given
        ([".", "./b.jpg", "sub/../b.jpg", "b.jpg"], {}, "a.PNG b.jpg"),  # each once
        # Globs that no shell has expanded; what matches nothing is an error of its own when it is opened.
        (["*.jpg"], {}, "b.jpg"),
        (["**/*.jpg"], {}, "b.jpg sub/deep/d.jpg zoo/e.jpg"),
        (["s*"], {}, "sub/c.webp"),
        (["*.tiff"], {}, "*.tiff"),
        (["x" * 5000], {}, "x" * 5000),
    ],
)
def test_what_paths_stand_for(tree, given, options, expected):
    assert paths(*given, **options) == expected.split()


def test_links_and_names_that_look_like_globs(tree):
    assert find_pictures([f"{tree}/sub"]) == [located(f"{tree}/sub/c.webp", "c.webp")]
    for name, target in {"loop": tree, "a.jpg": "b.jpg", "none.jpg": "nowhere.jpg", "self.jpg": "self.jpg"}.items():
        (tree / name).symlink_to(target)
    touch(tree, "[n].jpg", "n.jpg")
    assert paths("[n].jpg") == ["[n].jpg"]
    named = ["[n].jpg", "a.PNG", "a.jpg", "b.jpg", "n.jpg", "none.jpg", "self.jpg"]  # an error each when it is opened
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
    assert whole == [each.relative for each in find_pictures([str(tree)], recursive=True, shard=Shard(1, 2))]
    assert paths(".", recursive=True, shard=Shard(1, 2), limit=1) == whole[:1]
    for text in ("0/4", "5/4", "1", "-1/4", "1/4/2"):
        with pytest.raises(SettingsError, match=r"expected I/N with I from 1 to N"):
            Shard.parse(text)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a.jpg\nb c.jpg\r\n\n", ["a.jpg", "b c.jpg"]),
        (b"\xff.jpg\n", [os.fsdecode(b"\xff.jpg")]),
        ("\ufeffé.jpg\nb.jpg\n".encode(), ["é.jpg", "b.jpg"]),
        ("é.jpg\r\nb.jpg\r\n".encode("utf-16"), ["é.jpg", "b.jpg"]),
        ("\ufeffé.jpg\nb.jpg".encode("utf-16-be"), ["é.jpg", "b.jpg"]),
    ],
)
def test_lists(data, expected):
    assert read_list(io.BytesIO(data)) == expected


def test_a_list_without_an_end_is_no_list(monkeypatch):
    monkeypatch.setattr(find, "_MOST", 2**17)
    endless = io.BytesIO(b"a.png\n" * 2**19)
    with pytest.raises(DataError, match="is not a list of paths"):
        read_list(endless)
    assert endless.tell() <= 2**17 + 1  # what a device gives is not read on


def test_a_store_is_listed_as_a_folder_is(tmp_path):
    """fsspec's local filesystem stands for a store: other kinds need a network."""
    names = ("b.png", "a.jpg", "sub dir/c%20#.png", "sub dir/deep/d.png", "sub/e.png", "old/f.png")
    touch(tmp_path, *names, "notes.txt", ".hidden.png", "@eaDir/a.png", "sub/@eaDir/b.png", "sub/#recycle/c.png")
    for name in names:
        Image.new("RGB", (2, 3)).save(tmp_path / name, "png")
    for recursive, count, left_out in ((False, 2, {"@eaDir/": 1}), (True, 5, {"@eaDir/": 2, "#recycle/": 1})):
        places = str(tmp_path), tmp_path.as_uri()
        local, store = (find_pictures([place], recursive=recursive, exclude=["old"]) for place in places)
        assert [picture.relative for picture in store] == [picture.relative for picture in local]
        assert (len(store), store.left_out) == (count, left_out)
        assert [*map(content, store)] == [Path(here.location).read_bytes() for here in local]
    with pytest.raises(PictureError, match=r"none\.png: no such file"):
        find_pictures([f"{tmp_path.as_uri()}/none.png"])[0].read()
    with pytest.raises(SettingsError, match="expected a store such as s3://"):
        find_pictures(["gopher://example.org/a.png"])


# --- what is left out


def test_a_run_names_what_it_left_out(sira, tmp_path):
    """A video that is named is an error of its own; folders of systems hold no pictures."""
    photos, output = tmp_path / "photos", tmp_path / "captions.jsonl"
    touch(photos, "b.jxl", "c.WMV", "d.wmv", "notes.txt", "Thumbs.db", ".DS_Store", "sub/e.mpg", "f.NEF")
    touch(photos, *(f"{name}/a.png" for name in ("@eaDir", "sub/$RECYCLE.BIN", "sub/Previews.lrdata", "deep")))
    Image.new("RGB", (64, 64), "red").save(photos / "a.png")
    command = ("caption", photos, photos / "d.wmv", "-r", "--exclude", "dee*", "--exclude", "x", *FAST, "-o", output)
    code, _, err = sira(*command)
    assert (
        "5 files were not read: 2 .wmv, 1 .jxl, 1 .mpg, 1 .nef; thumbnails and deleted files were left out: 1 $R" in err
    )
    assert "d.wmv: is a video, expected a picture: write its frames into a folder with ffmpeg" in err
    assert (code, len(output.read_text().splitlines())) == (3, 2)
    counts = {".wmv": 2, ".jxl": 1, ".mpg": 1, ".nef": 1, "$RECYCLE.BIN/": 1, "@eaDir/": 1, "Previews.lrdata/": 1}
    assert json.loads(output.with_suffix(".run.json").read_text())["left_out"] == counts
    alone = find_pictures([str(photos)])
    assert left_out_message(alone.left_out).endswith("; 1 subfolder with pictures (-r includes them): deep")
    assert len(paths(f"{photos}/**/*.png")) == 2
    assert "--exclude * leaves out all pictures" in sira("caption", photos, "--exclude", "*", *FAST)[2]


# --- kinds of pictures


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, with 0.png, 1.png, 2.png, and sub/cat.png."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for number, data in enumerate(PICTURES):
        (tmp_path / f"{number}.png").write_bytes(data)
    (tmp_path / "sub" / "cat.png").write_bytes(PICTURES[0])
    return tmp_path


def test_a_file(folder):
    picture, place = as_picture("./sub/cat.png"), folder / "sub/cat.png"
    assert (picture.identity, picture.address) == ("sub/cat.png", str(place))
    seen = [picture.name_in(each) for each in (None, folder / "sub", folder / "other")]
    assert seen == ["./sub/cat.png", "cat.png", "../sub/cat.png"]
    assert picture.text_file(".txt") == picture.mirrored(".txt") == Path("sub/cat.txt")
    assert content(picture) == place.read_bytes()
    assert picture.is_here() is True
    (folder / "link.png").symlink_to("none.png")
    for name, here in (("none.png", False), ("link.png", None)):  # what it leads to may be there again tomorrow
        assert as_picture(name).is_here() is here
        with pytest.raises(PictureError, match="no such file"):
            as_picture(name).read()


def test_an_object_in_a_store_shows_no_key(folder, monkeypatch):
    """The store is in memory: no other can exist here."""
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    fsspec.filesystem("memory").pipe("/key:secret@bucket/sub/cat.png", PICTURES[0])
    picture, shown = as_picture("memory://key:secret@bucket/sub/cat.png"), "memory://bucket/sub/cat.png"
    assert (content(picture), picture.is_here()) == (PICTURES[0], None)
    assert picture.address == shown
    assert picture.label == shown
    assert picture.name_in(folder) == shown
    with pytest.raises(PictureError, match=r"^memory://bucket/sub/dog\.png: no such file"):
        as_picture("memory://key:secret@bucket/sub/dog.png").read()
    assert public("s3://me:secret@bucket/a.png?endpoint_override=x") == "s3://bucket/a.png"
    assert one_line("s3://me:secret@bucket/é.png") == "s3://bucket/é.png"


def test_stdin_and_what_a_program_holds_in_memory(folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PICTURES[0]), encoding="utf-8"))
    (stdin,), image = find_pictures(["-"]), Image.open("0.png").convert("RGB")
    monkeypatch.setattr(sys, "stdin", None)  # from now on nobody needs it
    assert stdin.address == ""
    assert stdin.name_in(Path()) == "-"
    assert stdin.label == "stdin"
    stream = as_picture(io.BytesIO(PICTURES[0]))
    for picture, data in ((stdin, PICTURES[0]), (stream, PICTURES[0]), (as_picture(image), image.tobytes())):
        for _ in range(2):
            opened = picture.open()
            assert (opened.image, opened.sha256) == (image, hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("memory://k:s@bucket/a.png", r"^memory://bucket/a\.png: texts are not written to a store"),
        ("http://me:secret@example.org/a.png", r"^http://example.org/a\.png: texts are not written to the web"),
        (io.BytesIO(PICTURES[0]), "has no place for a text file: leave out `sidecar=`"),
        (["0.png", "1.png"], r"^0\.png \| 1\.png: a text about several pictures is written as a record"),
    ],
)
def test_pictures_without_a_place_for_a_text_file(given, message):
    with pytest.raises(SettingsError, match=message):
        as_picture(given).text_file(".txt")


# --- names


def test_no_two_names_share_a_text():
    """All names of up to five pieces out of those that could be confused; ordinary ones stand for themselves."""
    for name in ("a.jpg", "sub/ü ö.png", "new\nline.png", r"back\slash.png", r"C:\xylo\x7f.png", "中文.jpg", "\u2028"):
        assert as_text(name) == from_text(name) == name
    pieces = (b"\\", b"\xff", b"x", b"f", b"ff", "é".encode())
    names = {os.fsdecode(b"".join(each)) for size in range(1, 6) for each in itertools.product(pieces, repeat=size)}
    texts = {as_text(name) for name in names}
    assert len(texts) == len(names)
    assert all(from_text(as_text(name)) == name for name in names)
    assert all(as_text(name).encode() for name in names)  # any JSON reader takes it


def test_a_name_in_the_other_unicode_form_is_found(tmp_path):
    for form, other in (("NFC", "NFD"), ("NFD", "NFC")):
        (tmp_path / unicodedata.normalize(form, f"é {form}.png")).touch()
        assert located(unicodedata.normalize(other, f"{tmp_path}/é {form}.png")).is_here()


def test_a_picture_as_base64_is_no_name(sira, tmp_path, monkeypatch):
    """Tables of benchmarks hold pictures so: they are read as data sets, and refused in a line where names belong."""
    monkeypatch.chdir(tmp_path)
    rows = [{"image": base64.b64encode(data).decode(), "text": "Is there a dog?"} for data in PICTURES]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for command in (("check", "q.jsonl"), ("ask", "--questions", "q.jsonl"), ("caption", "--files-from", "q.jsonl")):
        code, _, err = sira(*command, "-p", "demo")
        assert code == 2
        assert "q.jsonl: line 1: image holds a picture as base64, expected its name" in err
        assert len(err) < 300
    assert [content(picture) for picture in find_pictures(["q.jsonl"])] == PICTURES


# --- groups


def test_names_of_a_group_come_back():
    for names in (["a | b.jpg", "c|d.jpg"], ["\\", "|", "x"], ["a\\|b", "\\ | \\"], ["a.jpg"]):
        assert parted(joined(names)) == names


def test_a_group_is_its_pictures(folder):
    group, files = as_picture(["0.png", "1.png", Image.open("2.png")]), as_picture(["0.png", "1.png"])
    assert len(group.open().images) == 3
    (data, sha256), opened = files.read(), files.open()
    assert data == [("0.png", PICTURES[0]), ("1.png", PICTURES[1])]
    each = "".join(hashlib.sha256(data).hexdigest() for data in PICTURES[:2])
    assert sha256 == opened.sha256 == files.opened(data).sha256 == hashlib.sha256(each.encode()).hexdigest()
    assert opened.images == tuple(as_picture(name).open().image for name in ("0.png", "1.png"))
    assert files.name_in(folder.parent) == f"{folder.name}/0.png | {folder.name}/1.png"
    assert files.images("x/0.png | x/1.png") == ["x/0.png", "x/1.png"]
    assert files.is_here() is True
    turned = as_picture(["1.png", "0.png"])
    assert turned.identity != files.identity
    assert turned.read()[1] != sha256


def test_the_name_of_a_group_leads_to_its_pictures(folder):
    group = recorded("0.png | 1.png", folder)
    assert [source.location for source in group.sources] == [f"{folder}/0.png", f"{folder}/1.png"]
    (folder / "0.png | 1.png").write_bytes(PICTURES[2])
    assert content(recorded("0.png | 1.png", folder)) == PICTURES[2]  # a file of this name
    away = recorded("https://a.org/x.png | s3://b/y.png", folder)
    assert [source.location for source in away.sources] == ["https://a.org/x.png", "s3://b/y.png"]


def test_pixels_are_counted_together_before_any_is_decoded(folder, monkeypatch):
    """Small files of many pixels: a group that would fill the memory is refused by its headers."""
    Image.fromarray(np.zeros((6000, 6000), np.uint8)).save("large.png")
    alone, many = as_picture("large.png"), as_picture(["large.png"] * 8)
    with pytest.raises(HugePictureError, match="8 pictures have 288,000,000 pixels together, expected at most 268,435"):
        many.pixels(many.files())
    monkeypatch.setattr(picture_module, "MOST_PIXELS", 10)
    assert alone.pixels(alone.files()) == 36_000_000  # the limit is for groups


# --- text files of pictures whose names are alike

ALIKE = ["hero.jpg", "hero.jpg.png", "p.jpg", "p.png", "q.png"]
OWN = {"hero.txt": "hero.jpg", "hero.jpg.png.txt": "hero.jpg.png", "p.txt": "p.jpg", "p.png.txt": "p.png"}
OWN |= {"q.txt": "q.png"}


@pytest.fixture
def alike(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ALIKE:
        Image.new("RGB", (8, 8)).save(tmp_path / name, "PNG")
    return tmp_path


@pytest.mark.parametrize("tree", [None, Path("tree")])
def test_a_text_file_does_not_depend_on_which_pictures_a_run_is_about(alike, tree):
    """So the parts of `--shard` never write one file, and a picture alone does not replace the text of another."""
    places = {}
    for picture in find_pictures(["."]):
        files = Sidecars([picture], output_dir=tree)
        places[files.place(picture).name] = picture.relative
    assert places == OWN
    together = find_pictures(["."])
    files = Sidecars(together, output_dir=tree)
    assert {files.place(picture).name: picture.relative for picture in together} == OWN


def test_a_text_file_that_was_written_is_the_one_that_is_read(alike):
    pictures = find_pictures(["."])
    files = Sidecars(pictures)
    for picture in pictures:
        files.replace(picture, picture.relative)
    found = find_captions(".").pictures
    assert [picture.caption for picture in found] == ALIKE
    assert [picture.columns()["txt"] for picture in find_pictures(["."])] == ALIKE


def test_the_text_of_another_picture_is_not_read(alike):
    Path("hero.jpg.txt").write_text("of hero.jpg", encoding="utf-8")
    assert [(each.relative, each.caption) for each in find_captions(".").pictures] == [("hero.jpg", "of hero.jpg")]
