"""CHAIR's text rule (Rohrbach et al. 2018), and the ground truth that it makes of COCO's annotation files.

Oddities of the rule are also in the official scripts, and are kept because they change figures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError
from sira_cli.language import CHAIR_WORDS
from sira_cli.pictures.rows import brief, read_json

YEARS = ("2014", "2017")
SPLITS = ("val", "train")  # val first: it has all of CHAIR's usual images, and train is five times as large

_NAME = re.compile(r"(?:COCO_[a-z0-9]+_)?(\d{1,12})\.(?:jpg|jpeg|png)", re.IGNORECASE)


def read_synonyms(text: str) -> dict[str, str]:
    """Read every word of the list with the head of its line, which is the category's name in COCO.

    Lines are split at a comma and exactly one space, so " motor bike" and " cheesecake", which follow two spaces, keep
    one and never match a caption. iPhone never matches either, because captions are lower-cased.
    """
    lines = [line.strip().split(", ") for line in text.splitlines()]
    return {word: line[0] for line in lines for word in line}


HEADS = read_synonyms(CHAIR_WORDS.read_text(encoding="utf-8"))

_ANIMALS = ("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe", "animal", "cub")
_PAIRS = (
    *("motor bike", "motor cycle", "air plane", "traffic light", "street light", "traffic signal", "stop light"),
    *("fire hydrant", "stop sign", "parking meter", "suit case", "sports ball", "baseball bat", "baseball glove"),
    *("tennis racket", "wine glass", "hot dog", "cell phone", "mobile phone", "teddy bear", "hair drier"),
    *("potted plant", "laptop computer"),
    # Not objects: they keep their words from being taken for a plate (not an object either) or a train.
    *("home plate", "train track"),
)
# Pairs of words and their replacement. The official list also has "stove top oven": never found, as it has three.
MERGES = {
    **{pair: pair for pair in _PAIRS},
    **{f"{age} {animal}": animal for animal in _ANIMALS for age in ("baby", "adult")},  # not a person
    **{f"passenger {vehicle}": vehicle for vehicle in ("jet", "train")},  # also in place of the passenger
    "bow tie": "tie",
    "toilet seat": "toilet",
    "wine glas": "wine glass",  # `singularize` of "wine glass"
}


@dataclass(frozen=True)
class Mentions:
    """The objects that a caption's tokens mention."""

    length: int  # number of tokens after merges, the official script's length of the caption
    words: tuple[str, ...]  # words of the list, in order, repeats included
    heads: tuple[str, ...]  # of `words`, their categories


def mentions(tokens: Sequence[str]) -> Mentions:
    """Apply the rule to the lemmas or singulars of a caption.

    Pairs are merged greedily from left to right. With a toilet, a seat is not a chair.
    """
    merged: list[str] = []
    place = 0
    while place < len(tokens):
        pair = " ".join(tokens[place : place + 2])
        merged.append(MERGES.get(pair, tokens[place]))
        place += 2 if pair in MERGES else 1
    seat = {"toilet", "seat"} <= {*merged}
    words = tuple(word for word in merged if word in HEADS and not (seat and word == "seat"))
    return Mentions(len(merged), words, tuple(HEADS[word] for word in words))


class UnknownImageError(DataError):
    """An image, by its id, that is not in COCO's annotation files."""

    def __init__(self, missing: Sequence[int], where: object) -> None:
        super().__init__(f"image {missing[0]} is not in {where} ({len(missing)} are missing)")
        self.image = missing[0]


@dataclass(frozen=True)
class Truth:
    """The objects in some images."""

    objects: dict[int, frozenset[str]]  # by image, the heads of CHAIR's list that are in it
    names: dict[int, str]  # by image, its file name
    files: tuple[Path, ...]  # from which they were read


def _pairs(folder: Path) -> list[tuple[Path, Path]]:
    """Find instances and captions of val, of train, or of both; the files of 2014 if there are two years."""
    for year in YEARS:
        for place in (folder, folder / "annotations"):
            names = [(f"instances_{split}{year}.json", f"captions_{split}{year}.json") for split in SPLITS]
            pairs = [(place / instances, place / captions) for instances, captions in names]
            if found := [pair for pair in pairs if all(path.is_file() for path in pair)]:
                return found
    raise DataError(
        f"{folder}: expected COCO's instances_val2014.json and captions_val2014.json (or those of train or 2017), "
        "here or in annotations/: get annotations_trainval2014.zip from https://cocodataset.org/#download"
    )


def find_truth(folder: Path, images: Collection[int], words: Callable[[str], Sequence[str]]) -> Truth:
    """Return the objects in some images: their instances' categories, and the mentions of their reference captions.

    They are read from COCO's folder, or its subfolder `annotations`.
    """
    pairs, ids = _pairs(folder), {*images}
    names: dict[int, str] = {}
    objects: dict[int, set[str]] = {}
    for instances, captions in pairs:
        content = read_json(instances)
        if not isinstance(content, dict):
            raise DataError(f"{instances}: expected a JSON object, as in COCO's files")
        if "images" in content:
            rows = coco_rows(instances, content, "images", id=int, file_name=str)
            names |= {row["id"]: row["file_name"] for row in rows if row["id"] in ids}
        for image, head in _heads(instances, content):
            if image in ids:
                objects.setdefault(image, set()).add(head)
        del content  # it may take hundreds of megabytes
        for row in coco_rows(captions, read_json(captions), "annotations", image_id=int, caption=str):
            if row["image_id"] in ids:
                objects.setdefault(row["image_id"], set()).update(mentions(words(row["caption"])).heads)
        for image in objects.keys() - names.keys():
            names[image] = f"COCO_{instances.stem.removeprefix('instances_')}_{image:012d}.jpg"
        if names.keys() == ids:
            break  # each image is in one split only: the rest need not be read
    if missing := sorted(ids - names.keys()):
        raise UnknownImageError(missing, " or ".join(str(instances) for instances, _ in pairs))
    files = tuple(path for pair in pairs for path in pair)
    return Truth({image: frozenset(objects.get(image, ())) for image in images}, names, files)


def _heads(path: Path, content: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield image and head of every instance."""
    heads: dict[int, str] = {}
    for number, row in enumerate(coco_rows(path, content, "categories", id=int, name=str)):
        if row["name"] not in HEADS:
            raise DataError(f"{path}: categories[{number}]: {brief(row['name'])} is not in CHAIR's list of words")
        heads[row["id"]] = HEADS[row["name"]]
    for number, row in enumerate(coco_rows(path, content, "annotations", image_id=int, category_id=int)):
        if row["category_id"] not in heads:
            raise DataError(f"{path}: annotations[{number}]: category {row['category_id']} is not defined")
        yield row["image_id"], heads[row["category_id"]]


def coco_rows(path: Path, content: Any, entry: str, **fields: type) -> Iterator[dict[str, Any]]:
    """Yield the rows of a list in one of COCO's files, with some fields of these types."""
    rows = content.get(entry) if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a list {entry!r}, as in COCO's files")
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or any(type(row.get(name)) is not kind for name, kind in fields.items()):
            expected = " and ".join(f"{name} ({kind.__name__})" for name, kind in fields.items())
            raise DataError(f"{path}: {entry}[{number}]: expected {expected}, got {brief(row, 80)}")
        yield row


def image_of(text: str) -> int | None:
    """Return the image of a number or of a COCO file name, with or without folders; None if it is neither."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    found = _NAME.fullmatch(re.split(r"[/\\]", text)[-1])
    return int(found[1]) if found else None
