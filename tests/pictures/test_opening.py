"""Pictures as a viewer would show them, or one line that says what is wrong; and how much memory that takes."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from skimage import data

from sira_cli.errors import HugePictureError, PictureError, PictureMemoryError, SettingsError
from sira_cli.pictures import opening
from sira_cli.pictures.find import find_pictures
from sira_cli.pictures.opening import BOUND, decode_picture, picture_size
from sira_cli.pictures.sources import as_picture

KINDS = (*(f"RGB.{each}" for each in ("png", "bmp", "tiff", "gif", "jpg", "webp", "avif", "ppm")), "CMYK.jpg", "L.png")
RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
PHOTO = Image.fromarray(data.astronaut())
SMALL = PHOTO.resize((96, 64))


def save(image: Image.Image, path: Path, **options) -> Path:
    image.save(path, **options)
    return path


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    opening.endings()  # registers HEIF
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def difference(one: Image.Image, other: Image.Image) -> float:
    return float(np.abs(np.asarray(one, dtype=float) - np.asarray(other, dtype=float)).mean())


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def error(source) -> str:
    with pytest.raises(PictureError) as raised:
        as_picture(source).open()
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("kind", KINDS)
def test_formats_and_modes(tmp_path, kind):
    made = SMALL.convert(kind.partition(".")[0])
    image = as_picture(save(made, tmp_path / kind)).open().image
    assert (image.mode, image.size) == ("RGB", SMALL.size)
    assert difference(image, made.convert("RGB")) < 12  # lossy formats and palettes come near, others are equal


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied_once(tmp_path, orientation):
    """HEIF has transforms of its own besides EXIF, and writers set both."""
    corners = Image.new("RGB", (40, 20), WHITE)
    for box, colour in [((0, 0, 10, 10), RED), ((30, 0, 40, 10), GREEN), ((0, 10, 10, 20), BLUE)]:
        corners.paste(colour, box)
    undo = {2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM}
    undo |= {5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE}
    undo |= {8: Image.Transpose.ROTATE_270}
    stored = corners.transpose(undo[orientation]) if orientation in undo else corners
    picture = as_picture(save(stored, tmp_path / "turned.png", exif=turned(orientation))).open()
    assert difference(picture.image, corners) == 0
    image, exif = PHOTO.crop((0, 0, 300, 200)), turned(orientation).tobytes()
    heic, jpeg = (decode_picture("x", encoded(image, kind, quality=95, exif=exif))[0] for kind in ("HEIF", "JPEG"))
    assert heic.size == jpeg.size
    assert difference(heic, jpeg) < 3


def test_transparency_is_laid_on_white(tmp_path):
    """Half transparent red is pink, and a palette may have a transparent colour."""
    image = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (0, 0, 4, 8))
    for made in (image, image.convert("LA"), image.quantize(8)):
        pixels = as_picture(save(made, tmp_path / "see-through.png")).open().image
        assert (pixels.getpixel((7, 4)), pixels.getpixel((1, 4)) == WHITE) == (WHITE, False)
    path = save(Image.new("RGBA", (4, 4), (255, 0, 0, 128)), tmp_path / "half.png")
    assert as_picture(path).open().image.getpixel((0, 0)) == (255, 127, 127)
    image = Image.new("P", (4, 4), 1)
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.putpixel((0, 0), 0)
    pixels = as_picture(save(image, tmp_path / "key.gif", transparency=1)).open().image
    assert (pixels.getpixel((0, 0)), pixels.getpixel((3, 3))) == (RED, WHITE)


def test_deep_samples_keep_their_brightness(tmp_path):
    deep = [(np.uint16, 65535, "png"), (np.uint16, 65535, "tiff")]
    deep += [(np.float32, white, "tiff") for white in (1.0, 255.0, 65535.0)]
    for kind, white, suffix in deep:
        ramp = np.linspace(0, white, 256, dtype=kind).reshape(16, 16)
        image = as_picture(save(Image.fromarray(ramp), tmp_path / f"deep.{suffix}")).open().image
        assert np.abs(np.asarray(image)[..., 0].astype(int) - np.arange(256).reshape(16, 16)).max() <= 1


def test_files_that_are_no_pictures(tmp_path):
    """PostScript is not handed to an interpreter."""
    unknown = "is not a picture that Pillow can read; convert it to PNG or JPEG"
    files = {"empty.jpg": (b"", "is empty (0 bytes)"), "notes.jpg": (b"not a picture", unknown)}
    files["drawing.eps"] = (b"%!PS-Adobe-3.0 EPSF-3.0", unknown)
    files["raw.NEF"] = (encoded(SMALL), "is a camera's RAW file, which is not read: convert it to JPEG")
    for name, (content, message) in files.items():
        (tmp_path / name).write_bytes(content)
        assert error(tmp_path / name) == f"{tmp_path / name}: {message}"
    assert error(tmp_path / "nowhere.jpg").endswith("no such file")
    assert error(tmp_path).endswith("is a folder, expected a picture")
    assert error("/dev/zero") == "/dev/zero: is not a regular file"
    for suffix in ("jpg", "png", "webp"):
        path = save(SMALL, tmp_path / f"cut.{suffix}")
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        assert error(path).startswith(f"{path}: is damaged: ")


def test_of_an_animation_the_first_frame_whatever_its_name(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    for suffix in ("gif", "webp", "png"):
        path = tmp_path / f"moving.{suffix}"
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=50)
        for name in ("wrong.jpg", os.fsdecode(b"a'b\"c\n\xff.png")):
            path = path.rename(tmp_path / name)
            assert difference(as_picture(path).open().image, frames[0]) < 3


def test_large_pictures_and_bombs(tmp_path):
    """13 KB would unfold to 600 megapixels; 95 are above Pillow's warning, and below its limit."""
    path = save(Image.new("1", (30000, 20000)), tmp_path / "bomb.png", optimize=True)
    assert path.stat().st_size < 100_000
    assert "decompression bomb" in error(path)
    path = save(Image.new("L", (10000, 9500)), tmp_path / "large.png")
    assert as_picture(path).open().image.size == (5000, 4750)
    assert BOUND / 4 >= 4096 * 4096  # Qwen3-VL, which reads most, reads so many pixels


# --- pictures of more pixels than the bound, which is lowered


@pytest.mark.parametrize("suffix", ["png", "jpg", "tiff"])
def test_a_giant_picture_is_reduced_and_an_ordinary_one_is_not(tmp_path, monkeypatch, suffix):
    path = save(SMALL, tmp_path / f"photo.{suffix}", exif=turned(6))
    whole = as_picture(path).open().image
    assert whole.size == (64, 96)
    monkeypatch.setattr(opening, "BOUND", whole.width * whole.height)
    assert as_picture(path).open().image.tobytes() == whole.tobytes()
    for bound, factor in ((whole.width * whole.height - 1, 2), (600, 4)):
        monkeypatch.setattr(opening, "BOUND", bound)
        reduced = as_picture(path).open().image
        assert reduced.size == (64 // factor, 96 // factor)
        assert difference(reduced, whole.reduce(factor)) < (2 if suffix == "jpg" else 0.5)


@pytest.mark.parametrize("mode", ["1", "P", "L", "LA", "RGB", "RGBA", "CMYK", "I;16", "I", "F"])
def test_a_giant_picture_of_any_kind_is_reduced_strip_by_strip(tmp_path, monkeypatch, mode):
    """As Pillow reduces the whole; a strip has 7 rows, so that edges of strips lie inside."""
    monkeypatch.setattr(opening, "_STRIP", 7 * 96)
    image = Image.fromarray(np.asarray(SMALL.convert("L")).astype(np.uint16) * 257) if mode == "I;16" else None
    path = save(image or SMALL.convert(mode), tmp_path / "photo.tiff")
    whole = as_picture(path).open().image
    monkeypatch.setattr(opening, "BOUND", 2000)
    reduced = as_picture(path).open().image
    assert (reduced.mode, reduced.size) == ("RGB", (48, 32))
    assert difference(reduced, whole.reduce(2)) < 3


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process begins with its parent's peak of memory")
def test_a_giant_picture_takes_no_giant_memory(tmp_path):
    """12,000 x 12,000 pixels."""
    path = tmp_path / "giant.png"
    script = f"""
from pathlib import Path
from sira_cli.pictures.sources import as_picture
size = as_picture({str(path)!r}).open().image.size
lines = Path("/proc/self/status").read_text().splitlines()
print(size, next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")))
"""
    save(Image.new("RGBA", (12_000, 12_000)), path, compress_level=1)
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    size, _, peak = run.stdout.rpartition(" ")
    assert size == "(6000, 6000)"
    assert int(peak) < 9 * 12_000**2


# --- memory: decoders take no more than is said, what does not fit waits, and shortage is no damage

SIDE = 2200
FORMATS = {
    **{f"{mode}.png": {"compress_level": 1} for mode in ("RGB", "RGBA", "LA", "P", "1")},
    **{f"{mode}.webp": {"method": 0, "quality": 50} for mode in ("RGB", "RGBA")},
    **{name: {} for name in ("RGBA.jp2", "RGB.jp2", "F.tif", "P.gif", "RGB.bmp")},
    "RGB.jpg": {"progressive": True, "subsampling": 0},
    "RGBA.avif": {"speed": 10, "subsampling": "4:4:4"},
    "RGBA.heic": {"quality": 60, "chroma": 444},
    "RGB.heic": {"quality": 60},
    "RGBA.tif": {"compression": "tiff_deflate", "tiffinfo": {278: SIDE}},  # one strip
}


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


@pytest.mark.parametrize(("kind", "each"), [("WEBP", 17), ("AVIF", 19), ("JPEG2000", 25), ("HEIF", 13), ("PNG", 10)])
def test_a_picture_whose_decoder_takes_too_much_is_refused_with_the_numbers(monkeypatch, kind, each):
    """The memory that there may be is lowered, so that a picture of 100 x 90 is too large."""
    assert opening.MEMORY.size >= 2 * Image.MAX_IMAGE_PIXELS * opening._USUAL  # the largest that Pillow opens
    content = encoded(Image.new("RGB", (100, 90)), kind)
    monkeypatch.setattr(opening, "MEMORY", opening.Memory(9000 * each))
    assert picture_size("x", content) == (100, 90)
    monkeypatch.setattr(opening, "MEMORY", opening.Memory(9000 * each - 1))
    for read in (picture_size, decode_picture):
        with pytest.raises(HugePictureError, match=f"x: has 9,000 pixels, expected at most 8,999 of {kind}: scale it"):
            read("x", content)


def test_samples_of_16_bits_in_a_tiff_count_and_the_longest_side():
    tiff = Image.open(io.BytesIO(encoded(Image.new("RGBA", (10, 10)), "TIFF")))
    tiff.tag_v2[258] = (16, 16, 16, 16)
    assert opening._needed(tiff) == 100 * 13
    assert picture_size("x", encoded(Image.new("L", (65_535, 1)))) == (65_535, 1)
    with pytest.raises(HugePictureError, match="x: has 1 x 65,536 pixels, expected sides of at most 65,535"):
        picture_size("x", encoded(Image.new("L", (1, 65_536))))


def test_what_does_not_fit_waits_and_the_first_comes_first():
    shared, order, begun, threads = opening.Memory(10), [], threading.Event(), []

    def take(name: str, needed: int) -> None:
        begun.set()
        with shared.taken(needed):
            order.append(name)

    with shared.taken(4):
        for name, needed in (("all", 1000), ("small", 1)):  # the second one would fit, but came later
            begun.clear()
            threads.append(threading.Thread(target=take, args=(name, needed)))
            threads[-1].start()
            begun.wait()
            threads[-1].join(0.1)
        assert order == []
    for thread in threads:
        thread.join()
    assert order == ["all", "small"]


@pytest.mark.parametrize("times", [1, 2])
def test_where_memory_is_short_a_picture_is_tried_alone_and_then_called_good(monkeypatch, times):
    """The shortage is made up: here it would end the machine first."""
    left, in_rgb = [MemoryError] * times, opening.in_rgb

    def short(image: Image.Image) -> Image.Image:
        if left:
            raise left.pop()
        return in_rgb(image)

    monkeypatch.setattr(opening, "in_rgb", short)
    if times == 1:
        assert decode_picture("x", encoded(PHOTO))[0].tobytes() == PHOTO.tobytes()
    else:
        with pytest.raises(PictureMemoryError, match="x: memory does not suffice to decode it: it may take"):
            decode_picture("x", encoded(PHOTO))


# --- HEIC from phones (extra `heif`)


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


def test_without_the_extra_a_message_names_it(without_heif, tmp_path):
    content = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
    with pytest.raises(PictureError, match=r"x: is not a picture that Pillow can read; .*pip install .*\[heif\]'"):
        decode_picture("x", content)
    (tmp_path / "a.HEIC").touch()
    (tmp_path / "b.jxl").touch()
    expected = r"no pictures in this folder, but 1 \.heic \(.*pip install .*\[heif\]'\), 1 \.jxl: these formats"
    with pytest.raises(SettingsError, match=expected):
        find_pictures([str(tmp_path)])


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
    assert difference(image, PHOTO) < 3
    image, warnings = decode_picture("x", encoded(Image.new("RGBA", (64, 64), (255, 0, 0, 0)), "HEIF"))
    assert (image.getpixel((32, 32)), len(warnings)) == (WHITE, 1)
    burst = pillow_heif.HeifFile()
    for colour in ("red", "lime", "blue"):
        burst.add_from_pillow(Image.new("RGB", (64, 64), colour))
    burst.save(tmp_path / "burst.heic", primary_index=1, quality=95)
    assert decode_picture("x", (tmp_path / "burst.heic").read_bytes())[0].getpixel((32, 32))[1] > 240


def test_damaged_heic_is_an_error_of_its_picture():
    """200 copies with up to 20 bytes of the head changed, in which a format says what it holds; half are cut off."""
    draw, good, refused = random.Random(0), encoded(PHOTO.resize((128, 128)), "HEIF", quality=95), 0
    for number in range(200):
        content = bytearray(good[: draw.randrange(len(good))] if number % 2 else good)
        for _ in range(draw.randint(0, 20) if content else 0):
            content[draw.randrange(min(600, len(content)))] = draw.randrange(256)
        try:
            decode_picture("x", bytes(content))
        except PictureError as error:
            refused += str(error).startswith("x: ")
    assert refused > 100
