"""How large an image processor makes pictures: limits that are set, and limits that are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from sira_cli.errors import SettingsError
from sira_cli.methods.prompts import pictures_of
from sira_cli.models.preset import ImageSettings

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown


def limit_size(processor: Any, settings: ImageSettings) -> None:
    """Set limits on a processor; transformers keeps the pixels of a resized picture as the edges of `size`.

    Raises:
        SettingsError: the image processor has no such limit, or none as small.
    """
    limits = settings.given()
    limits.pop("pad_to_square", None)
    images = processor.image_processor
    size = dict(images.size or {})
    for name, value in limits.items():
        minimum = _minimum(images, name, size, limits)
        if minimum is None:
            raise SettingsError(f"image.{name}: {type(images).__name__} has no such limit")
        if value < minimum:
            raise SettingsError(f"image.{name}: {value} is below the processor's minimum of {minimum}")
    smallest = limits.get("min_pixels", 0)
    largest = limits.get("max_pixels", size.get("longest_edge", 0))
    if smallest > largest:
        raise SettingsError(f"image.min_pixels: {smallest} is more than the maximum of {largest}: also give max_pixels")
    edges = {_EDGES[name]: value for name, value in limits.items() if name in _EDGES}
    if edges:
        images.size = edges if "longest_edge" in limits else size | edges
    for name, option in (("max_tiles", "max_patches"), ("pan_and_scan", "do_pan_and_scan")):
        if name in limits:  # also as the enclosing processor's default, which would override it
            setattr(images, option, limits[name])
            processor.images_kwargs = {**(getattr(processor, "images_kwargs", None) or {}), option: limits[name]}


_EDGES = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge", "longest_edge": "longest_edge"}


def _minimum(images: Any, name: str, size: Mapping[str, int], limits: Mapping[str, int]) -> int | None:
    """Return the smallest value of a limit; None: the image processor has no such limit."""
    options = images.valid_kwargs.__annotations__
    edges = "longest_edge" in size
    by_pixels = "max_pixels" in options
    minimum: int | None = None
    if name == "min_pixels" and by_pixels and edges:
        minimum = (images.patch_size * images.merge_size) ** 2
    elif name == "max_pixels" and by_pixels and edges:
        minimum = limits.get("min_pixels", size["shortest_edge"])
    elif name == "longest_edge" and edges and not by_pixels:
        tile = getattr(images, "max_image_size", None) or {}
        minimum = dict(tile).get("longest_edge", 1)
    elif name == "max_tiles" and "max_patches" in options:
        minimum = images.min_patches
    elif name == "pan_and_scan" and "do_pan_and_scan" in options:
        minimum = 0
    return minimum


def pad_to_square(shown: Shown, mean: Sequence[float]) -> list[Image.Image]:
    """Pad pictures to squares with bars of one colour, as LLaVA-1.5's authors do."""
    colour = tuple(int(255 * channel) for channel in mean)
    squares = []
    for picture in pictures_of(shown):
        side = max(picture.size)
        _check_size(picture.size, (side, side), 2 * (Image.MAX_IMAGE_PIXELS or side**2))  # as where pictures are opened
        square = Image.new(picture.mode, (side, side), colour)
        square.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
        squares.append(square)
    return squares


MOST = 2**24  # pixels of a picture resized by its shorter edge; Qwen3-VL's limit, the largest of all
MOST_SQUARE = 2**27  # pixels of the square into which a picture is put before it is resized


def check_pictures(processor: Any, images: Sequence[Shown]) -> None:
    """Check that the checkpoint's image processor does not make a picture too large."""
    image_processor = processor.image_processor
    edges = {name for name, value in dict(getattr(image_processor, "size", None) or {}).items() if value}
    tiled = hasattr(image_processor, "image_grid_pinpoints")  # LLaVA-NeXT resizes only squares by their edge
    by_edge = edges == {"shortest_edge"} and not tiled and image_processor.do_resize
    squared = type(image_processor).__name__.startswith("LlavaImageProcessor") and image_processor.do_pad
    for shown in images:
        for picture in pictures_of(shown):
            short, long = sorted(picture.size)
            if squared:
                _check_size(picture.size, (long, long), MOST_SQUARE)
                short = long
            if by_edge:
                edge = image_processor.size["shortest_edge"]
                longer = edge * long // short
                resized = (edge, longer) if picture.width <= picture.height else (longer, edge)
                _check_size(picture.size, resized, MOST)


def _check_size(size: tuple[int, int], new: tuple[int, int], most: int) -> None:
    if new[0] * new[1] > most:
        raise ValueError(
            f"its {size[0]:,} x {size[1]:,} pixels would become {new[0]:,} x {new[1]:,}, and {most:,} pixels are the "
            "limit: crop it, or scale its longer side down"
        )
