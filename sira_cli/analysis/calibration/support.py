"""The threshold of support (`min_support` of the second look), from captions with labels.

The rule was fixed before any measurement: the highest threshold, in thousandths, with at most 3 % of the real objects
below it, because removing real objects is worse than no second look.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sira_cli.errors import DataError
from sira_cli.eval.chair import Chair
from sira_cli.eval.coco import HEADS, image_of
from sira_cli.eval.statistics import Figure, auroc_interval, ratio
from sira_cli.look.words import shipped
from sira_cli.pictures.rows import brief, read_json, read_rows
from sira_cli.run.report import Report

FALSE_ALARMS = 0.03
SHOWN = (0.1, 0.3, 0.5, 0.7, 0.9)  # thresholds in the table, besides the one that is found


class Labelled(NamedTuple):
    """An object that a caption names.

    Attributes:
        picture: its number.
        there: whether the object is in the picture.
        support: from the second look.
    """

    picture: int
    there: bool
    support: float


@dataclass(frozen=True)
class Caption:
    """A caption: its file and line, its picture, and its objects with their support."""

    where: str
    file_name: str
    support: Mapping[str, float]


@dataclass(frozen=True)
class Source:
    """The model and the settings of the support; the same in all records.

    Attributes:
        model, revision: as records have them.
        verify: settings of the second look, without its threshold.
    """

    model: str
    revision: str
    verify: Mapping[str, Any]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Source:
        """Return the source of a record's support."""
        verify = {name: value for name, value in record["verify"].items() if name != "min_support"}
        if verify.get("source") == "answer":
            raise DataError(f"the server of {record['model']} tells no probabilities, so there is no threshold to find")
        return cls(str(record["model"]), str(record["revision"]), verify)


@dataclass(frozen=True)
class SupportReport(Report):
    """The threshold that was found, and its effect.

    Attributes:
        source: whose support it is.
        pictures, there, absent: numbers of pictures, named objects in the picture, and named objects that are not.
        unknown: number of objects without a label; they are left out.
        false_alarms: the allowed share of real objects below the threshold.
        threshold: below it an object is not supported.
        auroc: of support, in percent, with its 95 % interval over pictures; None without both kinds.
        below: for several thresholds, the shares of real and of absent objects below each.
    """

    schema = "sira.calibrate-support/1"

    source: Source
    pictures: int
    there: int
    absent: int
    unknown: int
    false_alarms: float
    threshold: float
    auroc: Figure | None
    below: dict[float, tuple[float, float]]

    @classmethod
    def of(
        cls,
        source: Source,
        pictures: int,
        labelled: Sequence[Labelled],
        unknown: int = 0,
        false_alarms: float = FALSE_ALARMS,
    ) -> SupportReport:
        """Find the threshold."""
        support = {kind: np.array([one.support for one in labelled if one.there is kind]) for kind in (True, False)}
        if not len(support[True]):
            raise DataError(
                "no labelled object is in its picture, so no threshold can be found: check names and labels"
            )

        def below(threshold: float, there: bool) -> float:
            return ratio(int((support[there] < threshold).sum()), len(support[there]))

        threshold = next(each / 1000 for each in range(1000, -1, -1) if below(each / 1000, True) <= false_alarms)
        numbers, kinds, scores = (np.array(column) for column in zip(*labelled, strict=True))
        return cls(
            source=source,
            pictures=pictures,
            there=len(support[True]),
            absent=len(support[False]),
            unknown=unknown,
            false_alarms=false_alarms,
            threshold=threshold,
            auroc=auroc_interval(numbers, kinds, scores, pictures),
            below={each: (below(each, True), below(each, False)) for each in sorted({*SHOWN, threshold})},
        )


def read_captions(paths: Sequence[Path]) -> tuple[Source, list[Caption]]:
    """Read records that `sira caption --verify flag` or `sira check` wrote; failed ones are left out."""
    sources: dict[str, Source] = {}
    captions: list[Caption] = []
    for path in paths:
        for where, record in read_rows(path):
            if record.get("status") == "error":
                continue
            try:
                source = Source.of(record)
                if source.verify["mode"] != "flag":
                    raise ValueError("unsupported objects may have been removed")
                support = {str(claim["thing"]): float(claim["support"]) for claim in record["objects"]}
                captions.append(Caption(where, str(record["file_name"]), support))
            except DataError:
                raise
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise DataError(
                    f"{where}: not a record with a second look: caption the pictures with `verify=` flag, or check "
                    "their captions"
                ) from error
            if source not in sources.values():
                sources[where] = source
    if not captions:
        raise DataError(f"{paths[0]}: holds no captions with a second look")
    if len(sources) > 1:
        one, other, *_ = sources
        raise DataError(f"{one} and {other}: made with different models, questions or words; calibrate each by itself")
    return next(iter(sources.values())), captions


def labelled_by(captions: Sequence[Caption], objects: Callable[[Caption], Collection[str]]) -> list[Labelled]:
    """Label the objects of captions by those in their pictures."""
    labelled = []
    numbers = {name: number for number, name in enumerate(dict.fromkeys(each.file_name for each in captions))}
    for caption in captions:
        there = {_head(name) for name in objects(caption)}
        labelled += [
            Labelled(numbers[caption.file_name], _head(thing) in there, support)
            for thing, support in caption.support.items()
        ]
    return labelled


def from_coco(captions: Sequence[Caption], annotations: Path) -> tuple[list[Labelled], int]:
    """Label the objects of captions of COCO's images by CHAIR's ground truth."""
    images = {}
    for caption in captions:
        name = re.split(r"[/\\_]", caption.file_name)[-1]  # scenes are named as COCO's images, but for the beginning
        if (image := image_of(name)) is None:
            raise DataError(f"{caption.where}: {brief(caption.file_name)} is not a file name of COCO")
        images[caption.where] = image
    truth = Chair(annotations, ids=sorted({*images.values()})).truth.objects
    heads = {*HEADS.values()}
    known = [
        dataclasses.replace(caption, support={k: v for k, v in caption.support.items() if _head(k) in heads})
        for caption in captions
    ]
    unknown = sum(len(one.support) - len(other.support) for one, other in zip(captions, known, strict=True))
    return labelled_by(known, lambda caption: truth[images[caption.where]]), unknown


def read_labels(path: Path) -> dict[str, list[str]]:
    """Read the ground truth: a JSON object of file names, each with the list of all objects in the picture."""
    content = read_json(path)
    if not isinstance(content, dict) or not content:
        raise DataError(f'{path}: expected a JSON object such as {{"a.jpg": ["person", "dog"]}}')
    for name, objects in content.items():
        if not isinstance(objects, list) or not all(isinstance(each, str) for each in objects):
            raise DataError(f"{path}: {brief(name)}: expected a list of objects, got {brief(objects)}")
    return content


def from_labels(captions: Sequence[Caption], path: Path) -> list[Labelled]:
    """Label the objects of captions by the user's file (`read_labels`)."""
    labels = read_labels(path)
    for caption in captions:
        if caption.file_name not in labels:
            raise DataError(f"{path}: has no labels of {brief(caption.file_name)} ({caption.where})")
    return labelled_by(captions, lambda caption: labels[caption.file_name])


def _head(name: str) -> str:
    """Return the head of an object's synonyms."""
    found = shipped().things(f"a {name}")
    return found[0].group if len(found) == 1 else name.strip().lower()
