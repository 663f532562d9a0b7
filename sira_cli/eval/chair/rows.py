"""Files that CHAIR reads besides COCO's: captions of other tools, and lists of images."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.answers.read import AnswerFiles
from sira_cli.eval.answers.rows import Form, read_answer_rows
from sira_cli.eval.chair.coco import image_of
from sira_cli.pictures.rows import brief, entries, read_rows, some

FORM = Form("caption", ("image_id",))  # of OPERA's chair.py


class GivenCaption(NamedTuple):
    """A caption, and its file and row."""

    text: str
    where: str


def read_captions(paths: Sequence[Path]) -> dict[int, list[GivenCaption]]:
    """Read captions by image: one or several per image, the same number for all.

    Rows have `image_id` (the number of the image, or its digits) and `caption`, or are samples of lmms-eval. An empty
    caption counts as one without mentions.
    """
    captions: dict[int, list[GivenCaption]] = {}
    for path in paths:
        where = ""
        for where, row in read_answer_rows(path, FORM):
            image = image_of_row(where, row, "image_id")
            captions.setdefault(image, []).append(GivenCaption(row["text"], where))
        if not where:
            raise DataError(f"{path}: holds no captions")
    most = max(captions, key=lambda image: len(captions[image]))
    for image, given in captions.items():
        if len(given) < len(captions[most]):
            places = " and ".join(each.where for each in captions[most][:2])
            raise DataError(
                f"image {most} has {len(captions[most])} captions ({places}), image {image} has {len(given)} "
                f"({given[0].where}): give one per image, or the same number"
            )
    return captions


def answered(
    sources: Sequence[AnswerFiles], lengths: tuple[int, ...], images: dict[int, str] | None, limit: int | None
) -> tuple[tuple[int, ...], dict[int, str]]:
    """Return the lengths in tokens of the captions in files, if recorded, and their images, unless given."""
    found: dict[int, str] = {}
    said: list[set[int]] = []
    for source in sources:
        said.append(set())
        if not source.own:
            if images is None:
                found |= {image: given[0].where for image, given in read_captions(source.paths).items()}
            continue
        for where, row in (row for path in source.paths for row in read_rows(path)):
            if row.get("schema") != "sira.caption/1" or not str(row.get("part", 0)).isdecimal():
                raise DataError(f"{where}: is not a caption of sira caption or sira eval chair")
            if images is None:
                found[image_of_row(where, row, "id", "file_name")] = where
            said[-1] |= {int(row["part"])} if "part" in row else set()
    if len(lengths) > 1 and not all(said):
        raise SettingsError("`lengths=`: only captions of sira eval chair have several lengths: give one, or none")
    if not lengths and all(said) and (max(map(len, said)) > 1 or len(set.union(*said)) == 1):
        lengths = tuple(sorted(set.union(*said)))
    if not lengths and any(len(one) > 1 for one in said):
        raise SettingsError("`answers=`: some files hold captions of several lengths: score each file by itself")
    return lengths, dict(islice(found.items(), limit)) if images is None else images


def read_ids(path: Path) -> dict[int, str]:
    """Read a list of images, with the line of each: one per line, or a JSON array; numbers, or COCO's file names."""
    places: dict[int, str] = {}
    for where, entry in entries(path):
        if (image := _image(entry)) is None:
            raise DataError(f"{where}: expected an image's number or its file name in COCO, got {brief(entry)}")
        if image in places:
            raise DataError(f"{where}: image {image} is also in {places[image]}")
        places[image] = where
    if not places:
        raise DataError(f"{path}: holds no images")
    return places


def image_of_row(where: str, row: dict[str, Any], *names: str) -> int:
    """Return the image that the first of some fields names."""
    for name in names:
        if name in row:
            if (image := _image(row[name])) is not None:
                return image
            raise DataError(f"{where}: {name} is not an image of COCO: {brief(row[name])}")
    raise DataError(f"{where}: expected {' or '.join(names)}, found {some(row) or 'nothing'}")


def _image(value: Any) -> int | None:
    return value if type(value) is int else image_of(value) if isinstance(value, str) else None
