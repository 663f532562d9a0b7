"""Boxes in the form that a model's family has learned, and as in records: left, top, right, bottom in thousandths.

    xyxy-1000    {"bbox_2d": [left, top, right, bottom]}, thousandths   Qwen2-VL, Qwen3-VL, Qwen3.5, GLM-4.xV, InternVL
    xyxy-pixels  the same in pixels of the resized picture              Qwen2.5-VL
    yxyx-1000    {"box_2d": [top, left, bottom, right]}, thousandths    Gemma 4

A preset names its model's form (`prompts.boxes`). A model that is asked for another form silently mixes both, so a
model without a known form is not asked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA = "objects"  # the built-in schema that has boxes
MOST_PIXELS = 99_999  # of a picture's side


@dataclass(frozen=True)
class BoxForm:
    """A form of boxes.

    Attributes:
        key: of a box in the model's JSON.
        order: places of left, top, right and bottom among the four numbers.
        corners: names of the four numbers, for the prompt.
        pixels: the unit is a pixel of the resized picture; else a thousandth of the picture.
    """

    key: str
    order: tuple[int, int, int, int] = (0, 1, 2, 3)
    corners: str = "left, top, right and bottom"
    pixels: bool = False

    @property
    def asked(self) -> str:
        """Words of a prompt that ask for a box."""
        return f"{self.key} ({self.corners}, {'in pixels' if self.pixels else 'from 0 to 1000'})"

    def thousandths(self, box: Sequence[int], size: tuple[int, int] | None) -> list[int]:
        """Return left, top, right and bottom in thousandths of the picture, at most 1000.

        Args:
            box: the model's four numbers.
            size: width and height of the picture as the model sees it, in pixels; only needed for pixels.
        """
        sides = size if self.pixels and size is not None else (1000, 1000)
        return [min(1000, round(1000 * box[place] / sides[at % 2])) for at, place in enumerate(self.order)]


FORMS = {
    "xyxy-1000": BoxForm("bbox_2d"),
    "xyxy-pixels": BoxForm("bbox_2d", pixels=True),
    "yxyx-1000": BoxForm("box_2d", (1, 0, 3, 2), "top, left, bottom and right"),
}


def in_form(content: str, form: BoxForm | None) -> str:
    """Return the JSON of the schema `objects` with boxes in a form; None: without boxes."""
    schema = json.loads(content)
    entry = schema["properties"]["objects"]["items"]
    box = entry["properties"].pop("box")
    entry["required"].remove("box")
    if form is not None:
        box["items"]["maximum"] = MOST_PIXELS if form.pixels else 1000
        entry["properties"][form.key] = box
        entry["required"].append(form.key)
    return json.dumps(schema)


def in_records(data: Any, form: BoxForm, size: tuple[int, int] | None) -> Any:
    """Return a value of the schema `objects` with boxes as records have them.

    Args:
        data: the value that the model wrote, with boxes in the form.
        form: the model's.
        size: as for `BoxForm.thousandths`.
    """
    objects = []
    for entry in data["objects"]:
        others = {name: value for name, value in entry.items() if name != form.key}
        objects.append({**others, "box": form.thousandths(entry[form.key], size)})
    return {**data, "objects": objects}
