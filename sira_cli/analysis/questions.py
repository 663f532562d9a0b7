"""Labelled yes/no questions about pictures, from POPE's files, and the places of their objects, from COCO's.

Places are boxes: a box hides an object, and a black silhouette would still reveal it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from sira_cli.errors import DataError
from sira_cli.eval.chair import HEADS, coco_rows, image_of
from sira_cli.eval.pope import read_questions, split_names
from sira_cli.eval.statistics import Counts
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.rows import brief, read_json
from sira_cli.pictures.sources import located
from sira_cli.run.records import hash_of

INSTANCES = "instances_*.json"
DECODED = 2  # pictures whose bytes and samples wait for the next question about them
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
    picture_of: Callable[[str], Picture]  # by its name
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
    """Read POPE's question files, each a split that is named after the file.

    Args:
        paths: the files.
        folder: of the pictures.
        limit: maximum number of questions of each file.
        suffix: follows each question.
    """
    splits = tuple(split_names(paths))
    asked_in: dict[str, dict[tuple[str, bool], list[str]]] = {}  # splits by picture, question and answer
    for path, split in zip(paths, splits, strict=True):
        for row in read_questions(path)[:limit]:
            about_picture = asked_in.setdefault(row.image, {})
            about_picture.setdefault((row.text + suffix, row.expected), []).append(split)
    questions = []
    for picture, about_picture in asked_in.items():
        for (text, expected), belongs_to in about_picture.items():
            questions.append(Question(picture, text, expected, tuple(belongs_to)))
    folder = folder.resolve()

    def picture_of(name: str) -> Picture:
        return located(str(folder / name))

    return QuestionSet(splits, tuple(questions), picture_of, folder=str(folder))


def with_places(
    paths: Sequence[Path], folder: Path, limit: int | None = None, annotations: Path | None = None
) -> QuestionSet:
    """Read POPE's question files, each question once, and the places of the objects, if there are annotations."""
    read = in_splits(paths, folder, limit)
    rows = [(question.picture, question.text, question.expected) for question in read.questions]
    if len({row[:2] for row in rows}) < len(rows):
        raise DataError(f"{paths[0]}: a question has both labels, here or in another file: leave one out")
    made_from = {"files": [path.name for path in paths], "questions_sha256": hash_of(questions=rows)}
    if annotations is None:
        return replace(read, made_from=made_from)
    objects = _read_objects(annotations, {image_of(picture) for picture in read.pictures})
    made_from["annotations"] = [file.name for file in objects.files]
    return replace(read, outlines=objects.of_question, made_from=made_from)


@dataclass(frozen=True)
class _Objects:
    """The objects of some images, from COCO's files.

    Attributes:
        files: the files that were read.
        categories: the category of each word that a question may use.
        outlines: the outlines of objects, by image and category.
    """

    files: list[Path]
    categories: dict[str, str]
    outlines: dict[int | None, dict[str, list[Outline]]]

    def of_question(self, question: Question) -> Sequence[Outline]:
        """Return the outlines of the objects that a question names; of several categories, the longest word's."""
        text = question.text.lower()
        named = [word for word in self.categories if re.search(rf"\b{re.escape(word)}\b", text)]
        if not named:
            return ()
        in_image = self.outlines.get(image_of(question.picture), {})
        return in_image.get(self.categories[max(named, key=len)], ())


def _read_objects(path: Path, images: Collection[int | None]) -> _Objects:
    """Read the objects of some images from COCO's file, or from all those in a folder."""
    files = [path] if path.is_file() else sorted([*path.glob(INSTANCES), *path.glob(f"annotations/{INSTANCES}")])
    if not files:
        raise DataError(f"{path}: expected COCO's instances_val2014.json or the like, or a folder that holds it")
    names: set[str] = set()
    outlines: dict[int | None, dict[str, list[Outline]]] = {}
    for file in files:
        content = read_json(file)
        categories = {row["id"]: row["name"] for row in coco_rows(file, content, "categories", id=int, name=str)}
        names.update(categories.values())
        for row in coco_rows(file, content, "annotations", image_id=int, category_id=int):
            image = row["image_id"]
            category = categories.get(row["category_id"])
            if image in images and category is not None:
                in_image = outlines.setdefault(image, {})
                in_image.setdefault(category, []).append(_outline(file, row))
    if not outlines:
        raise DataError(f"{path}: has no objects of the questions' pictures")
    # Categories have the names of the heads of CHAIR's list, whose other words questions may use.
    words = {word: head for word, head in HEADS.items() if head in names}
    words |= {name: name for name in names}
    return _Objects(files, words, outlines)


def _outline(file: Path, row: Mapping[str, Any]) -> Outline:
    """Return the box of an object."""
    try:
        x, y, width, height = map(float, row["bbox"])
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{file}: expected an object with its `bbox`: {brief(row, 80)}") from None
    return corners(x, y, x + width, y + height)


def corners(x0: float, y0: float, x1: float, y1: float) -> Outline:
    """Return the outline of a box, in pixels."""
    return (x0, y0, x1, y0, x1, y1, x0, y1)


def black_out(image: Image.Image, outlines: Sequence[Outline]) -> Image.Image:
    """Return a picture in which some regions are black."""
    hidden = image.copy()
    draw = ImageDraw.Draw(hidden)
    for outline in outlines:
        draw.polygon(outline, fill=(0, 0, 0))
    return hidden
