"""Each kind of picture: where it is, what it is called in a record, where its text goes, how it is read; and groups."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
import os
import pickle
import sys
import unicodedata
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image

from sira_cli.errors import HugePictureError, PictureError, SettingsError
from sira_cli.pictures import picture as picture_module
from sira_cli.pictures.find import check_images, find_pictures
from sira_cli.pictures.names import as_text, from_text, joined, one_line, parted, public
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import FileSource, as_picture, located, recorded
from tests.support.shards import EXAMPLES, content

PICTURES = [path.read_bytes() for path in EXAMPLES[:3]]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, with 0.png, 1.png, 2.png, and sub/cat.png."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for number, data in enumerate(PICTURES):
        (tmp_path / f"{number}.png").write_bytes(data)
    (tmp_path / "sub" / "cat.png").write_bytes(PICTURES[0])
    return tmp_path


def kinds(picture: Picture) -> list[str]:
    return [type(source).__name__ for source in picture.sources]


def place(picture: Picture) -> tuple[bool | None, bool]:
    """Whether it is here, and whether its name means something else in another current folder."""
    return picture.is_here(), picture.address not in ("", picture.name_in(None))


def digest(*files: bytes) -> str:
    return hashlib.sha256("".join(hashlib.sha256(data).hexdigest() for data in files).encode()).hexdigest()


def test_a_file(folder):
    photo = folder / "sub" / "cat.png"
    picture = as_picture("./sub/cat.png")
    assert (kinds(picture), picture.identity, picture.address) == (["FileSource"], "sub/cat.png", str(photo))
    assert place(picture) == (True, True)
    seen = [picture.name_in(each) for each in (None, folder / "sub", folder / "other")]
    assert seen == ["./sub/cat.png", "cat.png", "../sub/cat.png"]
    assert picture.text_file(".txt") == picture.mirrored(".txt") == Path("sub/cat.txt")
    assert content(picture) == photo.read_bytes()
    assert as_picture(photo) == Picture((FileSource(str(photo), str(photo)),))
    assert place(as_picture(photo)) == (True, False)
    (folder / "link.png").symlink_to("none.png")
    for name, here in (("none.png", False), ("link.png", None)):  # what it leads to may be there again tomorrow
        gone = as_picture(name)
        assert gone.is_here() is here
        with pytest.raises(PictureError, match="no such file"):
            gone.read()


def test_an_object_in_a_store(folder, monkeypatch):
    """The store is in memory: no other can exist here."""
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    fsspec.filesystem("memory").pipe("/key:secret@bucket/sub/cat.png", PICTURES[0])
    picture, shown = as_picture("memory://key:secret@bucket/sub/cat.png"), "memory://bucket/sub/cat.png"
    assert kinds(picture) == ["StoreSource"]
    assert (picture.address, picture.label, picture.name_in(folder)) == (shown, shown, shown)
    assert place(picture) == (None, False)
    with pytest.raises(SettingsError, match=rf"^{shown}: texts are not written to a store"):
        picture.text_file(".txt")
    assert content(picture) == PICTURES[0]
    with pytest.raises(PictureError, match=r"^memory://bucket/sub/dog\.png: no such file"):
        as_picture("memory://key:secret@bucket/sub/dog.png").read()
    assert public("s3://me:secret@bucket/a.png?endpoint_override=x") == "s3://bucket/a.png"
    assert one_line("s3://me:secret@bucket/é.png") == "s3://bucket/é.png"


def test_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PICTURES[0]), encoding="utf-8"))
    (picture,) = find_pictures(["-"])
    monkeypatch.setattr(sys, "stdin", None)  # from now on nobody needs it
    assert content(picture) == content(picture) == PICTURES[0]
    assert picture.open().sha256 == hashlib.sha256(PICTURES[0]).hexdigest()
    assert (picture.address, picture.name_in(Path()), picture.label) == ("", "-", "stdin")
    for refuse in (picture.text_file, picture.mirrored):
        with pytest.raises(SettingsError, match="stdin has no place for a text file: leave out `sidecar=`"):
            refuse(".txt")


def test_what_a_program_holds_in_memory(folder):
    image = Image.open(folder / "0.png").convert("RGB")
    held, streamed = as_picture(image), as_picture(io.BytesIO(PICTURES[0]))
    for picture, data in ((held, image.tobytes()), (streamed, PICTURES[0])):
        opened = picture.open()
        assert (opened.image.tobytes(), opened.sha256) == (image.tobytes(), hashlib.sha256(data).hexdigest())
        assert picture.address == ""
        with pytest.raises(SettingsError, match="has no place for a text file"):
            picture.text_file(".txt")
    assert as_picture(held) is held


# --- names


def test_no_two_names_share_a_text():
    """All names of up to five pieces out of those that could be confused; ordinary ones stand for themselves."""
    for name in ("a.jpg", "sub/ü ö.png", "new\nline.png", r"back\slash.png", r"C:\xylo\x7f.png", "中文.jpg", "\u2028"):
        assert as_text(name) == from_text(name) == name
    pieces = (b"\\", b"\xff", b"x", b"f", b"ff", "é".encode())
    names = {os.fsdecode(b"".join(each)) for size in range(1, 6) for each in itertools.product(pieces, repeat=size)}
    texts = {as_text(name) for name in names}
    assert len(texts) == len(names)
    for name in names:
        as_text(name).encode()  # any JSON reader takes it
        assert from_text(as_text(name)) == name


def test_a_name_in_the_other_unicode_form_is_found(tmp_path):
    for form, other in (("NFC", "NFD"), ("NFD", "NFC")):
        place = tmp_path / unicodedata.normalize(form, f"Fotos é {form}")
        place.mkdir()
        (place / unicodedata.normalize(form, "Café.png")).touch()
        folder, name = (unicodedata.normalize(other, each) for each in (str(place), "Café.png"))
        assert not located("nowhere/é").is_here()
        assert all(one.is_here() for one in (located(f"{folder}/{name}"), recorded(name, place)))
        assert [one.is_here() for one in find_pictures([folder])] == [True]
        check_images(place, [name])


def test_a_picture_as_base64_is_no_name(sira, tmp_path, monkeypatch):
    """Tables of benchmarks hold pictures so: they are read as data sets, and refused in a line where names belong."""
    monkeypatch.chdir(tmp_path)
    rows = [{"image": base64.b64encode(data).decode(), "text": "Is there a dog?"} for data in PICTURES]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for command in (("check", "q.jsonl"), ("ask", "--questions", "q.jsonl"), ("caption", "--files-from", "q.jsonl")):
        code, _, err = sira(*command, "-p", "demo")
        assert (code, "q.jsonl: line 1: image holds a picture as base64, expected its name" in err) == (2, True)
        assert len(err) < 300
    assert [content(picture) for picture in find_pictures(["q.jsonl"])] == PICTURES


def test_long_names_are_short_in_messages_and_those_of_base64_also_in_records():
    names = ["A" * 5000 + each for each in ("A", "B")]
    assert len(one_line(names[0])) == 200
    assert len({as_text(name) for name in names}) == 2
    assert max(len(as_text(name)) for name in names) < 200
    path = "folder.of/" + "sub/" * 100 + "a.jpg"
    assert as_text(path) == path  # leads to the picture
    assert (one_line(path)[:14], one_line(path)[-9:]) == ("folder.of/sub/", "sub/a.jpg")


# --- groups


def test_names_of_a_group_come_back():
    for names in (["a | b.jpg", "c|d.jpg"], ["\\", "|", "x"], ["a\\|b", "\\ | \\"], ["a.jpg"], ["s3://a/b", "-"]):
        assert parted(joined(names)) == names


def test_a_group_is_its_pictures(folder):
    group = as_picture(["0.png", "1.png", Image.open("2.png")])
    assert (kinds(group), len(group.open().images)) == (["FileSource", "FileSource", "MemorySource"], 3)
    files = as_picture(["0.png", "1.png"])
    (data, sha256), opened = files.read(), files.open()
    assert data == [("0.png", PICTURES[0]), ("1.png", PICTURES[1])]
    assert sha256 == opened.sha256 == files.opened(data).sha256 == digest(*PICTURES[:2])
    assert files.name_in(folder.parent) == f"{folder.name}/0.png | {folder.name}/1.png"
    assert files.images("x/0.png | x/1.png") == ["x/0.png", "x/1.png"]
    assert files.address == f"{folder}/0.png | {folder}/1.png"
    assert (files.file_size(), *place(files)) == (len(PICTURES[0] + PICTURES[1]), True, True)
    assert files.identity != as_picture(["1.png", "0.png"]).identity
    assert pickle.loads(pickle.dumps(files)) == files
    assert [image.tobytes() for image in opened.images] == [
        as_picture(source.location).open().image.tobytes() for source in files.sources
    ]
    assert as_picture(["0.png"] * 9).label == "0.png | 0.png | 0.png | 0.png and 5 more"
    for refuse in (files.text_file, files.mirrored):
        with pytest.raises(SettingsError, match=r"0\.png \| 1\.png: a text about several pictures is written as a rec"):
            refuse(".txt")


def test_the_name_of_a_group_leads_to_its_pictures(folder):
    group = recorded("0.png | 1.png", folder)
    assert [source.location for source in group.sources] == [f"{folder}/0.png", f"{folder}/1.png"]
    (folder / "0.png | 1.png").write_bytes(PICTURES[2])
    assert content(recorded("0.png | 1.png", folder)) == PICTURES[2]  # a file of this name
    text = group.known(caption="A dog.", number=2)
    assert text.images(text.name_in(folder)) == ["0.png", "1.png"]
    assert [name for name, _ in text.files()] == [f"{folder}/0.png", f"{folder}/1.png"]
    assert kinds(recorded("https://a.org/x.png | s3://b/y.png", folder)) == ["WebSource", "StoreSource"]


def test_pixels_are_counted_together_before_any_is_decoded(folder, monkeypatch):
    """Small files of many pixels: a group that would fill the memory is refused by its headers."""
    Image.fromarray(np.zeros((6000, 6000), np.uint8)).save("large.png")
    alone, seven, many = as_picture("large.png"), as_picture(["large.png"] * 7), as_picture(["large.png"] * 8)
    assert seven.pixels(seven.files()) == 7 * 36_000_000
    with pytest.raises(HugePictureError, match="8 pictures have 288,000,000 pixels together, expected at most 268,435"):
        many.pixels(many.files())
    monkeypatch.setattr(picture_module, "MOST_PIXELS", 10)
    assert alone.pixels(alone.files()) == 36_000_000  # the limit is for groups
