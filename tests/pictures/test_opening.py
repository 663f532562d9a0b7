"""Pictures as a viewer would show them, or one line that says what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from skimage import data

from sira_cli.errors import PictureError
from sira_cli.pictures.opening import BOUND
from sira_cli.pictures.sources import open_picture

KINDS = (*(f"RGB.{each}" for each in ("png", "bmp", "tiff", "gif", "jpg", "webp", "avif", "ppm")), "CMYK.jpg", "L.png")
RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    return Image.fromarray(data.astronaut()).resize((96, 64))


def save(image: Image.Image, path: Path, **options) -> Path:
    image.save(path, **options)
    return path


def difference(one: Image.Image, other: Image.Image) -> float:
    return float(np.abs(np.asarray(one, dtype=float) - np.asarray(other, dtype=float)).mean())


@pytest.mark.parametrize("kind", KINDS)
def test_formats_and_modes(photo, tmp_path, kind):
    made = photo.convert(kind.partition(".")[0])
    image = open_picture(save(made, tmp_path / kind)).image
    assert (image.mode, image.size) == ("RGB", photo.size)
    assert difference(image, made.convert("RGB")) < 12  # lossy formats and palettes come near, others are equal


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path, orientation):
    corners = Image.new("RGB", (40, 20), WHITE)
    for box, colour in [((0, 0, 10, 10), RED), ((30, 0, 40, 10), GREEN), ((0, 10, 10, 20), BLUE)]:
        corners.paste(colour, box)
    undo = {2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM}
    undo |= {5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE}
    undo |= {8: Image.Transpose.ROTATE_270}
    stored = corners.transpose(undo[orientation]) if orientation in undo else corners
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = open_picture(save(stored, tmp_path / "turned.png", exif=exif))
    assert difference(picture.image, corners) == 0


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_is_laid_on_white(tmp_path, mode):
    image = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (0, 0, 4, 8))
    image = image.convert(mode) if mode != "P" else image.quantize(8)
    pixels = open_picture(save(image, tmp_path / "see-through.png")).image
    assert pixels.getpixel((7, 4)) == WHITE
    assert pixels.getpixel((1, 4)) != WHITE


def test_half_transparent_red_is_pink_and_a_palette_may_have_a_transparent_colour(tmp_path):
    path = save(Image.new("RGBA", (4, 4), (255, 0, 0, 128)), tmp_path / "half.png")
    assert open_picture(path).image.getpixel((0, 0)) == (255, 127, 127)
    image = Image.new("P", (4, 4), 1)
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.putpixel((0, 0), 0)
    pixels = open_picture(save(image, tmp_path / "key.gif", transparency=1)).image
    assert (pixels.getpixel((0, 0)), pixels.getpixel((3, 3))) == (RED, WHITE)


@pytest.mark.parametrize(
    ("kind", "white", "suffix"),
    [
        *((np.uint16, 65535, suffix) for suffix in ("png", "tiff")),
        *((np.float32, white, "tiff") for white in (1.0, 255.0, 65535.0)),
    ],
)
def test_deep_samples_keep_their_brightness(tmp_path, kind, white, suffix):
    ramp = np.linspace(0, white, 256, dtype=kind).reshape(16, 16)
    image = open_picture(save(Image.fromarray(ramp), tmp_path / f"deep.{suffix}")).image
    assert np.abs(np.asarray(image)[..., 0].astype(int) - np.arange(256).reshape(16, 16)).max() <= 1


def error(source) -> str:
    with pytest.raises(PictureError) as raised:
        open_picture(source)
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_truncated(photo, tmp_path, suffix):
    path = save(photo, tmp_path / f"cut.{suffix}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert error(path).startswith(f"{path}: is damaged: ")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jpg", b"", "is empty (0 bytes)"),
        ("notes.jpg", b"not a picture", "is not a picture that Pillow can read; convert it to PNG or JPEG"),
        ("drawing.eps", b"%!PS-Adobe-3.0 EPSF-3.0", "is not a picture that Pillow can read; convert it to PNG or JPEG"),
    ],
)
def test_files_that_are_no_pictures(tmp_path, name, content, message):
    """PostScript is not handed to an interpreter."""
    (tmp_path / name).write_bytes(content)
    assert error(tmp_path / name) == f"{tmp_path / name}: {message}"
    assert error(tmp_path / "nowhere.jpg").endswith("no such file")
    assert error(tmp_path).endswith("is a folder, expected a picture")
    assert error("/dev/zero") == "/dev/zero: is not a regular file"


def test_of_an_animation_the_first_frame_whatever_its_name(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    for suffix in ("gif", "webp", "png"):
        path = tmp_path / f"moving.{suffix}"
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=50)
        for name in ("wrong.jpg", os.fsdecode(b"a'b\"c\n\xff.png")):
            path = path.rename(tmp_path / name)
            assert difference(open_picture(path).image, frames[0]) < 3


def test_a_decompression_bomb(tmp_path):
    """13 KB that would unfold to 600 megapixels."""
    path = save(Image.new("1", (30000, 20000)), tmp_path / "bomb.png", optimize=True)
    assert path.stat().st_size < 100_000
    assert "decompression bomb" in error(path)


def test_a_large_photograph_is_no_bomb(tmp_path):
    path = save(Image.new("L", (10000, 9500)), tmp_path / "large.png")  # above Pillow's warning, below its limit
    assert open_picture(path).image.size == (5000, 4750)
    assert BOUND / 4 >= 4096 * 4096  # Qwen3-VL, which reads most, reads so many pixels


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root and Windows may read everything")
def test_unreadable(photo, tmp_path):
    path = save(photo, tmp_path / "secret.png")
    path.chmod(0)
    assert "cannot be read: Permission denied" in error(path)


@pytest.mark.parametrize("suffix", ["png", "jpg", "tiff"])
def test_a_giant_picture_is_reduced_and_an_ordinary_one_is_not(photo, tmp_path, monkeypatch, suffix):
    """The bound is lowered, so that a photograph of 96 x 64 is a giant."""
    turned = Image.Exif()
    turned[0x0112] = 6
    path = save(photo, tmp_path / f"photo.{suffix}", exif=turned)
    whole = open_picture(path).image
    assert whole.size == (64, 96)
    monkeypatch.setattr("sira_cli.pictures.opening.BOUND", whole.width * whole.height)
    assert open_picture(path).image.tobytes() == whole.tobytes()
    for bound, factor in ((whole.width * whole.height - 1, 2), (600, 4)):
        monkeypatch.setattr("sira_cli.pictures.opening.BOUND", bound)
        reduced = open_picture(path).image
        assert reduced.size == (64 // factor, 96 // factor)
        assert difference(reduced, whole.reduce(factor)) < (2 if suffix == "jpg" else 0.5)


@pytest.mark.parametrize("mode", ["1", "P", "L", "LA", "RGBA", "CMYK", "I;16", "I", "F"])
def test_a_giant_picture_of_any_kind_is_reduced(photo, tmp_path, monkeypatch, mode):
    image = Image.fromarray(np.asarray(photo.convert("L")).astype(np.uint16) * 257) if mode == "I;16" else None
    path = save(image or photo.convert(mode), tmp_path / "photo.tiff")
    whole = open_picture(path).image
    monkeypatch.setattr("sira_cli.pictures.opening.BOUND", 2000)
    reduced = open_picture(path).image
    assert (reduced.mode, reduced.size) == ("RGB", (48, 32))
    assert difference(reduced, whole.reduce(2)) < 3


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process begins with its parent's peak of memory")
@pytest.mark.parametrize(
    ("mode", "suffix"),
    [
        pytest.param("I;16", "png", marks=pytest.mark.slow),
        pytest.param("RGB", "jpg", marks=pytest.mark.slow),
        ("RGBA", "png"),
    ],
)
def test_a_giant_picture_takes_no_giant_memory(tmp_path, mode, suffix):
    """12,000 x 12,000 pixels."""
    path = tmp_path / f"giant.{suffix}"
    script = f"""
from pathlib import Path
from sira_cli.pictures.sources import open_picture
size = open_picture({str(path)!r}).image.size
lines = Path("/proc/self/status").read_text().splitlines()
print(size, next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")))
"""
    save(Image.new(mode, (12_000, 12_000)), path, **({"compress_level": 1} if suffix == "png" else {}))
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    size, _, peak = run.stdout.rpartition(" ")
    assert size == "(6000, 6000)"
    assert int(peak) < 9 * 12_000**2
