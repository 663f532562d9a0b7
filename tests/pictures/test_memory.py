"""Memory for pictures: decoders take no more than is said, what does not fit waits, and shortage is no damage."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading

import numpy as np
import pytest
from PIL import Image
from skimage import data

from sira_cli.errors import HugePictureError, PictureMemoryError
from sira_cli.pictures import opening
from sira_cli.pictures.opening import decode_picture, picture_size

SIDE = 2200
FORMATS = {
    **{f"{mode}.png": {"compress_level": 1} for mode in ("RGB", "RGBA", "LA", "P", "1")},
    "RGB.jpg": {"progressive": True, "subsampling": 0},
    "RGBA.webp": {"method": 0, "quality": 50},
    "RGB.webp": {"method": 0, "quality": 50},
    "RGBA.avif": {"speed": 10, "subsampling": "4:4:4"},
    "RGBA.heic": {"quality": 60, "chroma": 444},
    "RGB.heic": {"quality": 60},
    "RGBA.jp2": {},
    "RGB.jp2": {},
    "RGBA.tif": {"compression": "tiff_deflate", "tiffinfo": {278: SIDE}},  # one strip
    "F.tif": {},
    "P.gif": {},
    "RGB.bmp": {},
}


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process can be set back on Linux only")
def test_decoders_take_no_more_memory_than_is_said_of_them(tmp_path):
    """Measured in a process of its own, with the peak of its resident memory set back before each picture."""
    grey = np.add.outer(np.arange(SIDE), np.arange(SIDE)).astype(np.uint8)
    photo = Image.fromarray(np.stack([grey, grey.T[::-1], 255 - grey], -1))
    photo.putalpha(Image.fromarray(grey))
    opening.endings()  # registers HEIF
    for name, options in FORMATS.items():
        photo.convert("RGB").convert(name.partition(".")[0]).save(tmp_path / name, **options)
    script = f"""
import json, sys
from pathlib import Path
from sira_cli.pictures.opening import _needed, decode_picture, give_back, opened_header

def resident(field):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field))

found = {{}}
for name in {[*FORMATS]!r}:
    data = (Path({str(tmp_path)!r}) / name).read_bytes()
    decode_picture(name, data)
    give_back()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    decode_picture(name, data)
    found[name] = [resident("VmHWM") - before, _needed(opened_header(name, data))]
print(json.dumps(found))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for name, (taken, said) in json.loads(run.stdout).items():
        strips = 24 * 2**20  # bytes that do not grow with the picture
        assert SIDE * SIDE * 4 < taken < said + strips, name


def test_the_largest_picture_of_pillow_fits():
    assert opening.MEMORY.size >= 2 * Image.MAX_IMAGE_PIXELS * opening._USUAL


@pytest.mark.parametrize(("kind", "each"), [("WEBP", 17), ("AVIF", 19), ("JPEG2000", 25), ("HEIF", 13), ("PNG", 10)])
def test_a_picture_whose_decoder_takes_too_much_is_refused_with_the_numbers(monkeypatch, kind, each):
    """The memory that there may be is lowered, so that a picture of 100 x 90 is too large."""
    content = encoded(Image.new("RGB", (100, 90)), kind)
    monkeypatch.setattr(opening, "MEMORY", opening.Memory(9000 * each))
    assert picture_size("x", content) == (100, 90)
    monkeypatch.setattr(opening, "MEMORY", opening.Memory(9000 * each - 1))
    for read in (picture_size, decode_picture):
        with pytest.raises(HugePictureError, match=f"x: has 9,000 pixels, expected at most 8,999, because {kind}"):
            read("x", content)


def test_samples_of_16_bits_in_a_tiff_count(monkeypatch):
    tiff = Image.open(io.BytesIO(encoded(Image.new("RGBA", (10, 10)), "TIFF")))
    tiff.tag_v2[258] = (16, 16, 16, 16)
    assert opening._needed(tiff) == 100 * 13


@pytest.mark.parametrize(("size", "good"), [((65_535, 1), True), ((1, 65_536), False)])
def test_the_longest_side(size, good):
    content = encoded(Image.new("L", size))
    if good:
        assert picture_size("x", content) == size
    else:
        with pytest.raises(HugePictureError, match="x: has 1 x 65,536 pixels, expected sides of at most 65,535"):
            picture_size("x", content)


def test_what_does_not_fit_waits_and_the_first_comes_first():
    shared = opening.Memory(10)
    order: list[str] = []
    begun = threading.Event()

    def take(name: str, needed: int) -> None:
        begun.set()
        with shared.taken(needed):
            order.append(name)

    with shared.taken(4):
        threads = []
        for name, needed in (("all", 1000), ("small", 1)):  # the second one would fit, but came later
            begun.clear()
            thread = threading.Thread(target=take, args=(name, needed))
            thread.start()
            begun.wait()
            thread.join(0.1)
            threads.append(thread)
        assert order == []
    for thread in threads:
        thread.join()
    assert order == ["all", "small"]


@pytest.mark.parametrize("times", [1, 2])
def test_where_memory_is_short_a_picture_is_tried_alone_and_then_called_good(monkeypatch, times):
    """The shortage is made up: here it would end the machine first."""
    photo = Image.fromarray(data.astronaut())
    left = [MemoryError] * times

    in_rgb = opening.in_rgb

    def short(image: Image.Image) -> Image.Image:
        if left:
            raise left.pop()
        return in_rgb(image)

    monkeypatch.setattr(opening, "in_rgb", short)
    if times == 1:
        assert decode_picture("x", encoded(photo))[0].tobytes() == photo.tobytes()
    else:
        with pytest.raises(PictureMemoryError, match="x: memory does not suffice to decode it: it may take"):
            decode_picture("x", encoded(photo))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "CMYK", "I;16", "F"])
@pytest.mark.parametrize("size", [(301, 203), (200, 307)])
def test_strips_give_the_picture_that_the_whole_gives(monkeypatch, mode, size):
    """Pillow's own reduction of the whole picture, and its own composition, are the reference."""
    image = Image.fromarray(data.astronaut()).resize(size)
    if mode == "RGBA":
        image.putalpha(image.convert("L"))
    image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257) if mode == "I;16" else image
    image = image if mode == "I;16" else image.convert(mode)
    monkeypatch.setattr(opening, "BOUND", size[0] * size[1] // 5)
    whole = image.resize((size[0] // 3, size[1] // 3), Image.Resampling.BOX)
    monkeypatch.setattr(opening, "_STRIP", 7 * size[0])
    found = opening.reduced(image)
    assert (found.mode, found.size) == (whole.mode, whole.size)
    differences = np.abs(np.asarray(found, float) - np.asarray(whole, float))
    # Where the edge of a row halves a pixel, either row may have it: two rows of 102 differ.
    assert (differences > (256 if mode == "I;16" else 1)).mean() < 0.02
    if mode == "RGBA":
        white = Image.new("RGBA", whole.size, (255, 255, 255, 255))
        assert opening.in_rgb(whole).tobytes() == Image.alpha_composite(white, whole).convert("RGB").tobytes()
