"""Perturbed pictures, blurred or shuffled. Their size stays, and so does the number of image tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter

from sira_cli.errors import SettingsError


@dataclass(frozen=True)
class Perturbations:
    """Strengths of picture perturbations. The paper names both ways, but no strengths."""

    blur: float = 0.05
    patches: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.blur <= 1:  # nor NaN
            raise SettingsError(f"blur must be a share of the picture's shorter side, 0 to 1; got {self.blur!r}")
        if self.patches < 1:
            raise SettingsError(f"patches must be at least 1, for a grid of 1 x 1; got {self.patches!r}")
        if self.seed < 0:
            raise SettingsError(f"seed must be 0 or more; got {self.seed!r}")


def blur(image: Image.Image, share: float) -> Image.Image:
    """Blur with a Gaussian whose standard deviation is `share` of the shorter side (Pillow's approximation)."""
    return image.filter(ImageFilter.GaussianBlur(share * min(image.size)))


def shuffle_patches(image: Image.Image, patches: int, seed: int) -> Image.Image:
    """Put the patches of a grid in random order."""
    pixels = np.array(image)  # [H, W, 3]
    height, width = pixels.shape[0] // patches, pixels.shape[1] // patches  # pixels of a patch
    grid = pixels[: patches * height, : patches * width]  # shares memory with the result
    cut = grid.reshape(patches, height, patches, width, 3).swapaxes(1, 2)  # [P, P, h, w, 3]
    order = np.random.default_rng(seed).permutation(patches**2)
    shuffled = cut.reshape(patches**2, height, width, 3)[order]  # [P P, h, w, 3]
    grid[:] = shuffled.reshape(patches, patches, height, width, 3).swapaxes(1, 2).reshape(grid.shape)
    return Image.fromarray(pixels)
