"""The drawn world of the bundled model, its scenes with their exact contents, and their pictures.

The kinds of places and objects lie in `world.json`: a glyph is a list of shapes in a unit square (x to the right, y
down), drawn in order. A shape's tone is `main` (the object's colour), `dark` or `light` (shades of it), or a fixed one.
A seed decides a scene. As in photographs, evidence is sometimes weak: an object may be small, faint, or mostly hidden
by another. It still counts as in the picture. Several objects of a kind stand side by side, in full view.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageDraw

from sira_cli.errors import PictureError
from sira_cli.pictures.picture import Picture, Source

SIDE = 384  # pixels
MOST_COLORS = 4_000  # of a picture that may be a scene; 300 test scenes have up to 1,135
FORMS = ("rect", "ellipse", "polygon", "line")
Rgb = tuple[int, int, int]
Rng = np.random.Generator
Box = tuple[int, int, int, int]  # x0, y0, x1, y1 in pixels

# Three ranges of seeds that do not overlap.
TRAINING_SEEDS = range(1_000_000)
VALIDATION_SEEDS = range(1_000_000, 2_000_000)
TEST_SEEDS = range(2_000_000, 3_000_000)

MIN_KINDS, MAX_KINDS = 3, 7
STRAY = 0.2  # share of scenes with an object that does not belong there
WEAKNESSES = ("none", "small", "faint", "hidden")
WEAK = 0.35  # share of single objects that give weak evidence
COUNTS = {1: 0.8, 2: 0.14, 3: 0.06}  # of a kind: number and its probability
KEPT = 0.25  # factor on a typical object's probability where co-occurrence is broken
SCALES = (0.75, 1.15)  # smallest and largest, of a kind's size
SMALL_SCALES = (0.32, 0.55)
GAP = 0.12  # between neighbours of a kind, as a share of one's width
WIDEST = 0.6  # row of a kind, as a share of the picture's side
FAINT = (0.12, 0.35)  # smallest and largest opacity
SPOTS = 12  # that are tried for each object
MIN_VISIBLE = 0.15  # share of an object's box that must be visible; otherwise the object is left out


@dataclass(frozen=True)
class Shape:
    """A part of a glyph."""

    form: str  # one of FORMS
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
    above: Rgb  # the colour of the wall or sky
    below: Rgb  # of the floor or ground
    horizon: float  # the border between them, from the top, as a share of the height
    marks: tuple[Shape, ...]  # other parts of the background; not objects
    preposition: str = "in"  # a picture was taken `in` a kitchen, `on` a farm


def _read(row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a kind or a place: lists are tuples, shapes are read."""
    fields = {}
    for name, value in row.items():
        if name in ("glyph", "marks"):
            fields[name] = tuple(map(_shape, value))
        else:
            fields[name] = tuple(value) if isinstance(value, list) else value
    return fields


def _shape(row: dict[str, Any]) -> Shape:
    form = next(form for form in FORMS if form in row)
    return Shape(form, tuple(row[form]), row.get("tone", "main"), row.get("width", 0.08))


_DATA = json.loads(Path(__file__).with_name("world.json").read_text(encoding="utf-8"))

COLORS: dict[str, Rgb] = {name: tuple(values) for name, values in _DATA["colors"].items()}
FIXED: dict[str, Rgb] = {name: tuple(values) for name, values in _DATA["fixed_tones"].items()}
OBJECTS = {name: Kind(**_read(row)) for name, row in _DATA["objects"].items()}
PLACES = {name: Place(**_read(row)) for name, row in _DATA["places"].items()}


@dataclass(frozen=True)
class SceneObject:
    """One object in a picture; `box` in pixels (x0, y0, x1, y1), `strength` the opacity it is painted with."""

    name: str
    color: str
    box: Box
    strength: float = 1.0


@dataclass(frozen=True)
class Scene:
    """A picture's exact content."""

    seed: int
    place: str
    things: tuple[SceneObject, ...]  # from back to front
    broken: bool = False  # whether the objects are not typical of `place`

    @property
    def objects(self) -> dict[str, list[SceneObject]]:
        """Kinds of objects in the scene, each with its instances."""
        found: dict[str, list[SceneObject]] = {}
        for thing in self.things:
            found.setdefault(thing.name, []).append(thing)
        return found


@dataclass(frozen=True)
class _Group:
    """The objects of a kind that a scene is to hold."""

    name: str
    color: str
    count: int
    weakness: str  # one of `WEAKNESSES`


def make_scene(seed: int, broken: bool = False) -> Scene:
    """Make the scene of a seed. With `broken`, typical objects are rare and others take their places."""
    rng = np.random.default_rng([seed, broken])
    place = str(rng.choice(list(PLACES)))
    weak_chances = [1 - WEAK, WEAK / 3, WEAK / 3, WEAK / 3]
    groups: list[_Group] = []
    for name in _pick_objects(rng, place, broken):
        colors = list(OBJECTS[name].colors)
        chances = np.ones(len(colors))
        chances[0] = 2.0
        color = str(rng.choice(colors, p=chances / chances.sum()))
        count = int(rng.choice(list(COUNTS), p=list(COUNTS.values())))
        weakness = "none" if count > 1 else str(rng.choice(WEAKNESSES, p=weak_chances))
        groups.append(_Group(name, color, count, weakness))
    groups.sort(key=lambda group: group.count > 1)  # nothing is put over several of a kind but others like them
    things: list[SceneObject] = []
    for group in groups:
        _put(rng, things, group, PLACES[place].horizon)
    return Scene(seed, place, tuple(_visible(things)), broken)


def render(scene: Scene) -> tuple[Image.Image, np.ndarray]:
    """Draw a scene; return its picture, and for each pixel `[SIDE, SIDE]` the number of the object seen there, or 0."""
    rng = np.random.default_rng([scene.seed, scene.broken, 1])
    image = _background(rng, PLACES[scene.place])
    seen = np.zeros((SIDE, SIDE), np.int16)
    for number, thing in enumerate(scene.things, start=1):
        silhouette = _paint(rng, image, thing)
        x0, y0, x1, y1 = thing.box
        seen[y0:y1, x0:x1][np.asarray(silhouette) > 127] = number
    noise = rng.integers(-9, 10, (SIDE, SIDE, 1), dtype=np.int16)
    samples = np.asarray(image) + noise
    return Image.fromarray(samples.clip(0, 255).astype(np.uint8)), seen


def _background(rng: Rng, place: Place) -> Image.Image:
    image = Image.new("RGB", (SIDE, SIDE), _jitter(rng, place.above))
    draw = ImageDraw.Draw(image)
    horizon = round(place.horizon * SIDE)
    draw.rectangle((0, horizon, SIDE, SIDE), fill=_jitter(rng, place.below))
    for shape in place.marks:
        tone = _mix(FIXED[shape.tone], place.below, 0.4)
        _draw(draw, shape, (0, 0, SIDE, SIDE), _jitter(rng, tone))
    return image


def _paint(rng: Rng, image: Image.Image, thing: SceneObject) -> Image.Image:
    """Paint an object; return its silhouette, white on black, of the size of its box."""
    x0, y0, x1, y1 = thing.box
    size = (x1 - x0, y1 - y0)
    silhouette = Image.new("L", size)
    stencil = ImageDraw.Draw(silhouette)
    painted = image.crop(thing.box)
    brush = ImageDraw.Draw(painted)
    main = _jitter(rng, COLORS[thing.color], 10)
    tones = {
        **FIXED,
        "main": main,
        "dark": _mix(main, (0, 0, 0), 0.3),
        "light": _mix(main, (255, 255, 255), 0.35),
    }
    for shape in OBJECTS[thing.name].glyph:
        _draw(brush, shape, (0, 0, *size), tones[shape.tone])
        _draw(stencil, shape, (0, 0, *size), 255)
    opacity = [round(level * thing.strength) for level in range(256)]
    image.paste(painted, (x0, y0), silhouette.point(opacity))
    return silhouette


def _pick_objects(rng: Rng, place: str, broken: bool) -> list[str]:
    typical = PLACES[place].objects
    others = [name for name in OBJECTS if name not in typical]
    factor = KEPT if broken else 1
    chosen: list[str] = []
    while not MIN_KINDS <= len(chosen) <= MAX_KINDS:
        chosen = [name for name, chance in typical.items() if rng.random() < chance * factor]
        if broken:
            count = int(rng.integers(2, 5))
            chosen += rng.choice(others, size=count, replace=False).tolist()
        elif rng.random() < STRAY:
            chosen.append(str(rng.choice(others)))
    return [str(name) for name in rng.permutation(chosen)]


def _put(rng: Rng, things: list[SceneObject], group: _Group, horizon: float) -> None:
    """Add objects of a kind where the others stay visible; a hidden object is put under an earlier one.

    The order of the random draws decides the scene of a seed.

    Args:
        rng: draws size, opacity and places.
        things: the scene's objects so far, from back to front.
        group: what to add: one object, or several side by side; the first object of a scene cannot be hidden.
        horizon: the place's, as a share of the height.
    """
    kind = OBJECTS[group.name]
    scale = rng.uniform(*(SMALL_SCALES if group.weakness == "small" else SCALES))
    strength = float(rng.uniform(*FAINT)) if group.weakness == "faint" else 1.0
    widths = group.count + GAP * (group.count - 1)  # of the row, in widths of one
    if group.count > 1:
        scale = min(scale, WIDEST / (kind.size[0] * widths))
    width, height = (max(10, round(side * scale * SIDE)) for side in kind.size)
    is_hidden = group.weakness == "hidden" and len(things) > 0
    x0, y0, _, y1 = _free_box(rng, things, kind, horizon, (round(widths * width), height), is_hidden)
    for number in range(group.count):
        left = x0 + round(number * (1 + GAP) * width)
        thing = SceneObject(group.name, group.color, (left, y0, left + width, y1), strength)
        things.insert(0 if is_hidden else len(things), thing)


def _free_box(
    rng: Rng,
    things: list[SceneObject],
    kind: Kind,
    horizon: float,
    size: tuple[int, int],
    is_hidden: bool,
) -> Box:
    """Return the box of a width and height that suits best among `SPOTS` that are tried."""
    width, height = size
    boxes = []
    for _ in range(SPOTS):
        if is_hidden:
            middle, foot = _spot_under(rng, things)
        else:
            middle, foot = _spot_in_view(rng, kind, horizon)
        x0 = round(min(max(middle - width / 2, 0), SIDE - width))
        y0 = round(min(max(foot - height, 0), SIDE - height))
        boxes.append((x0, y0, x0 + width, y0 + height))
    return min(boxes, key=lambda box: _misfit(box, things, is_hidden))


def _spot_under(rng: Rng, things: list[SceneObject]) -> tuple[float, float]:
    """Draw the middle and the foot of an object that one of the others hides, in pixels."""
    x0, y0, x1, y1 = things[int(rng.integers(len(things)))].box
    middle = (x0 + x1) / 2 + rng.uniform(-0.45, 0.45) * (x1 - x0)
    foot = y1 - rng.uniform(0.0, 0.35) * (y1 - y0)
    return middle, foot


def _spot_in_view(rng: Rng, kind: Kind, horizon: float) -> tuple[float, float]:
    """Draw the middle and the foot of an object where its kind is found, in pixels."""
    middle = rng.uniform(0.08, 0.92) * SIDE
    match kind.where:
        case "ground":
            foot = rng.uniform(horizon + 0.06, 0.97)
        case "wall":
            foot = rng.uniform(0.2, horizon)
        case "air":
            foot = rng.uniform(0.16, horizon + 0.1)
    return middle, foot * SIDE


def _misfit(box: Box, things: list[SceneObject], is_hidden: bool) -> float:
    """Return how badly a box suits an object among others, which hide it, or which it hides."""
    covered = max((_share(box, thing.box) for thing in things), default=0.0)  # if it goes behind
    if is_hidden:
        return abs(covered - 0.6)
    covers = max((_share(thing.box, box) for thing in things), default=0.0)  # if it goes in front
    return covers + 0.5 * covered


def _visible(things: list[SceneObject]) -> list[SceneObject]:
    """Keep objects that are visible enough, judged by their boxes."""
    covered = np.zeros((SIDE, SIDE), bool)
    kept: list[SceneObject] = []
    for thing in reversed(things):
        x0, y0, x1, y1 = thing.box
        if covered[y0:y1, x0:x1].mean() <= 1 - MIN_VISIBLE:
            kept.insert(0, thing)
            covered[y0:y1, x0:x1] = True
    return kept


def _share(box: Box, under: Box) -> float:
    """Return the share of the first box that the second covers."""
    x0, y0, x1, y1 = box
    left, top, right, bottom = under
    width = max(0, min(x1, right) - max(x0, left))
    height = max(0, min(y1, bottom) - max(y0, top))
    return width * height / ((x1 - x0) * (y1 - y0))


def _draw(draw: ImageDraw.ImageDraw, shape: Shape, box: Box, fill: Rgb | int) -> None:
    x0, y0, x1, y1 = box
    width = x1 - x0
    height = y1 - y0
    xs = [x0 + x * width for x in shape.at[::2]]
    ys = [y0 + y * height for y in shape.at[1::2]]
    corners = list(zip(xs, ys, strict=True))
    match shape.form:
        case "rect":
            draw.rectangle(corners, fill=fill)
        case "ellipse":
            draw.ellipse(corners, fill=fill)
        case "polygon":
            draw.polygon(corners, fill=fill)
        case _:
            thickness = max(2, round(shape.width * min(width, height)))
            draw.line(corners, fill=fill, width=thickness, joint="curve")


def _mix(tone: Rgb, other: Rgb, share: float) -> Rgb:
    red, green, blue = tone
    other_red, other_green, other_blue = other
    return (
        round(red + share * (other_red - red)),
        round(green + share * (other_green - green)),
        round(blue + share * (other_blue - blue)),
    )


def _jitter(rng: Rng, color: Rgb, amount: int = 14) -> Rgb:
    shifts = [rng.integers(-amount, amount + 1) for _ in color]
    red, green, blue = np.clip(np.add(color, shifts), 0, 255).tolist()
    return red, green, blue


def looks_drawn(picture: Picture) -> bool:
    """Return whether a file looks like a rendered scene, by its size and few colours."""
    if not picture.is_here():
        return False
    try:
        image = picture.open().image
    except PictureError:
        return True  # the error has the details
    return image.size == (SIDE, SIDE) and image.getcolors(MOST_COLORS) is not None


@dataclass(frozen=True, slots=True)
class SceneSource(Source):
    """A scene that is drawn when it is opened. `scene_picture` makes it."""

    scene: Scene | None = None

    def read(self) -> bytes:
        """Draw the scene as a PNG file."""
        assert self.scene is not None
        file = io.BytesIO()
        render(self.scene)[0].save(file, "png", compress_level=1)
        return file.getvalue()


def scene_picture(scene: Scene) -> Picture:
    """Return a scene as a picture, named after its seed."""
    name = f"scene {scene.seed}"
    return Picture((SceneSource(name, name, scene),))
