"""Camera RAW files: their preview is the picture, upright, wherever pictures are."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from skimage import data

from sira_cli import PictureError, SettingsError
from sira_cli.data.xmp.facts import fact
from sira_cli.data.xmp.metadata import Metadata
from sira_cli.pictures import opening, raw
from sira_cli.pictures.find import find_pictures
from sira_cli.pictures.opening import decode_picture, picture_size
from tests.pictures.test_left_out import encoded
from tests.support.damaged import damaged
from tests.support.raw import dng

PHOTO = Image.fromarray(data.astronaut()).resize((600, 400))


@pytest.fixture
def without_raw(monkeypatch):
    """As if the extra was missing."""
    caches = (opening.endings, raw.can_read_raw)
    monkeypatch.setattr(raw.importlib.util, "find_spec", lambda name: None)
    for cache in caches:
        cache.cache_clear()
    yield
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_the_preview_is_shown_as_the_same_jpeg(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    expected, _ = decode_picture("x", encoded(PHOTO, "JPEG", exif=exif.tobytes()))
    found, warnings = decode_picture("a.DNG", dng(PHOTO, orientation))
    assert (found.size, warnings) == (expected.size, ())
    assert np.array_equal(np.asarray(found), np.asarray(expected))


def test_it_is_read_wherever_pictures_are_and_its_own_metadata_are_facts(tmp_path):
    content = dng(PHOTO)
    (tmp_path / "a.nef").write_bytes(content)
    for place in (tmp_path / "a.nef", tmp_path):
        (picture,) = find_pictures([str(place)])
        assert picture.open().image.size == (600, 400)
    (picture,) = find_pictures([str(tmp_path / "a.nef")])
    assert fact(Metadata(picture), "exif.Copyright") == "Anna"


def test_a_stamp_is_no_picture():
    with pytest.raises(PictureError, match=r"a\.dng: its preview has only 160 x 120 pixels; convert it to JPEG"):
        picture_size("a.dng", dng(PHOTO.resize((160, 120))))


def test_damaged_files_are_errors_of_their_pictures():
    refused = 0
    for content in damaged(dng(PHOTO), least=1):
        try:
            decode_picture("x.dng", content)
        except PictureError as error:
            refused += str(error).startswith("x.dng: ")
    assert refused > 100


def test_without_the_extra_messages_name_it(without_raw, tmp_path):
    (tmp_path / "a.cr3").write_bytes(dng(PHOTO))
    with pytest.raises(SettingsError, match=r"but 1 \.cr3 \(pip install 'sira-cli\[raw\]'\): these formats"):
        find_pictures([str(tmp_path)])
    with pytest.raises(PictureError, match=r"a\.cr3: is a camera's RAW file: pip install 'sira-cli\[raw\]'"):
        find_pictures([str(tmp_path / "a.cr3")])[0].open()
