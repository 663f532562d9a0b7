"""Colour profiles: a picture in Adobe RGB, Display P3 or CMYK becomes one in sRGB, which models are trained on."""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageCms

_LARGEST = 2**22  # bytes; profiles of printing presses have up to 3 MB
_SPACES = {"L": "GRAY", "LA": "GRAY", "F": "GRAY", "CMYK": "CMYK", "P": "RGB", "PA": "RGB", "RGB": "RGB", "RGBA": "RGB"}
_MODES = {"GRAY": "L", "RGB": "RGB", "CMYK": "CMYK"}  # of Pillow, by the profile's colour space
_STEPS = 17  # of each channel, at which a transform is compared with none
_EQUAL = 2  # of 255: the usual profiles of sRGB differ by 1 from each other


class _ProfileError(Exception):
    """A profile cannot be applied to its picture."""


@dataclass(frozen=True)
class Conversion:
    """The way from a picture's colours to sRGB."""

    mode: str  # of the samples that the transform takes
    transform: ImageCms.ImageCmsTransform

    def applied(self, image: Image.Image) -> Image.Image:
        """Return a picture's colours in sRGB; transparency is left out."""
        return self.transform.apply(image.convert(self.mode))


def conversion_of(image: Image.Image) -> Conversion | None:
    """Return how to convert a picture to sRGB; None if it needs no conversion, or has a profile that is unusable."""
    try:
        return _found(image)
    except _ProfileError:
        return None


def has_unusable_profile(image: Image.Image) -> bool:
    """Return whether a picture has a profile that cannot be applied to it."""
    try:
        _found(image)
    except _ProfileError:
        return True
    return False


def _found(image: Image.Image) -> Conversion | None:
    profile = image.info.get("icc_profile", b"")
    space = "GRAY" if image.mode.startswith("I") else _SPACES.get(image.mode)
    if profile == b"" or space is None:
        return None
    if not isinstance(profile, bytes) or len(profile) > _LARGEST:  # Pillow gives None for damaged ones
        raise _ProfileError
    return _conversion(profile, space)


@functools.lru_cache(maxsize=16)  # a camera's pictures share one
def _conversion(profile: bytes, space: str) -> Conversion | None:
    try:
        opened = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        own = opened.profile.xcolor_space.strip()
        if own != space and (space, own) != ("GRAY", "RGB"):  # grey pictures often have the profile of sRGB
            raise _ProfileError
        mode = _MODES[own]
        # Without its cache of one pixel a transform takes half of the time, and threads may share it.
        transform = ImageCms.buildTransform(opened, _srgb(), mode, "RGB", flags=ImageCms.Flags.NOCACHE)
    except (OSError, ImageCms.PyCMSError) as error:
        raise _ProfileError from error
    conversion = Conversion(mode, transform)
    return None if _keeps_colours(conversion) else conversion


@functools.cache
def _srgb() -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


def _keeps_colours(conversion: Conversion) -> bool:
    """Return whether a transform changes no colour visibly, as those from sRGB."""
    if conversion.mode == "CMYK":
        return False
    steps = np.linspace(0, 255, _STEPS).astype(np.uint8)
    samples = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(_STEPS, -1, 3)
    before = Image.fromarray(samples).convert(conversion.mode)
    after = np.asarray(conversion.applied(before), dtype=int)
    return bool(np.abs(after - np.asarray(before.convert("RGB"), dtype=int)).max() <= _EQUAL)
