"""The little world of the bundled model: kinds of scenes, the objects that live there, and how they are drawn.

A glyph is a list of shapes in a unit square (x to the right, y down), drawn in this order. A shape's
tone is `main` (the object's colour), `dark` or `light` (shades of it) or a fixed colour of `FIXED`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Rgb = tuple[int, int, int]

COLORS: dict[str, Rgb] = {
    "red": (208, 44, 40),
    "orange": (240, 136, 32),
    "yellow": (244, 208, 56),
    "green": (52, 148, 64),
    "blue": (48, 96, 200),
    "purple": (132, 72, 168),
    "pink": (240, 148, 180),
    "brown": (132, 84, 48),
    "black": (40, 40, 44),
    "white": (240, 240, 236),
    "gray": (136, 140, 144),
}

FIXED: dict[str, Rgb] = {
    "ink": (28, 28, 32),
    "paper": (248, 246, 238),
    "wood": (120, 80, 48),
    "leaf": (60, 132, 60),
    "glass": (180, 212, 228),
    "skin": (228, 180, 144),
    "glow": (255, 240, 160),
    "steel": (168, 172, 180),
    "signal red": (232, 48, 40),
    "signal amber": (248, 184, 40),
    "signal green": (56, 200, 88),
}


@dataclass(frozen=True)
class Shape:
    """`rect` and `ellipse`: x0, y0, x1, y1. `polygon` and `line`: x, y, x, y, ... `width`: of a line."""

    form: Literal["rect", "ellipse", "polygon", "line"]
    at: tuple[float, ...]
    tone: str = "main"
    width: float = 0.08


def _rect(*at: float, tone: str = "main") -> Shape:
    return Shape("rect", at, tone)


def _oval(*at: float, tone: str = "main") -> Shape:
    return Shape("ellipse", at, tone)


def _poly(*at: float, tone: str = "main") -> Shape:
    return Shape("polygon", at, tone)


def _line(*at: float, tone: str = "main", width: float = 0.08) -> Shape:
    return Shape("line", at, tone, width)


@dataclass(frozen=True)
class Kind:
    """A kind of object.

    Attributes:
        plural: of the name.
        size: width and height, as shares of the picture's side.
        colors: those it comes in; the first is the commonest.
        where: it stands on the `ground`, hangs on the `wall` or flies in the `air`.
        glyph: how it is drawn.
        synonyms: other words for it in questions and captions from elsewhere.
    """

    plural: str
    size: tuple[float, float]
    colors: tuple[str, ...]
    where: Literal["ground", "wall", "air"]
    glyph: tuple[Shape, ...]
    synonyms: tuple[str, ...] = ()


_VEHICLE = ("red", "blue", "white", "black", "yellow", "green", "gray")
_FURNITURE = ("brown", "gray", "blue", "red", "green", "white")
_SMALL = ("blue", "red", "green", "white", "yellow", "purple", "orange")
_FUR = ("brown", "black", "white", "gray", "orange")

OBJECTS: dict[str, Kind] = {
    "person": Kind(
        "people",
        (0.13, 0.34),
        ("blue", "red", "green", "yellow", "purple", "black", "white"),
        "ground",
        (
            _oval(0.28, 0.0, 0.72, 0.24, tone="skin"),
            _poly(0.15, 0.27, 0.85, 0.27, 0.78, 0.64, 0.22, 0.64),
            _line(0.14, 0.3, 0.02, 0.6, width=0.14),
            _line(0.86, 0.3, 0.98, 0.6, width=0.14),
            _rect(0.24, 0.62, 0.46, 1.0, tone="ink"),
            _rect(0.54, 0.62, 0.76, 1.0, tone="ink"),
        ),
        ("man", "woman"),
    ),
    "dog": Kind(
        "dogs",
        (0.25, 0.19),
        _FUR,
        "ground",
        (
            _rect(0.18, 0.38, 0.74, 0.7),
            _rect(0.2, 0.65, 0.3, 1.0),
            _rect(0.6, 0.65, 0.7, 1.0),
            _poly(0.62, 0.15, 0.86, 0.12, 1.0, 0.34, 1.0, 0.46, 0.66, 0.52),
            _poly(0.6, 0.14, 0.74, 0.12, 0.66, 0.5, tone="dark"),
            _line(0.2, 0.42, 0.02, 0.14, width=0.09),
            _oval(0.8, 0.2, 0.86, 0.28, tone="ink"),
        ),
        ("puppy",),
    ),
    "cat": Kind(
        "cats",
        (0.18, 0.22),
        ("orange", "black", "gray", "white"),
        "ground",
        (
            _oval(0.2, 0.42, 0.8, 1.0),
            _oval(0.24, 0.12, 0.76, 0.56),
            _poly(0.25, 0.3, 0.27, 0.0, 0.46, 0.16),
            _poly(0.75, 0.3, 0.73, 0.0, 0.54, 0.16),
            _line(0.76, 0.92, 0.97, 0.8, 0.95, 0.5, width=0.1),
            _oval(0.35, 0.26, 0.44, 0.36, tone="signal green"),
            _oval(0.56, 0.26, 0.65, 0.36, tone="signal green"),
        ),
        ("kitten",),
    ),
    "horse": Kind(
        "horses",
        (0.32, 0.32),
        ("brown", "black", "white"),
        "ground",
        (
            _oval(0.12, 0.36, 0.76, 0.7),
            *(_rect(x, 0.6, x + 0.08, 1.0, tone="dark") for x in (0.18, 0.3, 0.56, 0.67)),
            _poly(0.6, 0.5, 0.76, 0.08, 0.88, 0.14, 0.78, 0.6),
            _poly(0.74, 0.06, 1.0, 0.22, 0.96, 0.34, 0.76, 0.24),
            _line(0.62, 0.44, 0.74, 0.06, tone="ink", width=0.08),
            _line(0.14, 0.46, 0.02, 0.78, tone="ink", width=0.08),
        ),
    ),
    "cow": Kind(
        "cows",
        (0.33, 0.25),
        ("white", "brown", "black"),
        "ground",
        (
            _rect(0.1, 0.28, 0.76, 0.7),
            *(_rect(x, 0.66, x + 0.09, 1.0) for x in (0.13, 0.26, 0.53, 0.66)),
            _oval(0.2, 0.3, 0.42, 0.54, tone="ink"),
            _oval(0.5, 0.42, 0.7, 0.66, tone="wood"),
            _rect(0.74, 0.14, 0.97, 0.5),
            _rect(0.8, 0.38, 1.0, 0.54, tone="skin"),
            _line(0.74, 0.16, 0.68, 0.0, tone="paper", width=0.06),
            _line(0.94, 0.16, 1.0, 0.0, tone="paper", width=0.06),
        ),
    ),
    "bird": Kind(
        "birds",
        (0.19, 0.14),
        ("blue", "red", "black", "white", "yellow"),
        "air",
        (
            _oval(0.24, 0.4, 0.78, 0.8),
            _oval(0.66, 0.24, 0.92, 0.6),
            _poly(0.9, 0.38, 1.0, 0.46, 0.9, 0.5, tone="signal amber"),
            _poly(0.3, 0.5, 0.36, 0.0, 0.64, 0.48, tone="dark"),
            _poly(0.28, 0.56, 0.0, 0.4, 0.02, 0.76),
        ),
    ),
    "car": Kind(
        "cars",
        (0.34, 0.19),
        _VEHICLE,
        "ground",
        (
            _poly(0.2, 0.42, 0.32, 0.06, 0.7, 0.06, 0.84, 0.42),
            _poly(0.27, 0.4, 0.36, 0.14, 0.5, 0.14, 0.5, 0.4, tone="glass"),
            _poly(0.54, 0.14, 0.67, 0.14, 0.77, 0.4, 0.54, 0.4, tone="glass"),
            _rect(0.0, 0.4, 1.0, 0.78),
            _oval(0.12, 0.6, 0.34, 1.0, tone="ink"),
            _oval(0.66, 0.6, 0.88, 1.0, tone="ink"),
        ),
    ),
    "bus": Kind(
        "buses",
        (0.42, 0.26),
        ("red", "yellow", "blue", "green", "white"),
        "ground",
        (
            _rect(0.0, 0.04, 1.0, 0.84),
            *(_rect(x, 0.16, x + 0.15, 0.44, tone="glass") for x in (0.05, 0.24, 0.43, 0.62)),
            _rect(0.82, 0.16, 0.96, 0.8, tone="glass"),
            _rect(0.0, 0.54, 0.8, 0.62, tone="dark"),
            _oval(0.13, 0.7, 0.3, 1.0, tone="ink"),
            _oval(0.62, 0.7, 0.79, 1.0, tone="ink"),
        ),
    ),
    "truck": Kind(
        "trucks",
        (0.4, 0.24),
        _VEHICLE,
        "ground",
        (
            _rect(0.0, 0.06, 0.62, 0.8, tone="paper"),
            _rect(0.0, 0.06, 0.62, 0.14, tone="steel"),
            _poly(0.66, 0.28, 0.86, 0.28, 1.0, 0.54, 1.0, 0.82, 0.66, 0.82),
            _poly(0.72, 0.34, 0.84, 0.34, 0.93, 0.54, 0.72, 0.54, tone="glass"),
            _rect(0.6, 0.7, 0.68, 0.82, tone="ink"),
            *(_oval(x, 0.66, x + 0.18, 1.0, tone="ink") for x in (0.08, 0.3, 0.74)),
        ),
    ),
    "bicycle": Kind(
        "bicycles",
        (0.29, 0.2),
        ("red", "blue", "green", "black", "yellow"),
        "ground",
        (
            *(_oval(x, 0.4, x + 0.42, 1.0, tone="ink") for x in (0.0, 0.58)),
            *(_oval(x + 0.07, 0.5, x + 0.35, 0.9, tone="steel") for x in (0.0, 0.58)),
            _line(0.21, 0.7, 0.36, 0.28, 0.7, 0.28, 0.46, 0.7, 0.21, 0.7, width=0.07),
            _line(0.36, 0.28, 0.46, 0.7, width=0.07),
            _line(0.79, 0.7, 0.68, 0.1, 0.84, 0.08, width=0.07),
            _line(0.28, 0.2, 0.44, 0.2, tone="ink", width=0.1),
        ),
        ("bike",),
    ),
    "boat": Kind(
        "boats",
        (0.32, 0.34),
        ("white", "red", "blue", "yellow"),
        "ground",
        (
            _line(0.48, 0.0, 0.48, 0.76, tone="wood", width=0.06),
            _poly(0.53, 0.04, 0.53, 0.66, 0.95, 0.66, tone="paper"),
            _poly(0.43, 0.14, 0.43, 0.66, 0.12, 0.66, tone="light"),
            _poly(0.0, 0.74, 1.0, 0.74, 0.82, 1.0, 0.18, 1.0),
        ),
        ("sailboat",),
    ),
    "tree": Kind(
        "trees",
        (0.3, 0.46),
        ("green", "orange", "yellow"),
        "ground",
        (
            _rect(0.42, 0.55, 0.58, 1.0, tone="wood"),
            _oval(0.0, 0.22, 0.56, 0.68),
            _oval(0.44, 0.22, 1.0, 0.68),
            _oval(0.18, 0.0, 0.82, 0.5),
            _oval(0.3, 0.12, 0.5, 0.28, tone="light"),
        ),
    ),
    "flower": Kind(
        "flowers",
        (0.14, 0.24),
        ("red", "yellow", "pink", "purple", "white"),
        "ground",
        (
            _line(0.5, 0.4, 0.5, 1.0, tone="leaf", width=0.1),
            _poly(0.5, 0.82, 0.92, 0.58, 0.74, 0.86, tone="leaf"),
            _oval(0.3, 0.0, 0.7, 0.24),
            _oval(0.3, 0.3, 0.7, 0.54),
            _oval(0.02, 0.14, 0.42, 0.4),
            _oval(0.58, 0.14, 0.98, 0.4),
            _oval(0.34, 0.17, 0.66, 0.37, tone="signal amber"),
        ),
    ),
    "bench": Kind(
        "benches",
        (0.34, 0.19),
        ("brown", "green", "gray"),
        "ground",
        (
            _rect(0.02, 0.0, 0.98, 0.14),
            _rect(0.02, 0.22, 0.98, 0.36),
            _rect(0.0, 0.5, 1.0, 0.66, tone="dark"),
            _rect(0.1, 0.0, 0.17, 1.0, tone="ink"),
            _rect(0.83, 0.0, 0.9, 1.0, tone="ink"),
        ),
    ),
    "fence": Kind(
        "fences",
        (0.42, 0.17),
        ("white", "brown", "gray"),
        "ground",
        (
            _rect(0.0, 0.34, 1.0, 0.46, tone="dark"),
            _rect(0.0, 0.68, 1.0, 0.8, tone="dark"),
            *(
                _poly(x, 0.16, x + 0.05, 0.0, x + 0.1, 0.16, x + 0.1, 1.0, x, 1.0)
                for x in (0.02, 0.19, 0.36, 0.53, 0.7, 0.87)
            ),
        ),
    ),
    "house": Kind(
        "houses",
        (0.38, 0.4),
        ("white", "red", "yellow", "blue", "pink"),
        "ground",
        (
            _rect(0.12, 0.44, 0.88, 1.0),
            _poly(0.0, 0.46, 0.5, 0.02, 1.0, 0.46, tone="wood"),
            _rect(0.43, 0.66, 0.6, 1.0, tone="ink"),
            _rect(0.2, 0.56, 0.36, 0.74, tone="glass"),
            _rect(0.67, 0.56, 0.82, 0.74, tone="glass"),
        ),
        ("building",),
    ),
    "traffic light": Kind(
        "traffic lights",
        (0.1, 0.42),
        ("black", "yellow", "gray"),
        "ground",
        (
            _rect(0.42, 0.4, 0.58, 1.0, tone="steel"),
            _rect(0.1, 0.0, 0.9, 0.5),
            _oval(0.28, 0.03, 0.72, 0.16, tone="signal red"),
            _oval(0.28, 0.18, 0.72, 0.31, tone="signal amber"),
            _oval(0.28, 0.33, 0.72, 0.46, tone="signal green"),
        ),
    ),
    "kite": Kind(
        "kites",
        (0.19, 0.28),
        ("red", "yellow", "purple", "green", "blue"),
        "air",
        (
            _poly(0.5, 0.0, 0.96, 0.3, 0.5, 0.7, 0.04, 0.3),
            _poly(0.5, 0.0, 0.96, 0.3, 0.5, 0.3, tone="light"),
            _poly(0.04, 0.3, 0.5, 0.3, 0.5, 0.7, tone="dark"),
            _line(0.5, 0.7, 0.38, 0.8, 0.6, 0.9, 0.44, 1.0, tone="ink", width=0.07),
        ),
    ),
    "ball": Kind(
        "balls",
        (0.13, 0.13),
        ("red", "blue", "yellow", "green", "orange"),
        "ground",
        (
            _oval(0.0, 0.0, 1.0, 1.0),
            _oval(0.3, 0.0, 0.7, 1.0, tone="paper"),
            _rect(0.02, 0.42, 0.98, 0.58, tone="dark"),
        ),
    ),
    "umbrella": Kind(
        "umbrellas",
        (0.32, 0.34),
        ("red", "yellow", "blue", "purple", "green"),
        "ground",
        (
            _line(0.5, 0.1, 0.5, 1.0, tone="wood", width=0.06),
            _poly(0.0, 0.42, 0.14, 0.16, 0.5, 0.0, 0.86, 0.16, 1.0, 0.42),
            _poly(0.34, 0.42, 0.42, 0.14, 0.5, 0.0, 0.58, 0.14, 0.66, 0.42, tone="paper"),
        ),
    ),
    "table": Kind(
        "tables",
        (0.4, 0.22),
        ("brown", "white", "gray"),
        "ground",
        (
            _rect(0.0, 0.0, 1.0, 0.22),
            _rect(0.06, 0.2, 0.94, 0.3, tone="dark"),
            _rect(0.08, 0.22, 0.18, 1.0),
            _rect(0.82, 0.22, 0.92, 1.0),
        ),
    ),
    "chair": Kind(
        "chairs",
        (0.18, 0.28),
        _FURNITURE,
        "ground",
        (
            _rect(0.06, 0.0, 0.22, 1.0),
            _rect(0.06, 0.04, 0.22, 0.4, tone="dark"),
            _rect(0.06, 0.48, 0.94, 0.64),
            _rect(0.78, 0.6, 0.92, 1.0),
            _rect(0.2, 0.1, 0.34, 0.48, tone="light"),
        ),
    ),
    "sofa": Kind(
        "sofas",
        (0.44, 0.23),
        ("red", "blue", "gray", "green", "brown"),
        "ground",
        (
            _rect(0.08, 0.0, 0.92, 0.6),
            _oval(0.0, 0.24, 0.18, 0.94, tone="dark"),
            _oval(0.82, 0.24, 1.0, 0.94, tone="dark"),
            _rect(0.1, 0.46, 0.5, 0.74, tone="light"),
            _rect(0.51, 0.46, 0.9, 0.74, tone="light"),
            _rect(0.06, 0.7, 0.94, 0.92, tone="dark"),
        ),
        ("couch",),
    ),
    "bed": Kind(
        "beds",
        (0.46, 0.23),
        ("blue", "white", "red", "green", "purple"),
        "ground",
        (
            _rect(0.0, 0.0, 0.07, 1.0, tone="wood"),
            _rect(0.93, 0.36, 1.0, 1.0, tone="wood"),
            _rect(0.05, 0.58, 0.95, 0.82, tone="wood"),
            _rect(0.07, 0.44, 0.94, 0.68),
            _oval(0.08, 0.22, 0.32, 0.5, tone="paper"),
        ),
    ),
    "lamp": Kind(
        "lamps",
        (0.17, 0.38),
        ("yellow", "white", "red", "green"),
        "ground",
        (
            _rect(0.46, 0.3, 0.54, 0.94, tone="ink"),
            _oval(0.2, 0.9, 0.8, 1.0, tone="ink"),
            _poly(0.26, 0.0, 0.74, 0.0, 1.0, 0.36, 0.0, 0.36),
            _rect(0.1, 0.32, 0.9, 0.38, tone="glow"),
        ),
    ),
    "television": Kind(
        "televisions",
        (0.32, 0.24),
        ("black", "gray", "white"),
        "wall",
        (
            _rect(0.0, 0.0, 1.0, 0.8),
            _rect(0.06, 0.08, 0.94, 0.72, tone="glass"),
            _poly(0.06, 0.72, 0.5, 0.08, 0.7, 0.08, 0.26, 0.72, tone="paper"),
            _rect(0.42, 0.8, 0.58, 0.92),
            _rect(0.26, 0.9, 0.74, 1.0),
        ),
        ("tv",),
    ),
    "clock": Kind(
        "clocks",
        (0.16, 0.16),
        ("black", "brown", "red", "blue"),
        "wall",
        (
            _oval(0.0, 0.0, 1.0, 1.0),
            _oval(0.14, 0.14, 0.86, 0.86, tone="paper"),
            _line(0.5, 0.5, 0.5, 0.22, tone="ink", width=0.09),
            _line(0.5, 0.5, 0.72, 0.6, tone="ink", width=0.09),
        ),
    ),
    "book": Kind(
        "books",
        (0.19, 0.13),
        ("red", "blue", "green", "brown", "purple"),
        "ground",
        (
            _poly(0.0, 0.1, 0.5, 0.24, 1.0, 0.1, 1.0, 0.9, 0.5, 1.0, 0.0, 0.9),
            _poly(0.08, 0.06, 0.47, 0.2, 0.47, 0.86, 0.08, 0.74, tone="paper"),
            _poly(0.53, 0.2, 0.92, 0.06, 0.92, 0.74, 0.53, 0.86, tone="paper"),
        ),
    ),
    "laptop": Kind(
        "laptops",
        (0.26, 0.2),
        ("gray", "black", "white"),
        "ground",
        (
            _rect(0.12, 0.0, 0.88, 0.68),
            _rect(0.18, 0.07, 0.82, 0.6, tone="glass"),
            _poly(0.12, 0.68, 0.88, 0.68, 1.0, 0.98, 0.0, 0.98, tone="dark"),
            _poly(0.2, 0.74, 0.8, 0.74, 0.86, 0.86, 0.14, 0.86, tone="ink"),
        ),
        ("computer",),
    ),
    "cup": Kind(
        "cups",
        (0.13, 0.13),
        _SMALL,
        "ground",
        (
            _oval(0.56, 0.2, 1.0, 0.76),
            _oval(0.66, 0.34, 0.88, 0.62, tone="paper"),
            _poly(0.04, 0.06, 0.76, 0.06, 0.66, 1.0, 0.14, 1.0),
            _oval(0.04, 0.0, 0.76, 0.18, tone="dark"),
        ),
        ("mug",),
    ),
    "bottle": Kind(
        "bottles",
        (0.1, 0.26),
        ("green", "blue", "brown", "white"),
        "ground",
        (
            _rect(0.36, 0.0, 0.64, 0.12, tone="ink"),
            _rect(0.38, 0.1, 0.62, 0.36),
            _oval(0.1, 0.28, 0.9, 0.56),
            _rect(0.1, 0.42, 0.9, 1.0),
            _rect(0.1, 0.56, 0.9, 0.8, tone="paper"),
        ),
    ),
    "bowl": Kind(
        "bowls",
        (0.22, 0.13),
        _SMALL,
        "ground",
        (
            _poly(0.0, 0.2, 1.0, 0.2, 0.86, 0.7, 0.68, 0.92, 0.32, 0.92, 0.14, 0.7),
            _oval(0.0, 0.02, 1.0, 0.4, tone="light"),
            _rect(0.32, 0.88, 0.68, 1.0, tone="dark"),
        ),
    ),
    "apple": Kind(
        "apples",
        (0.11, 0.13),
        ("red", "green", "yellow"),
        "ground",
        (
            _oval(0.0, 0.22, 0.62, 0.98),
            _oval(0.38, 0.22, 1.0, 0.98),
            _line(0.5, 0.34, 0.54, 0.02, tone="wood", width=0.1),
            _poly(0.54, 0.16, 0.86, 0.0, 0.76, 0.22, tone="leaf"),
        ),
    ),
    "banana": Kind(
        "bananas",
        (0.21, 0.13),
        ("yellow", "green"),
        "ground",
        (
            _poly(
                0.0, 0.3, 0.1, 0.24, 0.3, 0.56, 0.62, 0.58, 0.88, 0.18, 1.0, 0.24, 0.84, 0.76, 0.54, 0.98, 0.24, 0.86
            ),
            _rect(0.86, 0.04, 0.96, 0.26, tone="wood"),
            _line(0.12, 0.48, 0.34, 0.76, 0.62, 0.76, tone="dark", width=0.06),
        ),
    ),
}


@dataclass(frozen=True)
class Place:
    """A kind of scene.

    Attributes:
        objects: how probably each typical object is there. This is the prior that a model learns.
        above, below: colours of the wall or sky and of the floor or ground.
        horizon: where they meet, from the top, as a share of the height.
        marks: what else belongs to the background; no objects.
    """

    objects: dict[str, float]
    above: Rgb
    below: Rgb
    horizon: float
    marks: tuple[Shape, ...] = ()


def _typical(text: str) -> dict[str, float]:
    """From "name probability, name probability"."""
    pairs = (entry.rsplit(maxsplit=1) for entry in text.split(", "))
    return {name: float(chance) for name, chance in pairs}


PLACES: dict[str, Place] = {
    "street": Place(
        _typical("car 0.9, traffic light 0.7, person 0.75, house 0.6, bus 0.5, bicycle 0.45, truck 0.35, tree 0.3"),
        (184, 200, 216),
        (112, 112, 116),
        0.52,
        (
            _rect(0.0, 0.52, 1.0, 0.56, tone="steel"),
            *(_rect(x, 0.76, x + 0.14, 0.78, tone="paper") for x in (0.04, 0.3, 0.56, 0.82)),
        ),
    ),
    "park": Place(
        _typical("tree 0.9, bench 0.75, dog 0.6, person 0.55, bird 0.5, flower 0.55, ball 0.35, kite 0.3"),
        (168, 216, 240),
        (128, 188, 96),
        0.48,
        (_poly(0.4, 0.48, 0.5, 0.48, 0.66, 1.0, 0.3, 1.0, tone="skin"),),
    ),
    "beach": Place(
        _typical("umbrella 0.85, boat 0.7, person 0.65, ball 0.5, bird 0.55, chair 0.4, kite 0.35"),
        (152, 208, 244),
        (236, 216, 160),
        0.4,
        (_rect(0.0, 0.4, 1.0, 0.56, tone="glass"), _rect(0.0, 0.44, 1.0, 0.53, tone="signal green")),
    ),
    "farm": Place(
        _typical("cow 0.85, fence 0.75, horse 0.6, house 0.6, tree 0.5, truck 0.4, bird 0.35, dog 0.35"),
        (200, 220, 232),
        (188, 172, 92),
        0.44,
        tuple(_line(0.0, y, 1.0, y + 0.04, tone="wood", width=0.008) for y in (0.55, 0.67, 0.79, 0.91)),
    ),
    "kitchen": Place(
        _typical("table 0.85, bowl 0.65, cup 0.65, bottle 0.6, apple 0.5, banana 0.45, clock 0.4, chair 0.45"),
        (232, 232, 220),
        (176, 156, 140),
        0.62,
        (
            *(_line(x, 0.0, x, 0.62, tone="steel", width=0.006) for x in (0.2, 0.4, 0.6, 0.8)),
            *(_line(0.0, y, 1.0, y, tone="steel", width=0.006) for y in (0.16, 0.32, 0.48)),
        ),
    ),
    "living room": Place(
        _typical("sofa 0.9, lamp 0.75, television 0.7, cat 0.5, book 0.45, clock 0.4, table 0.4, flower 0.35"),
        (228, 204, 172),
        (148, 96, 64),
        0.6,
        (_oval(0.12, 0.72, 0.88, 0.98, tone="signal red"), _oval(0.2, 0.76, 0.8, 0.94, tone="skin")),
    ),
    "bedroom": Place(
        _typical("bed 0.92, lamp 0.7, book 0.55, clock 0.5, cat 0.4, chair 0.4, laptop 0.3"),
        (196, 192, 224),
        (172, 148, 168),
        0.6,
        (_rect(0.7, 0.08, 0.94, 0.4, tone="paper"), _rect(0.72, 0.1, 0.92, 0.38, tone="glass")),
    ),
    "office": Place(
        _typical("laptop 0.9, chair 0.75, cup 0.6, book 0.6, clock 0.5, table 0.55, bottle 0.35, lamp 0.3"),
        (208, 216, 220),
        (92, 104, 124),
        0.6,
        tuple(_rect(0.06, y, 0.94, y + 0.012, tone="steel") for y in (0.06, 0.1, 0.14, 0.18, 0.22)),
    ),
}
