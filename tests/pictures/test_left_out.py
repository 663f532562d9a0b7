"""Files that a run does not read are named, and HEIC from phones is read where the extra `heif` is installed."""

from __future__ import annotations

import io
import json
import shutil
import sys
import tarfile

import numpy as np
import pytest
from PIL import Image
from skimage import data

from sira_cli import PictureError, SettingsError
from sira_cli.pictures import opening
from sira_cli.pictures.find import find_pictures, left_out_message
from sira_cli.pictures.opening import decode_picture
from tests.support.damaged import damaged

PHOTO = Image.fromarray(data.astronaut())
FAST = ("-p", "demo", "--max-new-tokens", 3)
OTHERS = ("b.jxl", "c.WMV", "d.wmv", "notes.txt", "a.json", "Thumbs.db", ".DS_Store", "a.xmp", "list.csv")


def encoded(image: Image.Image, kind: str, **settings: object) -> bytes:
    opening.endings()  # registers HEIF
    file = io.BytesIO()
    image.save(file, kind, quality=95, **settings)
    return file.getvalue()


@pytest.fixture
def without_heif(monkeypatch):
    """As if the extra was missing: the import fails, and Pillow has not been told of the format."""
    caches = (opening._formats, opening.endings)
    opening.endings()
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.delitem(Image.OPEN, "HEIF")
    for cache in caches:
        cache.cache_clear()
    yield
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "photos"
    inside.mkdir()
    Image.new("RGB", (64, 64), "red").save(inside / "a.png")
    for name in OTHERS:
        (inside / name).write_bytes(b"\0")
    return inside


def test_a_run_names_what_it_left_out(sira, folder, tmp_path):
    (folder / "sub").mkdir()
    (folder / "sub" / "e.mpg").touch()
    (folder / "f.NEF").write_bytes((folder / "a.png").read_bytes())
    output = tmp_path / "captions.jsonl"
    counts = {".wmv": 2, ".jxl": 1, ".mpg": 1, ".nef": 1}
    code, _, err = sira("caption", folder, "-r", *FAST, "-o", output)
    assert (code, err.count("5 files were not read: 2 .wmv, 1 .jxl, 1 .mpg, 1 .nef\n")) == (0, 1)
    assert json.loads(output.with_suffix(".run.json").read_text())["left_out"] == counts
    code, _, err = sira("caption", folder / "a.png", *FAST)
    assert (code, "not read" in err) == (0, False)
    (folder / "a.txt").write_text("There is a cat.")
    output = tmp_path / "checks.jsonl"
    code, _, err = sira("check", folder, "-p", "demo", "-o", output)
    assert (code, err.count("4 files were not read: 2 .wmv, 1 .jxl, 1 .nef")) == (0, 1)
    assert json.loads(output.with_suffix(".run.json").read_text())["left_out"][".wmv"] == 2


def test_a_video_is_no_picture_and_the_way_to_its_frames_is_named(sira, folder):
    (folder / "e.MP4").touch()
    with pytest.raises(PictureError, match=r"e\.MP4: is a video, expected a picture: write its frames .* with ffmpeg"):
        decode_picture("e.MP4", b"\0")
    code, out, err = sira("caption", folder / "e.MP4", folder / "a.png", *FAST)
    assert (code, out.count("\n"), "e.MP4: is a video" in err) == (3, 1, True)


def test_folders_of_systems_are_left_out_and_subfolders_named(sira, folder, tmp_path):
    for name in ("@eaDir", "sub/$RECYCLE.BIN", "sub/Previews.lrdata", "sub/deep", "text"):
        (folder / name).mkdir(parents=True)
        shutil.copy(folder / "a.png", folder / name / ("a.png" if name != "text" else "a.md"))
    found = find_pictures([str(folder)], recursive=True)
    assert [picture.relative for picture in found] == ["a.png", "sub/deep/a.png"]
    said = "thumbnails and deleted files were left out: 1 $RECYCLE.BIN, 1 @eaDir, 1 Previews.lrdata"
    assert left_out_message(found.left_out) == f"3 files were not read: 2 .wmv, 1 .jxl; {said}"
    assert left_out_message(find_pictures([str(folder)]).left_out).endswith(
        "; 1 subfolder with pictures (-r includes them): sub"
    )
    assert len(find_pictures([f"{folder}/**/*.png"])) == 2
    assert len(find_pictures([f"{folder}/@eaDir/*.png"])) == 1
    code, out, _ = sira("caption", folder, "-r", "--exclude", "dee*", "--exclude", "x", *FAST, "--json")
    assert (code, out.count("\n"), "deep" in out) == (0, 1, False)
    assert "--exclude * leaves out all pictures" in sira("caption", folder, "--exclude", "*", *FAST)[2]


def test_a_folder_of_other_formats_says_so(without_heif, tmp_path):
    (tmp_path / "a.HEIC").touch()
    (tmp_path / "b.jxl").touch()
    expected = r"no pictures in this folder, but 1 \.heic \(.*pip install .*\[heif\]'\), 1 \.jxl: these formats"
    with pytest.raises(SettingsError, match=expected):
        find_pictures([str(tmp_path)])


# --- HEIF


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_heic_photo_is_shown_as_the_same_jpeg(orientation):
    """Upright once: HEIF has transforms of its own besides EXIF, and writers set both."""
    image, exif = PHOTO.crop((0, 0, 300, 200)), Image.Exif()
    exif[0x0112] = orientation
    heic, jpeg = (decode_picture("x", encoded(image, kind, exif=exif.tobytes()))[0] for kind in ("HEIF", "JPEG"))
    assert heic.size == jpeg.size
    assert np.abs(np.asarray(heic, dtype=float) - np.asarray(jpeg)).mean() < 3


def test_heic_is_read_wherever_pictures_are(tmp_path):
    content = encoded(PHOTO, "HEIF")
    (tmp_path / "a.heic").write_bytes(content)
    with tarfile.open(tmp_path / "b.tar", "w") as shard:
        shard.add(tmp_path / "a.heic", "1.heic")
    for place in (tmp_path / "a.heic", tmp_path, tmp_path / "b.tar"):
        (picture,) = find_pictures([str(place)])
        assert picture.open().image.size == (512, 512)


def test_ten_bits_transparency_and_the_primary_picture_of_several(tmp_path):
    import pillow_heif

    deep = (np.asarray(PHOTO, dtype=np.uint16) * 257).tobytes()
    pillow_heif.from_bytes("RGB;16", PHOTO.size, deep).save(tmp_path / "deep.heic", quality=95)
    image, _ = decode_picture("x", (tmp_path / "deep.heic").read_bytes())
    assert np.abs(np.asarray(image, dtype=float) - np.asarray(PHOTO)).mean() < 3
    image, warnings = decode_picture("x", encoded(Image.new("RGBA", (64, 64), (255, 0, 0, 0)), "HEIF"))
    assert (image.getpixel((32, 32)), len(warnings)) == ((255, 255, 255), 1)
    burst = pillow_heif.HeifFile()
    for colour in ("red", "lime", "blue"):
        burst.add_from_pillow(Image.new("RGB", (64, 64), colour))
    burst.save(tmp_path / "burst.heic", primary_index=1, quality=95)
    assert decode_picture("x", (tmp_path / "burst.heic").read_bytes())[0].getpixel((32, 32))[1] > 240


def test_damaged_heic_is_an_error_of_its_picture():
    refused = 0
    for content in damaged(encoded(PHOTO.resize((128, 128)), "HEIF"), least=0):
        try:
            decode_picture("x", content)
        except PictureError as error:
            refused += str(error).startswith("x: ")
    assert refused > 100


def test_without_the_extra_a_message_names_it(without_heif):
    content = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
    with pytest.raises(PictureError, match=r"x: is not a picture that Pillow can read; .*pip install .*\[heif\]'"):
        decode_picture("x", content)
