"""The functions of `torchvision.transforms.v2.functional` that transformers' video processors use, on torch alone.

torchvision's own are thin layers over the same functions of torch, so numbers are equal. Where torchvision is installed
it is used, and these functions are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import torch
from torch import Tensor
from torch.nn import functional as F


class InterpolationMode(Enum):
    """Kinds of interpolation by torch's names."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


_OF_PILLOW = {
    0: InterpolationMode.NEAREST,
    1: InterpolationMode.LANCZOS,
    2: InterpolationMode.BILINEAR,
    3: InterpolationMode.BICUBIC,
}


def resize(
    image: Tensor,
    size: Sequence[int],
    interpolation: InterpolationMode | int = InterpolationMode.BILINEAR,
    antialias: bool | None = True,
) -> Tensor:
    """Resize `[..., C, H, W]` to `size` (H, W); 8-bit samples are rounded as torchvision does."""
    interpolation = _OF_PILLOW[interpolation] if isinstance(interpolation, int) else interpolation
    shape, (height, width) = image.shape, size
    if shape[-2:] == (height, width):
        return image
    smooth = interpolation in (InterpolationMode.BILINEAR, InterpolationMode.BICUBIC, InterpolationMode.LANCZOS)
    flat = image.reshape(-1, *shape[-3:])
    exact = flat.is_floating_point() or not smooth or _takes_bytes(interpolation, flat)
    found = F.interpolate(
        flat if exact else flat.float(),
        size=[height, width],
        mode=interpolation.value,
        align_corners=False if smooth else None,
        antialias=bool(antialias) and smooth,
    )
    if not exact:
        found = found.clamp_(0, 255).round_().to(image.dtype)
    return found.reshape(*shape[:-2], height, width)


def _takes_bytes(interpolation: InterpolationMode, image: Tensor) -> bool:
    """Return whether 8-bit samples are resized without conversion, by torchvision's rule."""
    if image.device.type != "cpu" or image.dtype != torch.uint8:
        return False
    fast = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512", "NEON", "SVE256")
    return interpolation != InterpolationMode.BILINEAR or fast


def normalize(image: Tensor, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor, inplace: bool) -> Tensor:
    """Return (image - mean) / std by channel of `[..., C, H, W]`."""
    middle, spread = (torch.as_tensor(each, dtype=image.dtype, device=image.device) for each in (mean, std))
    middle, spread = (each.view(-1, 1, 1) if each.ndim == 1 else each for each in (middle, spread))
    return (image.sub_(middle) if inplace else image.sub(middle)).div_(spread)


def pad(image: Tensor, padding: Sequence[int], fill: float | None = 0, padding_mode: str = "constant") -> Tensor:
    """Pad `[..., H, W]` on the left, top, right and bottom.

    Raises:
        ValueError: the padding is not with a constant.
    """
    if padding_mode != "constant":
        raise ValueError(f"padding_mode {padding_mode!r} needs torchvision")
    left, top, right, bottom = padding
    return F.pad(image, [left, right, top, bottom], value=float(fill or 0))


def crop(image: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    """Return a part of `[..., H, W]` that lies inside."""
    return image[..., top : top + height, left : left + width]


def grayscale_to_rgb(image: Tensor) -> Tensor:
    """Return `[..., 3, H, W]`; frames of clips are RGB already."""
    return image if image.shape[-3] >= 3 else image.repeat_interleave(3, dim=-3)
