"""Each kind of picture: where it is, what it is called in a record, where its text goes, how it is read."""

from __future__ import annotations

import hashlib
import io
import sys
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image

from sira_cli.errors import PictureError, SettingsError
from sira_cli.pictures.find import find_pictures
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import FileSource, MemorySource, StdinSource, StoreSource, as_picture


@pytest.fixture
def photo(photos, tmp_path, monkeypatch) -> Path:
    """A photograph at sub/cat.jpg below the current folder."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "cat.jpg").write_bytes(photos["chelsea"].read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path / "sub" / "cat.jpg"


def test_a_file(photo, tmp_path):
    picture = as_picture("./sub/cat.jpg")
    assert isinstance(picture.sources[0], FileSource)
    assert picture.identity == "sub/cat.jpg"
    assert picture.address == str(photo)
    assert (picture.is_here(), picture.is_missing(), picture.depends_on_folder) == (True, False, True)
    assert (picture.name_in(None), picture.name_in(tmp_path / "sub"), picture.name_in(tmp_path / "other")) == (
        "./sub/cat.jpg",
        "cat.jpg",
        "../sub/cat.jpg",
    )
    assert picture.text_file(".txt") == Path("sub/cat.txt")
    assert picture.mirrored(".txt") == Path("sub/cat.txt")
    assert picture.read() == photo.read_bytes()
    assert as_picture(photo) == Picture((FileSource(str(photo), str(photo)),))
    assert not as_picture(photo).depends_on_folder


def test_a_file_that_is_not_there(tmp_path):
    picture = as_picture(tmp_path / "none.jpg")
    assert (picture.is_here(), picture.is_missing()) == (False, True)
    (tmp_path / "link.jpg").symlink_to(tmp_path / "none.jpg")
    link = as_picture(tmp_path / "link.jpg")
    assert (link.is_here(), link.is_missing()) == (False, False)  # it may be there again tomorrow
    for each in (picture, link):
        with pytest.raises(PictureError, match="no such file"):
            each.read()


def test_an_object_in_a_store(photo, monkeypatch):
    """The store is in memory: no other can exist here."""
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    fsspec.filesystem("memory").pipe("/key:secret@bucket/sub/cat.jpg", photo.read_bytes())
    picture = as_picture("memory://key:secret@bucket/sub/cat.jpg")
    assert isinstance(picture.sources[0], StoreSource)
    shown = "memory://bucket/sub/cat.jpg"
    assert (picture.address, picture.shown, picture.name_in(photo.parent)) == (shown, shown, shown)
    assert (picture.is_here(), picture.is_missing(), picture.depends_on_folder) == (False, False, False)
    with pytest.raises(
        SettingsError, match=r"memory://bucket/sub/cat\.jpg: texts are not written to a store"
    ) as caught:
        picture.text_file(".txt")
    assert "secret" not in str(caught.value)
    assert picture.read() == photo.read_bytes()
    with pytest.raises(PictureError, match=r"memory://bucket/sub/dog\.jpg: no such file"):
        as_picture("memory://key:secret@bucket/sub/dog.jpg").read()


def test_stdin(photo, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(photo.read_bytes()), encoding="utf-8"))
    (picture,) = find_pictures(["-"])
    assert isinstance(picture.sources[0], StdinSource)
    monkeypatch.setattr(sys, "stdin", None)  # from now on nobody needs it
    assert picture.read() == picture.read() == photo.read_bytes()
    assert picture.open().sha256 == hashlib.sha256(photo.read_bytes()).hexdigest()
    assert (picture.address, picture.name_in(photo.parent)) == ("", "-")
    for place in (picture.text_file, picture.mirrored):
        with pytest.raises(SettingsError, match=r"'-' \(stdin\) has no place for a text file: leave out `sidecar=`"):
            place(".txt")


def test_what_a_program_holds_in_memory(photo):
    image = Image.open(photo).convert("RGB")
    held, streamed = as_picture(image), as_picture(io.BytesIO(photo.read_bytes()))
    for picture in (held, streamed):
        assert isinstance(picture.sources[0], MemorySource)
        assert picture.open().image.tobytes() == image.tobytes()
        assert picture.address == ""
        with pytest.raises(SettingsError, match="no text file can be written next to it"):
            picture.text_file(".txt")
    assert held.open().sha256 == hashlib.sha256(image.tobytes()).hexdigest()
    assert streamed.open().sha256 == hashlib.sha256(photo.read_bytes()).hexdigest()
    assert as_picture(held) is held
