"""The drawn world of the bundled model: kinds of places, their objects, and how these are drawn.

The data lie in `world.json`. A glyph is a list of shapes in a unit square (x to the right, y down), drawn in order. A
shape's tone is `main` (the object's colour), `dark` or `light` (shades of it), or one of the fixed tones.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Rgb = tuple[int, int, int]
Form = Literal["rect", "ellipse", "polygon", "line"]
FORMS: tuple[Form, ...] = ("rect", "ellipse", "polygon", "line")


@dataclass(frozen=True)
class Shape:
    """A part of a glyph."""

    form: Form
    at: tuple[float, ...]  # for `rect` and `ellipse` x0, y0, x1, y1; for `polygon` and `line` x, y, x, y, ...
    tone: str = "main"  # its filling
    width: float = 0.08  # of a line, as a share of the glyph's shorter side


@dataclass(frozen=True)
class Kind:
    """A kind of object."""

    plural: str
    size: tuple[float, float]  # width and height, as shares of the picture's side
    colors: tuple[str, ...]  # its possible colours, the commonest first
    where: Literal["ground", "wall", "air"]  # it stands on the `ground`, hangs on the `wall` or flies in the `air`
    glyph: tuple[Shape, ...]
    synonyms: tuple[str, ...]  # other words for it in questions and captions of other sources


@dataclass(frozen=True)
class Place:
    """A kind of place."""

    objects: dict[str, float]  # probability of each typical object: the prior that a model learns
    # above, below: colours of the wall or sky, and of the floor or ground
    above: Rgb
    below: Rgb
    horizon: float  # the border between them, from the top, as a share of the height
    marks: tuple[Shape, ...]  # other parts of the background; not objects


def _shapes(rows: list[dict[str, Any]]) -> tuple[Shape, ...]:
    """Read shapes such as `{"rect": [0, 0, 1, 1], "tone": "ink"}`."""
    forms = [next(form for form in FORMS if form in row) for row in rows]
    return tuple(
        Shape(form, tuple(row[form]), row.get("tone", "main"), row.get("width", 0.08))
        for form, row in zip(forms, rows, strict=True)
    )


def _read(row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a kind or a place: lists are tuples, and shapes are read."""
    shapes = {name: _shapes(row[name]) for name in ("glyph", "marks") if name in row}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()} | shapes


_DATA = json.loads(Path(__file__).with_name("world.json").read_text(encoding="utf-8"))

COLORS: dict[str, Rgb] = {name: tuple(values) for name, values in _DATA["colors"].items()}
FIXED: dict[str, Rgb] = {name: tuple(values) for name, values in _DATA["fixed_tones"].items()}
OBJECTS = {name: Kind(**_read(row)) for name, row in _DATA["objects"].items()}
PLACES = {name: Place(**_read(row)) for name, row in _DATA["places"].items()}
