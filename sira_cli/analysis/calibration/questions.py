"""Labelled yes/no questions about objects, with the places of these objects: from POPE's files and COCO's instances.

Places are boxes, or outlines without boxes: a box hides an object, and a black silhouette would still reveal it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from sira_cli.analysis.sweep.questions import Question, QuestionSet
from sira_cli.errors import DataError
from sira_cli.eval.coco import HEADS, coco_rows, image_of
from sira_cli.eval.pope import read_questions
from sira_cli.pictures.rows import brief, read_json
from sira_cli.pictures.sources import located
from sira_cli.run.records import hash_of

BLACK = (0, 0, 0)

# Corners x, y, x, y, ... in pixels.
Outline = tuple[float, ...]


@dataclass(frozen=True)
class LabelledQuestions(QuestionSet):
    """Questions with the places of their objects.

    Attributes:
        outlines: returns the outlines of a question's object; empty if its place is unknown. None: no places are known.
        made_from: their sources, as JSON holds them.
    """

    outlines: Callable[[Question], Sequence[Outline]] | None = None
    made_from: Mapping[str, Any] = field(default_factory=dict)


def from_files(
    paths: Sequence[Path], folder: Path, limit: int | None = None, annotations: Path | None = None
) -> LabelledQuestions:
    """Read POPE's question files; questions in several files are asked once."""
    labels: dict[tuple[str, str], bool] = {}
    for path in paths:
        for row in read_questions(path)[:limit]:
            if labels.setdefault((row.image, row.text), row.expected) != row.expected:
                raise DataError(f"{path}: {row.text!r} about {row.image} has another label in an earlier row")
    questions = tuple(Question(*asked, expected) for asked, expected in labels.items())
    made_from: dict[str, Any] = {
        "files": [path.name for path in paths],
        "questions_sha256": hash_of(questions=[[each.picture, each.text, each.expected] for each in questions]),
    }
    outlines: Callable[[Question], Sequence[Outline]] | None = None
    if annotations is not None:
        regions = Regions.read(annotations, {question.picture for question in questions})
        made_from |= {"annotations": regions.files}

        def outlines(question: Question) -> Sequence[Outline]:
            return regions.about(question.picture, question.text)

    pictures = folder.resolve()
    return LabelledQuestions(
        (),
        questions,
        lambda name: located(str(pictures / name)),
        folder=str(pictures),
        outlines=outlines,
        made_from=made_from,
    )


@dataclass(frozen=True)
class Regions:
    """Outlines of objects by image and category.

    Attributes:
        outlines: outlines by the image's id.
        words: names of categories in questions.
        files: the names of the files that were read.
    """

    outlines: Mapping[int, Mapping[str, Sequence[Outline]]]
    words: Mapping[str, str]
    files: list[str]

    @classmethod
    def read(cls, path: Path, pictures: Collection[str]) -> Regions:
        """Read the objects in some pictures."""
        ids = {image for picture in pictures if (image := image_of(picture)) is not None}
        wanted = {Path(picture).name for picture in pictures}
        outlines: dict[int, dict[str, list[Outline]]] = {}
        names: set[str] = set()
        files = _files(path)
        for file in files:
            content = read_json(file)
            known = _ids(file, content, wanted) or ids
            categories = {row["id"]: row["name"] for row in coco_rows(file, content, "categories", id=int, name=str)}
            names |= {*categories.values()}
            for row in coco_rows(file, content, "annotations", image_id=int, category_id=int):
                if row["image_id"] in known and row["category_id"] in categories:
                    of_image = outlines.setdefault(row["image_id"], {})
                    of_image.setdefault(categories[row["category_id"]], []).extend(_outlines(file, row))
        if not outlines:
            raise DataError(f"{path}: has no objects of the questions' pictures")
        # Categories have the names of the heads of CHAIR's list, whose other words questions may use.
        words = {word: head for word, head in HEADS.items() if head in names} | {name: name for name in names}
        return cls(outlines, words, [file.name for file in files])

    def about(self, picture: str, question: str) -> Sequence[Outline]:
        """Return the outlines of the object that a question asks about, in a picture."""
        image = image_of(picture)
        found = [word for word in self.words if re.search(rf"\b{re.escape(word)}\b", question.lower())]
        if image is None or not found:
            return ()
        return self.outlines.get(image, {}).get(self.words[max(found, key=len)], ())


def black_out(image: Image.Image, outlines: Sequence[Outline]) -> Image.Image:
    """Return a picture in which some regions are black."""
    hidden = image.copy()
    draw = ImageDraw.Draw(hidden)
    for outline in outlines:
        draw.polygon(outline, fill=BLACK)
    return hidden


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = sorted([*path.glob("instances_*.json"), *path.glob("annotations/instances_*.json")])
    if not found:
        raise DataError(f"{path}: expected COCO's instances_val2014.json or the like, or a folder that holds it")
    return found


def _ids(file: Path, content: Any, wanted: Collection[str]) -> set[int]:
    """Return the ids of the named images that this file lists."""
    if not isinstance(content, dict) or "images" not in content:
        return set()
    rows = coco_rows(file, content, "images", id=int, file_name=str)
    return {row["id"] for row in rows if Path(row["file_name"]).name in wanted}


def _outlines(file: Path, row: Mapping[str, Any]) -> list[Outline]:
    """Return the corners of an instance's box, or its polygons."""
    try:
        if "bbox" in row:
            x, y, width, height = map(float, row["bbox"])
            return [(x, y, x + width, y, x + width, y + height, x, y + height)]
        return [tuple(map(float, polygon)) for polygon in row["segmentation"]]
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{file}: neither a box nor polygons: {brief(row, 80)}") from None
