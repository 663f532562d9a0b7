"""The size of a picture after an image processor, known in advance.

Most processors resize to a fixed size, to tiles, or to a number of pixels. Those that resize by the shorter edge
keep the shape: 1 x 120,000 pixels become 336 x 40,320,000, of which the model sees 336 x 336.
"""

from __future__ import annotations

from typing import Any

MOST = 2**24  # pixels of a picture resized by its shorter edge; Qwen3-VL's limit, the largest of all
MOST_SQUARE = 2**27  # pixels of the square into which a picture is put before it is resized


def check_picture_size(image_processor: Any, width: int, height: int) -> None:
    """Check that an image processor does not make a picture too large."""
    for (new_width, new_height), most in _sizes(image_processor, width, height):
        if new_width * new_height > most:
            raise ValueError(
                f"its {width:,} x {height:,} pixels would become {new_width:,} x {new_height:,}, and {most:,} pixels "
                "are the limit: crop it, or scale its longer side down"
            )


def _sizes(image_processor: Any, width: int, height: int) -> list[tuple[tuple[int, int], int]]:
    """Return a picture's sizes during processing that depend on its shape, each with its limit."""
    found = []
    if type(image_processor).__name__.startswith("LlavaImageProcessor") and image_processor.do_pad:
        width = height = max(width, height)
        found.append(((width, height), MOST_SQUARE))
    size = {name for name, value in dict(getattr(image_processor, "size", None) or {}).items() if value}
    tiled = hasattr(image_processor, "image_grid_pinpoints")  # LLaVA-NeXT resizes only squares by their edge
    if size == {"shortest_edge"} and not tiled and image_processor.do_resize:
        short = image_processor.size["shortest_edge"]
        long = short * max(width, height) // min(width, height)
        found.append(((short, long) if width <= height else (long, short), MOST))
    return found
