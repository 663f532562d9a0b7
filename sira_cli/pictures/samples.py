"""From the samples of a picture file to the picture as viewers show it: upright, in RGB.

A picture of 179 million pixels, the most that Pillow opens, takes 0.7 GB. Whatever needs a second copy of the samples
is therefore done strip by strip.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from PIL import ExifTags, Image, ImageOps

BOUND = 2**26  # pixels; half the width and height is still more than any model reads
SMALL = 32  # pixels; a patch of a vision encoder has 14 to 32
_STRIP = 2**18  # pixels


def to_rgb(image: Image.Image) -> Image.Image:
    """Return a decoded image as viewers show it, as a copy; see `decode_picture`."""
    return in_rgb(reduced(upright(image)))


def suspicious(image: Image.Image) -> tuple[str, ...]:
    """Return reasons to doubt a text about the picture: usually none."""
    found = []
    # Phones store a second picture (MPO) for depth or a preview; viewers show the first.
    if getattr(image, "is_animated", False) and image.format != "MPO":
        found.append("has several frames or pages: the first one was taken")
    image.load()
    if image.has_transparency_data and any(_shines_through(strip) for _, strip in _strips(image)):
        found.append("is transparent in parts: they were taken as white")
    if min(image.size) < SMALL:
        found.append(f"is tiny: {image.width} x {image.height} pixels")
    return tuple(found)


def upright(image: Image.Image) -> Image.Image:
    """Return the image turned by its EXIF orientation; the image itself if it is upright."""
    if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
        return image
    return ImageOps.exif_transpose(image)


def reduced(image: Image.Image) -> Image.Image:
    """Return the image with at most `BOUND` pixels; the image itself if it has no more."""
    factor = reduction(image)
    if factor == 1:
        return image
    width, height = image.width // factor, image.height // factor
    scale = image.height / height
    rows = max(1, _STRIP // image.width)
    found = None
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        first, last = math.floor(top * scale), min(math.ceil(bottom * scale), image.height)
        strip = image.crop((0, first, image.width, last))
        if strip.mode in ("1", "P"):  # of these, `resize` would only take every other pixel
            strip = strip.convert("RGBA" if strip.has_transparency_data else "RGB")
        box = (0, top * scale - first, image.width, bottom * scale - first)
        strip = strip.resize((width, bottom - top), Image.Resampling.BOX, box)
        if found is None:
            found = Image.new(strip.mode, (width, height))
            found.info = strip.info
        found.paste(strip, (0, top))
    return found or image


def reduction(image: Image.Image) -> int:
    """Return the divisor of width and height, so that a picture has at most `BOUND` pixels."""
    return math.ceil(math.sqrt(image.width * image.height / BOUND))


def in_rgb(image: Image.Image) -> Image.Image:
    """Return a copy in RGB: transparency on white, samples of 16 or 32 bits or floats scaled to 8 bits."""
    if image.mode == "F" or image.mode.startswith("I"):
        image = _to_8_bit(image)
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgb = Image.new("RGB", image.size)
    for top, strip in _strips(image):
        white = Image.new("RGBA", strip.size, (255, 255, 255, 255))
        rgb.paste(Image.alpha_composite(white, strip.convert("RGBA")).convert("RGB"), (0, top))
    return rgb


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Yield an image in strips of its full width, each with its first row."""
    rows = max(1, _STRIP // max(1, image.width))
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _shines_through(image: Image.Image) -> bool:
    with_alpha = image if "A" in image.getbands() else image.convert("RGBA")
    return with_alpha.getchannel("A").getextrema() != (255, 255)


def _to_8_bit(image: Image.Image) -> Image.Image:
    """Scale grey samples of 16 or 32 bits or floats: the smallest usual full scale that holds them becomes white."""
    if image.mode.startswith("I;16"):
        scale = 65535.0
    else:
        brightest = max(float(_samples(strip).max(initial=0.0)) for _, strip in _strips(image))
        usual = (1.0, 255.0, 65535.0) if image.mode == "F" else (255.0, 65535.0)
        scale = next((full for full in usual if brightest <= full), brightest)
    grey = Image.new("L", image.size)
    for top, strip in _strips(image):
        scaled = np.clip(np.rint(_samples(strip) / scale * 255), 0, 255)
        grey.paste(Image.fromarray(scaled.astype(np.uint8)), (0, top))
    return grey


def _samples(image: Image.Image) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.nan_to_num(np.asarray(image, dtype=np.float64))
