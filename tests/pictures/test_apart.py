"""Pictures of strangers are decoded in a process of their own, with the same result, and it can be ended."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image
from skimage import data

from sira_cli.errors import HugePictureError, PictureError, PictureMemoryError
from sira_cli.pictures import apart
from sira_cli.pictures.apart import Decoder, TooManyPixelsError
from sira_cli.pictures.opening import decode_picture

PHOTO = Image.fromarray(data.astronaut()).resize((160, 120))
MOST = 10**6
# A child that decodes forever, as some picture of another kind may do.
ENDLESS = (sys.executable, "-c", "import sys, time; sys.stdin.buffer.readline(); time.sleep(1000)")


# A child with a decoder that takes more than a header says, as some picture of another kind may do.
GREEDY = f"""
import sys
from sira_cli.pictures import apart, opening
opening.in_rgb = lambda image: bytearray(2 * {apart._SPARE})
apart.serve(sys.stdin.buffer, sys.stdout.buffer)
"""


class LeftError(Exception):
    """Nobody waits any more."""


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    image.save(file := io.BytesIO(), kind, **options)
    return file.getvalue()


@pytest.fixture
def decoder() -> Iterator[Decoder]:
    decoder = Decoder()
    yield decoder
    decoder.end()


def nothing() -> None:
    """The client still waits."""


def test_pictures_are_those_that_are_decoded_here(decoder):
    """One after the other by one process, in order."""
    files = {"a": encoded(PHOTO), "b": encoded(PHOTO.convert("L"), "JPEG"), "c": encoded(PHOTO, "WEBP")}
    for _ in range(2):
        images = decoder.decode(files, MOST, nothing)
        for image, (name, content) in zip(images, files.items(), strict=True):
            assert np.array_equal(np.asarray(image), np.asarray(decode_picture(name, content)[0]))
        process = decoder._process
        assert process.poll() is None
    assert decoder._process is process


ERRORS = {
    "text": (b"no picture", PictureError),
    "cut": (encoded(PHOTO)[:-500], PictureError),
    "bomb": (encoded(Image.new("1", (30_000, 20_000)), optimize=True), HugePictureError),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_that_are_raised_here_and_the_process_goes_on(decoder, name):
    content, kind = ERRORS[name]
    with pytest.raises(kind) as here:
        decode_picture("x", content)
    with pytest.raises(kind) as there:
        decoder.decode({"x": content}, MOST, nothing)
    assert str(there.value) == str(here.value)
    assert type(there.value) is type(here.value)
    assert len(decoder.decode({"x": encoded(PHOTO)}, MOST, nothing)) == 1


def test_pixels_are_counted_together_and_before_decoding(decoder):
    files = {"a": encoded(PHOTO), "b": encoded(PHOTO)[:-500]}
    with pytest.raises(TooManyPixelsError) as raised:
        decoder.decode(files, 2 * 160 * 120 - 1, nothing)
    assert raised.value.args == (38_400,)
    with pytest.raises(PictureError, match="b: is damaged"):
        decoder.decode(files, 2 * 160 * 120, nothing)


def test_a_client_that_leaves_ends_the_process(decoder, monkeypatch):
    monkeypatch.setattr(apart, "_COMMAND", ENDLESS)
    processes = []

    def look() -> None:
        processes.append(decoder._process)
        raise LeftError

    with pytest.raises(LeftError):
        decoder.decode({"x": encoded(PHOTO)}, MOST, look)
    assert processes[0].poll() is not None
    monkeypatch.undo()
    assert len(decoder.decode({"x": encoded(PHOTO)}, MOST, nothing)) == 1


def test_a_picture_that_takes_too_long_is_refused(decoder, monkeypatch):
    monkeypatch.setattr(apart, "_COMMAND", ENDLESS)
    monkeypatch.setattr(apart, "SECONDS", 0.5)
    with pytest.raises(PictureError, match="x: takes longer than 0 s to decode: convert it to PNG or JPEG"):
        decoder.decode({"x": encoded(PHOTO)}, MOST, nothing)
    assert decoder._process is None


def test_a_process_that_dies_fails_one_picture(decoder, monkeypatch):
    monkeypatch.setattr(apart, "_COMMAND", (sys.executable, "-c", "import os; os.abort()"))
    with pytest.raises(PictureError, match="x: cannot be decoded: its decoder failed"):
        decoder.decode({"x": encoded(PHOTO)}, MOST, nothing)
    monkeypatch.undo()
    assert len(decoder.decode({"x": encoded(PHOTO)}, MOST, nothing)) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
def test_a_decoder_that_takes_more_memory_than_the_header_says_is_stopped(decoder, monkeypatch):
    monkeypatch.setattr(apart, "_COMMAND", (sys.executable, "-c", GREEDY))
    with pytest.raises(PictureMemoryError, match="x: memory does not suffice to decode it"):
        decoder.decode({"x": encoded(PHOTO)}, MOST, nothing)
