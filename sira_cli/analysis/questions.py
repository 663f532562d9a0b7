"""Labelled yes/no questions about pictures, from POPE's files, and the places of their objects, from COCO's.

Places are boxes, or outlines without boxes: a box hides an object, and a black silhouette would still reveal it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from sira_cli.errors import DataError
from sira_cli.eval.coco import HEADS, coco_rows, image_of
from sira_cli.eval.pope import read_questions, split_names
from sira_cli.eval.statistics import Counts
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.rows import brief, read_json
from sira_cli.pictures.sources import located
from sira_cli.run.records import hash_of

INSTANCES = "instances_*.json"
Outline = tuple[float, ...]  # corners x, y, x, y, ... in pixels


@dataclass(frozen=True)
class Question:
    """A question about a picture, and whether yes is the true answer; a split that asks it twice is named twice."""

    picture: str
    text: str
    expected: bool
    splits: tuple[str, ...] = ()


@dataclass(frozen=True)
class QuestionSet:
    """Questions, each once; questions about one picture follow each other."""

    splits: tuple[str, ...]
    questions: tuple[Question, ...]
    picture: Callable[[str], Picture]  # by its name
    count_caption: Callable[[str, str], Counts] | None = None  # by the picture's name; None: its objects are unknown
    folder: str = ""  # of the pictures, if they are files
    outlines: Callable[[Question], Sequence[Outline]] | None = None  # none of them: the object's place is unknown
    made_from: Mapping[str, Any] = field(default_factory=dict)  # the sources, as JSON holds them

    @property
    def pictures(self) -> list[str]:
        """The pictures' names, each once."""
        return list(dict.fromkeys(question.picture for question in self.questions))

    def files(self) -> Iterator[Picture]:
        """Yield the pictures in the folder."""
        return (located(str(Path(self.folder, name))) for name in self.pictures)


def in_splits(paths: Sequence[Path], folder: Path, limit: int | None = None, suffix: str = "") -> QuestionSet:
    """Read POPE's question files, each a split that is named after the file."""
    splits = tuple(split_names(paths))
    by_picture: dict[str, dict[tuple[str, bool], list[str]]] = {}
    for path, split in zip(paths, splits, strict=True):
        for row in read_questions(path)[:limit]:
            by_picture.setdefault(row.image, {}).setdefault((row.text + suffix, row.expected), []).append(split)
    questions = tuple(
        Question(picture, *asked, tuple(belongs_to))
        for picture, about in by_picture.items()
        for asked, belongs_to in about.items()
    )
    folder = folder.resolve()
    return QuestionSet(splits, questions, lambda name: located(str(folder / name)), folder=str(folder))


def with_places(
    paths: Sequence[Path], folder: Path, limit: int | None = None, annotations: Path | None = None
) -> QuestionSet:
    """Read POPE's question files, and the places of the objects; questions in several files are asked once."""
    labels: dict[tuple[str, str], bool] = {}
    for path in paths:
        for row in read_questions(path)[:limit]:
            if labels.setdefault((row.image, row.text), row.expected) != row.expected:
                raise DataError(f"{path}: {row.text!r} about {row.image} has another label in an earlier row")
    questions = tuple(Question(*asked, expected) for asked, expected in labels.items())
    rows = [[each.picture, each.text, each.expected] for each in questions]
    made_from = {"files": [path.name for path in paths], "questions_sha256": hash_of(questions=rows)}
    outlines: Callable[[Question], Sequence[Outline]] | None = None
    if annotations is not None:
        regions = Regions.read(annotations, {question.picture for question in questions})
        outlines, made_from["annotations"] = regions.about, regions.files
    folder = folder.resolve()
    return QuestionSet((), questions, lambda name: located(str(folder / name)), None, str(folder), outlines, made_from)


@dataclass(frozen=True)
class Regions:
    """Outlines of objects by image and category, the categories' names in questions, and the files that were read."""

    outlines: Mapping[int, Mapping[str, Sequence[Outline]]]
    words: Mapping[str, str]
    files: list[str]

    @classmethod
    def read(cls, path: Path, pictures: Collection[str]) -> Regions:
        """Read the objects in some pictures."""
        files = [path] if path.is_file() else sorted([*path.glob(INSTANCES), *path.glob(f"annotations/{INSTANCES}")])
        if not files:
            raise DataError(f"{path}: expected COCO's instances_val2014.json or the like, or a folder that holds it")
        ids = {image for picture in pictures if (image := image_of(picture)) is not None}
        wanted = {Path(picture).name for picture in pictures}
        outlines: dict[int, dict[str, list[Outline]]] = {}
        names: set[str] = set()
        for file in files:
            content = read_json(file)
            listed = isinstance(content, dict) and "images" in content
            rows = coco_rows(file, content, "images", id=int, file_name=str) if listed else ()
            known = {row["id"] for row in rows if Path(row["file_name"]).name in wanted} or ids
            categories = {row["id"]: row["name"] for row in coco_rows(file, content, "categories", id=int, name=str)}
            names |= {*categories.values()}
            for row in coco_rows(file, content, "annotations", image_id=int, category_id=int):
                if row["image_id"] in known and row["category_id"] in categories:
                    in_image = outlines.setdefault(row["image_id"], {})
                    in_image.setdefault(categories[row["category_id"]], []).extend(_outlines(file, row))
        if not outlines:
            raise DataError(f"{path}: has no objects of the questions' pictures")
        # Categories have the names of the heads of CHAIR's list, whose other words questions may use.
        words = {word: head for word, head in HEADS.items() if head in names} | {name: name for name in names}
        return cls(outlines, words, [file.name for file in files])

    def about(self, question: Question) -> Sequence[Outline]:
        """Return the outlines of the object that a question asks about."""
        image, text = image_of(question.picture), question.text.lower()
        named = [word for word in self.words if re.search(rf"\b{re.escape(word)}\b", text)]
        if image is None or not named:
            return ()
        return self.outlines.get(image, {}).get(self.words[max(named, key=len)], ())


def _outlines(file: Path, row: Mapping[str, Any]) -> list[Outline]:
    """Return the corners of an instance's box, or its polygons."""
    try:
        if "bbox" in row:
            x, y, width, height = map(float, row["bbox"])
            return [(x, y, x + width, y, x + width, y + height, x, y + height)]
        return [tuple(map(float, polygon)) for polygon in row["segmentation"]]
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{file}: neither a box nor polygons: {brief(row, 80)}") from None


def black_out(image: Image.Image, outlines: Sequence[Outline]) -> Image.Image:
    """Return a picture in which some regions are black."""
    hidden = image.copy()
    draw = ImageDraw.Draw(hidden)
    for outline in outlines:
        draw.polygon(outline, fill=(0, 0, 0))
    return hidden
