"""CHAIR's ground truth from the user's annotation files of COCO, kept in a cache."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sira_cli._version import __version__
from sira_cli.errors import DataError
from sira_cli.eval.chair.words import HEADS, MERGES, mentions
from sira_cli.files import make_folder, write_whole
from sira_cli.models import presets
from sira_cli.pictures.rows import brief, read_json
from sira_cli.run.records import hash_of

YEARS = ("2014", "2017")
SPLITS = ("val", "train")  # val first: it has all of CHAIR's usual images, and train is five times as large

_NAME = re.compile(r"(?:COCO_[a-z0-9]+_)?(\d{1,12})\.(?:jpg|jpeg|png)", re.IGNORECASE)


class UnknownImageError(DataError):
    """An image that is not in COCO's annotation files.

    Attributes:
        image: its id.
    """

    def __init__(self, image: int, message: str) -> None:
        super().__init__(message)
        self.image = image


@dataclass(frozen=True)
class Truth:
    """The objects in some images.

    Attributes:
        objects: by image, the heads of CHAIR's list that are in it.
        names: by image, its file name.
    """

    objects: dict[int, frozenset[str]]
    names: dict[int, str]


@dataclass(frozen=True)
class Annotations:
    """A folder of COCO's annotation files.

    Attributes:
        pairs: instances and captions of val, of train, or of both, all of one year.
    """

    pairs: tuple[tuple[Path, Path], ...]

    @classmethod
    def find(cls, folder: Path) -> Annotations:
        """Find the files in a folder, or in its subfolder `annotations`; the files of 2014 if there are two years."""
        for year in YEARS:
            for place in (folder, folder / "annotations"):
                pairs = tuple(
                    (place / f"instances_{split}{year}.json", place / f"captions_{split}{year}.json")
                    for split in SPLITS
                )
                if found := tuple(pair for pair in pairs if all(path.is_file() for path in pair)):
                    return cls(found)
        raise DataError(
            f"{folder}: expected COCO's instances_val2014.json and captions_val2014.json (or those of train or 2017), "
            "here or in annotations/: get annotations_trainval2014.zip from https://cocodataset.org/#download"
        )

    @property
    def files(self) -> list[Path]:
        """All files."""
        return [path for pair in self.pairs for path in pair]

    def truth(self, ids: Collection[int], words: Callable[[str], Sequence[str]], by: dict[str, Any]) -> Truth:
        """Return the objects in some images: their instances' categories, and the mentions of their reference captions.

        The result stays in a cache until files, images, rule or language change.
        """
        states = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in self.files]
        key = hash_of(
            files=states,
            ids=sorted(ids),
            by=by,
            heads=list(HEADS.items()),
            merges=list(MERGES.items()),
            sira=__version__,
        )
        path = presets.cache() / "chair" / f"{key}.json"
        if (cached := _cached(path, ids)) is not None:
            return cached
        truth = self._read(set(ids), words)
        record = {
            str(image): {"name": truth.names[image], "objects": sorted(objects)}
            for image, objects in truth.objects.items()
        }
        make_folder(path.parent)
        write_whole(path, json.dumps(record).encode())
        return truth

    def _read(self, ids: set[int], words: Callable[[str], Sequence[str]]) -> Truth:
        names: dict[int, str] = {}
        objects: dict[int, set[str]] = {}
        for instances, captions in self.pairs:
            content = _Content(instances)
            names |= content.names(ids)
            for image, head in content.heads(ids):
                objects.setdefault(image, set()).add(head)
            del content  # it may take hundreds of megabytes
            for image, caption in _Content(captions).captions(ids):
                objects.setdefault(image, set()).update(mentions(words(caption)).heads)
            for image in objects.keys() | names.keys():
                objects.setdefault(image, set())
                names.setdefault(image, f"COCO_{instances.stem.removeprefix('instances_')}_{image:012d}.jpg")
            if names.keys() == ids:
                break  # each image is in one split only: the rest need not be read
        if missing := sorted(ids - names.keys()):
            files = " or ".join(str(instances) for instances, _ in self.pairs)
            raise UnknownImageError(missing[0], f"image {missing[0]} is not in {files} ({len(missing)} are missing)")
        return Truth({image: frozenset(found) for image, found in objects.items()}, names)


class _Content:
    """One annotation file. Any deviation from COCO's format is an error that names the entry."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = read_json(path)
        if not isinstance(self._content, dict):
            raise DataError(f"{path}: expected a JSON object, as in COCO's files")

    def names(self, ids: Collection[int]) -> dict[int, str]:
        """Return the file names of the given images that are in this file."""
        if "images" not in self._content:
            return {}
        rows = self._rows("images", id=int, file_name=str)
        return {image: name for image, name in rows if image in ids}

    def heads(self, ids: Collection[int]) -> Iterable[tuple[int, str]]:
        """Yield image and head of every instance in some images."""
        heads: dict[int, str] = {}
        for number, (category, name) in enumerate(self._rows("categories", id=int, name=str)):
            if name not in HEADS:
                raise DataError(f"{self._path}: categories[{number}]: {brief(name)} is not in CHAIR's list of words")
            heads[category] = HEADS[name]
        for number, (image, category) in enumerate(self._rows("annotations", image_id=int, category_id=int)):
            if category not in heads:
                raise DataError(f"{self._path}: annotations[{number}]: category {category} is not defined")
            if image in ids:
                yield image, heads[category]

    def captions(self, ids: Collection[int]) -> Iterable[tuple[int, str]]:
        """Yield image and text of every reference caption of some images."""
        return (row for row in self._rows("annotations", image_id=int, caption=str) if row[0] in ids)

    def _rows(self, entry: str, **fields: type) -> Iterable[tuple[Any, ...]]:
        rows = coco_rows(self._path, self._content, entry, **fields)
        return (tuple(row[name] for name in fields) for row in rows)


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


def _cached(path: Path, ids: Collection[int]) -> Truth | None:
    """Return the content of the cache; None if it is missing or unusable."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        objects = {int(image): frozenset(row["objects"]) for image, row in record.items()}
        names = {int(image): str(row["name"]) for image, row in record.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    if objects.keys() != set(ids) or not all(found <= set(HEADS.values()) for found in objects.values()):
        return None
    return Truth(objects, names)
