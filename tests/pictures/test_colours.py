"""Colour profiles: a picture reaches the model in sRGB, whatever colours its file has."""

from __future__ import annotations

import io
import struct
from base64 import b64decode

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageCms

from sira_cli.pictures import opening
from sira_cli.pictures.opening import decode_picture
from sira_cli.run.endpoint import data_url

SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
PROPHOTO = ((0.7977, 0.2880, 0.0), (0.1352, 0.7119, 0.0), (0.0313, 0.0001, 0.8249))  # X, Y, Z of red, green, blue
WHITE = (0.9642, 1.0, 0.8249)  # of D50
UNUSABLE = ("has a colour profile that cannot be applied: its colours were taken as sRGB",)
COLOURS = [(200, 60, 60), (60, 180, 90), (70, 90, 210), (128, 128, 128), (240, 220, 60), (20, 30, 40)]


def place(tag: bytes) -> int:
    """Where a tag's data begins in the profile of sRGB."""
    count = struct.unpack(">I", SRGB[128:132])[0]
    entries = [SRGB[132 + 12 * number :][:12] for number in range(count)]
    return next(struct.unpack(">I", entry[4:8])[0] for entry in entries if entry[:4] == tag)


def with_primaries(primaries) -> bytes:
    """The profile of sRGB with other red, green and blue."""
    profile = bytearray(SRGB)
    for tag, xyz in zip((b"rXYZ", b"gXYZ", b"bXYZ"), primaries, strict=True):
        start = place(tag) + 8
        profile[start : start + 12] = b"".join(fixed(value) for value in xyz)
    return bytes(profile)


def fixed(value: float) -> bytes:
    return struct.pack(">i", round(value * 65536))


def profile_of(space: bytes, kind: bytes, connection: bytes, tags: dict[bytes, bytes]) -> bytes:
    """A profile of a colour space with some tags."""
    body, table, start = b"", struct.pack(">I", len(tags)), 132 + 12 * len(tags)
    for name, data in tags.items():
        table += name + struct.pack(">II", start + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    head = struct.pack(">I4sI", start + len(body), b"lcms", 0x02400000) + kind + space + connection
    head += bytes(12) + b"acsp" + bytes(28) + b"".join(fixed(value) for value in WHITE)
    return head.ljust(128, b"\0") + table + body


def grey_profile(gamma: float) -> bytes:
    """Grey samples, of which light is a power."""
    white = b"XYZ \0\0\0\0" + b"".join(fixed(value) for value in WHITE)
    curve = b"curv\0\0\0\0" + struct.pack(">IH", 1, round(gamma * 256))
    return profile_of(b"GRAY", b"mntr", b"XYZ ", {b"wtpt": white, b"kTRC": curve})


def cmyk_profile() -> bytes:
    """Inks, of which black alone counts: lightness falls from 100 to 0."""
    table = b"mft1\0\0\0\0" + bytes([4, 3, 2, 0]) + b"".join(fixed(float(n in (0, 4, 8))) for n in range(9))
    table += bytes(range(256)) * 4
    table += b"".join(bytes([255 * (1 - node % 2), 128, 128]) for node in range(16))
    table += bytes(range(256)) * 3
    white = b"XYZ \0\0\0\0" + b"".join(fixed(value) for value in WHITE)
    return profile_of(b"CMYK", b"prtr", b"Lab ", {b"wtpt": white, b"A2B0": table})


def light(samples):
    """Light of samples of sRGB, by the standard's formula."""
    part = np.asarray(samples, dtype=float) / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def samples_of(linear):
    """Samples of sRGB for light."""
    linear = np.clip(linear, 0, 1)
    return 255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def in_srgb(samples):
    """Samples of ProPhoto's primaries in sRGB, by matrices."""
    own = np.array([struct.unpack(">3i", SRGB[place(tag) + 8 :][:12]) for tag in (b"rXYZ", b"gXYZ", b"bXYZ")]) / 65536
    return samples_of(light(samples) @ np.array(PROPHOTO) @ np.linalg.inv(own))


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    image.save(file := io.BytesIO(), kind, **options)
    return file.getvalue()


def fields(mode: str = "RGB") -> Image.Image:
    """Six fields of plain colours, of 16 x 16 pixels each."""
    samples = np.array(COLOURS, dtype=np.uint8).reshape(2, 3, 3).repeat(16, axis=0).repeat(16, axis=1)
    image = Image.fromarray(samples)
    return image.quantize(6) if mode == "P" else image.convert(mode)


def decoded(data: bytes) -> tuple[np.ndarray, tuple[str, ...]]:
    image, warnings = decode_picture("x", data)
    return np.asarray(image, dtype=float), warnings


WIDE = with_primaries(PROPHOTO)


@pytest.mark.parametrize("kind", ["RGB.PNG", "RGBA.PNG", "P.PNG", "RGB.TIFF", "RGB.WEBP", "RGB.JPEG", "RGB.AVIF"])
def test_a_wide_picture_has_the_colours_of_its_profile(kind):
    mode, kind = kind.split(".")
    options = {"quality": 100, "lossless": True, "subsampling": "4:4:4"}
    data = encoded(fields(mode), kind, icc_profile=WIDE, **options)
    found, warnings = decoded(data)
    expected = in_srgb(np.asarray(fields()))
    assert np.abs(found - expected).max() <= 4
    assert np.abs(expected - np.asarray(fields(), dtype=float)).max() > 50
    assert warnings == ()
    given = decode_picture("x", Image.open(io.BytesIO(data)))[0]  # an image that a program has opened
    assert np.array_equal(np.asarray(given), found)


def test_half_transparent_colours_are_converted_and_then_laid_on_white():
    image = fields("RGBA")
    image.putalpha(102)
    found, _ = decoded(encoded(image, icc_profile=WIDE))
    expected = 0.4 * in_srgb(np.asarray(fields())) + 0.6 * 255
    assert np.abs(found - expected).max() <= 2


def test_a_profile_is_applied_to_a_turned_and_reduced_picture(monkeypatch):
    monkeypatch.setattr(opening, "BOUND", 24 * 16)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 3
    found, _ = decoded(encoded(fields(), exif=exif, icc_profile=WIDE))
    assert found.shape == (16, 24, 3)
    expected = in_srgb(np.asarray(fields().rotate(180).reduce(2)))
    assert np.abs(found - expected).max() <= 2


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
def test_a_profile_of_srgb_leaves_samples_equal(mode):
    """Also one whose numbers are rounded in another way, so that dark colours would change by 2."""
    steps = np.linspace(0, 255, 18).astype(np.uint8)
    colours = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(54, -1, 3)
    image = Image.fromarray(colours).quantize(255) if mode == "P" else Image.fromarray(colours).convert(mode)
    own = [struct.unpack(">3i", SRGB[place(tag) + 8 :][:12]) for tag in (b"rXYZ", b"gXYZ", b"bXYZ")]
    rounded = with_primaries([[(number + 20) / 65536 for number in row] for row in own])
    plain, _ = decoded(encoded(image))
    for profile in (SRGB, rounded):
        found, warnings = decoded(encoded(image, icc_profile=profile))
        assert np.array_equal(found, plain)
        assert warnings == ()


@pytest.mark.parametrize("mode", ["L", "LA", "I;16"])
def test_a_grey_profile_is_applied(mode):
    image = fields("L")
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image) * np.uint16(257))
    elif mode == "LA":
        image = image.convert("LA")
    found, warnings = decoded(encoded(image, icc_profile=grey_profile(1.0)))
    expected = samples_of(np.asarray(fields("L"), dtype=float) / 255)
    assert np.abs(found - expected[..., None]).max() <= 2
    assert warnings == ()


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_inks_have_the_colours_of_their_profile(kind):
    """Lightness 50 is 119 in sRGB."""
    inks = Image.new("CMYK", (32, 32), (90, 10, 10, 128))
    found, warnings = decoded(encoded(inks, kind, icc_profile=cmyk_profile(), quality=100))
    assert np.abs(found - 118).max() <= 3
    assert warnings == ()


BROKEN = {"cut": WIDE[:200], "junk": b"junk" * 50, "of inks": cmyk_profile(), "grey": grey_profile(1.0)}


@pytest.mark.parametrize("name", BROKEN)
def test_an_unusable_profile_is_ignored_with_a_warning(name):
    found, warnings = decoded(encoded(fields(), icc_profile=BROKEN[name]))
    assert np.array_equal(found, np.asarray(fields()))
    assert warnings == UNUSABLE


def test_a_profile_of_which_a_part_is_missing_is_ignored_with_a_warning():
    """It is spread over segments of a JPEG, each with the number of all."""
    data = encoded(fields(), "JPEG", icc_profile=WIDE)
    at = data.index(b"ICC_PROFILE\0")
    data = data[: at + 13] + b"\x02" + data[at + 14 :]
    found, warnings = decoded(data)
    assert np.array_equal(found, decoded(encoded(fields(), "JPEG"))[0])
    assert warnings == UNUSABLE


def test_another_server_gets_the_colours_that_the_model_sees():
    for profile, same in ((SRGB, True), (WIDE, False)):
        data = encoded(fields(), icc_profile=profile)
        image, _ = decode_picture("x", data)
        sent = b64decode(data_url(data, image).partition(",")[2])
        assert (sent == data) == same
        assert np.array_equal(decoded(sent)[0], np.asarray(image))
