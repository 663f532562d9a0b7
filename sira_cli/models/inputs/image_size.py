"""The size of pictures for a model: a preset's limits, set on the checkpoint's own processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from sira_cli.errors import HugePictureError, SettingsError
from sira_cli.methods.prompts import pictures_of
from sira_cli.models.loading.preset_parts import ImageSettings

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown


def limit_size(processor: Any, settings: ImageSettings) -> None:
    """Set limits on a processor."""
    if settings.max_pixels is not None or settings.min_pixels is not None:
        _limit_pixels(processor.image_processor, settings.min_pixels, settings.max_pixels)
    if settings.max_tiles is not None:
        images = _having("max_tiles", processor.image_processor, "max_patches")
        _check_least("max_tiles", settings.max_tiles, images.min_patches, "tiles")
        _set(processor, "max_patches", settings.max_tiles)
    if settings.longest_edge is not None:
        _limit_edge(processor.image_processor, settings.longest_edge)
    if settings.pan_and_scan is not None:
        _having("pan_and_scan", processor.image_processor, "do_pan_and_scan")
        _set(processor, "do_pan_and_scan", settings.pan_and_scan)


def pad_to_square(shown: Shown, mean: Sequence[float]) -> list[Image.Image]:
    """Pad pictures to squares with bars of one colour, as LLaVA-1.5's authors do."""
    colour = tuple(int(255 * channel) for channel in mean)
    return [_squared(each, colour) for each in pictures_of(shown)]


def _squared(picture: Image.Image, colour: tuple[int, ...]) -> Image.Image:
    side, most = max(picture.size), 2 * (Image.MAX_IMAGE_PIXELS or 0)  # as where pictures are opened
    if most and side**2 > most:
        raise HugePictureError(
            f"padded to a square, a picture of {picture.width} x {picture.height} would have {side**2:,} pixels; "
            f"expected at most {most:,}"
        )
    square = Image.new(picture.mode, (side, side), colour)
    square.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    return square


def _limit_pixels(images: Any, least: int | None, most: int | None) -> None:
    """Set the pixels of a resized picture; transformers keeps them as the edges of `size`."""
    name = "min_pixels" if most is None else "max_pixels"
    size = dict(_having(name, images, "max_pixels").size or {})
    if "longest_edge" not in size:
        raise _unknown(name, images)
    if least is not None:
        _check_least("min_pixels", least, (images.patch_size * images.merge_size) ** 2, "pixels")
        size["shortest_edge"] = least
    if most is not None:
        _check_least("max_pixels", most, size["shortest_edge"], "pixels (min_pixels)")
        size["longest_edge"] = most
    if size["shortest_edge"] > size["longest_edge"]:
        raise SettingsError(
            f"image.min_pixels: {size['shortest_edge']} is more than the {size['longest_edge']} that "
            f"{type(images).__name__} shrinks pictures to: also give max_pixels"
        )
    images.size = size


def _limit_edge(images: Any, edge: int) -> None:
    """Set the longer side of a resized picture."""
    if "longest_edge" not in dict(images.size or {}) or "max_pixels" in images.valid_kwargs.__annotations__:
        raise _unknown("longest_edge", images)
    tile = dict(getattr(images, "max_image_size", None) or {}).get("longest_edge", 1)  # SmolVLM, Idefics3
    _check_least("longest_edge", edge, tile, "pixels, one tile")
    images.size = {"longest_edge": edge}


def _having(name: str, images: Any, option: str) -> Any:
    """Return an image processor that has an option."""
    if option not in images.valid_kwargs.__annotations__:
        raise _unknown(name, images)
    return images


def _unknown(name: str, images: Any) -> SettingsError:
    return SettingsError(f"image.{name}: {type(images).__name__} has no such limit")


def _check_least(name: str, given: int, least: int, unit: str) -> None:
    if given < least:
        raise SettingsError(f"image.{name}: {given} is below the processor's minimum of {least} {unit}")


def _set(processor: Any, option: str, value: Any) -> None:
    """Set an option of an image processor, and the enclosing processor's default if it would override it."""
    setattr(processor.image_processor, option, value)
    processor.images_kwargs = {**(getattr(processor, "images_kwargs", None) or {}), option: value}
