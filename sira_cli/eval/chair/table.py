"""CHAIR's ground truth from a prepared table, instead of COCO's annotation files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError
from sira_cli.eval.chair.coco import Truth, UnknownImageError, image_of
from sira_cli.eval.chair.words import HEADS
from sira_cli.pictures.rows import brief, read_json


@dataclass(frozen=True)
class TruthTable:
    """A JSON object of images, each with a list of the objects that are in it.

    Attributes:
        path: the file.
        known: everything in it.
    """

    path: Path
    known: Truth

    @classmethod
    def read(cls, path: Path) -> TruthTable:
        """Read a file: by image, its number or COCO's file name, a list of words of CHAIR's list.

        Entries of sira's cache, objects of `name` and `objects` instead of a list, are also read.
        """
        content = read_json(path)
        if not isinstance(content, dict) or not content:
            raise DataError(f'{path}: expected a JSON object such as {{"310196": ["person", "dog"]}}')
        if "annotations" in content:
            raise DataError(f"{path}: is a file of COCO: give its folder, which holds instances and captions")
        objects: dict[int, frozenset[str]] = {}
        names: dict[int, str] = {}
        for key, entry in content.items():
            if (image := image_of(key)) is None:
                raise DataError(f"{path}: expected an image's number or its file name in COCO, got {brief(key)}")
            if image in objects:
                raise DataError(f"{path}: image {image} is there twice")
            row = entry if isinstance(entry, dict) else {"objects": entry}
            name = row.get("name", f"COCO_val2014_{image:012d}.jpg" if key.strip().isdigit() else key)
            names[image], objects[image] = str(name), _objects(f"{path}: image {image}", row.get("objects"))
        return cls(path, Truth(objects, names))

    @property
    def files(self) -> list[Path]:
        """The file."""
        return [self.path]

    def truth(self, ids: Collection[int], words: Callable[[str], Sequence[str]], by: dict[str, Any]) -> Truth:
        """Return the objects in some images; the text rule was applied when the table was made."""
        if missing := sorted({*ids} - self.known.objects.keys()):
            lacking = f"image {missing[0]} is not in {self.path} ({len(missing)} are missing)"
            raise UnknownImageError(missing[0], lacking)
        return Truth({id_: self.known.objects[id_] for id_ in ids}, {id_: self.known.names[id_] for id_ in ids})


def _objects(where: str, words: Any) -> frozenset[str]:
    if not isinstance(words, list):
        raise DataError(f"{where}: expected a list of objects, got {brief(words)}")
    unknown = next((word for word in words if not isinstance(word, str) or word not in HEADS), None)
    if unknown is not None:
        raise DataError(f"{where}: {brief(unknown)} is not in CHAIR's list of words")
    return frozenset(HEADS[word] for word in words)
