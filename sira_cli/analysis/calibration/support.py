"""The threshold of support (`min_support` of the second look), from captions with labels, or by controls without them.

With labels it is the highest that leaves at most 3 % of the real objects below, because removing real objects is worse
than no second look. Controls are objects that only captions of other pictures name; most are not in the picture:

    by labels    min_support = max { t : |{real objects with support < t}| <= 0.03 |{real objects}| }
    by controls  min_support = min { t : |{controls with support < t}| >= 0.98 |{controls}| },  t = 0, 0.001, ..., 1

Both rules were fixed before they were measured, the 98 % on validation scenes of the bundled model: its threshold by
controls leaves about 3 % of the real objects below, as with labels.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sira_cli.errors import DataError
from sira_cli.eval.chair import HEADS, Chair, image_of
from sira_cli.look.words import Thing, WordList, shipped
from sira_cli.pictures.records import is_failure, read_newest
from sira_cli.pictures.rows import brief, read_json
from sira_cli.run.reports import Report

PER_PICTURE = 8  # controls of each caption, if the others name so many
SEED = 0  # of the choice of controls
THRESHOLDS = np.arange(1001) / 1000
By = Literal["labels", "controls"]
KINDS = {"labels": ("real objects", "hallucinated objects"), "controls": ("named objects", "controls")}
RULES = {"labels": "at most 3 % of the real objects are below it", "controls": "98 % of the controls are below it"}
FEW = {"labels": 20, "controls": 500}  # with fewer of the second kind, the threshold is uncertain
DOUBTFUL = 0.25  # share of named things below the threshold from which on support means little
Supports = list[tuple[bool, float]]  # of objects: whether each is of the first kind, and its support


class Caption(NamedTuple):
    """A caption: its file and line, its picture, and its objects with their support."""

    where: str
    file_name: str
    support: Mapping[str, float]


@dataclass(frozen=True)
class Source:
    """The model and the settings of the second look, without its threshold; the same in all records."""

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
    """The threshold that was found, and its effect on two kinds of objects."""

    schema = "sira.calibrate-support/1"

    source: Source
    by: By
    pictures: int  # captioned ones that have a second look
    failed: int
    objects: dict[str, int]  # number of each kind
    unknown: int  # objects without a label; they are left out
    threshold: float
    yes: tuple[float, float]  # shares of both kinds that the model sees: support of 0.5 and more
    below: tuple[float, float]  # shares of both kinds below the threshold

    @classmethod
    def of(
        cls,
        source: Source,
        by: By,
        supports: Supports,
        pictures: int,
        failed: int = 0,
        unknown: int = 0,
    ) -> SupportReport:
        """Find the threshold.

        Args:
            source: the model and the settings of the look.
            by: `labels` (real and hallucinated objects), or `controls` (named objects and controls).
            supports: whether an object is of the first kind, and its support.
            pictures, failed: numbers of pictures with and without a second look.
            unknown: objects without a label.

        Raises:
            DataError: the kind that decides has no objects.
        """
        first = np.sort([support for is_first, support in supports if is_first])
        second = np.sort([support for is_first, support in supports if not is_first])
        first_name, second_name = KINDS[by]
        ruled = first if by == "labels" else second
        if not len(ruled):
            name = first_name if by == "labels" else second_name
            raise DataError(f"no {name} could be measured, so no threshold can be found")
        below = np.searchsorted(ruled, THRESHOLDS)  # how many are below each
        if by == "labels":
            threshold = float(THRESHOLDS[100 * below <= 3 * len(ruled)][-1])
        else:
            threshold = float(THRESHOLDS[(100 * below >= 98 * len(ruled)) | (THRESHOLDS == 1)][0])
        return cls(
            source=source,
            by=by,
            pictures=pictures,
            failed=failed,
            objects={first_name: len(first), second_name: len(second)},
            unknown=unknown,
            threshold=threshold,
            yes=(1 - _share_below(first, 0.5), 1 - _share_below(second, 0.5)),
            below=(_share_below(first, threshold), _share_below(second, threshold)),
        )

    def table(self) -> Iterator[str]:
        """Yield the counts, and the threshold with its effect."""
        one, other = self.objects
        counts = [f"{self.pictures:,} pictures"]
        counts += [f"{count:,} {kind}" for kind, count in self.objects.items()]
        if self.unknown:
            counts.append(f"{self.unknown:,} without a label")
        yield ", ".join(counts)
        yield f"the model says yes to {self.yes[0]:.1%} of the {one} and to {self.yes[1]:.1%} of the {other}"
        yield f"min_support = {self.threshold:g}: {RULES[self.by]}"
        yield f"below it: {self.below[0]:.1%} of the {one}, {self.below[1]:.1%} of the {other}"

    def doubts(self) -> Iterator[str]:
        """Yield reasons to doubt the threshold."""
        if self.by == "controls" and self.below[0] > DOUBTFUL:
            yield (
                f"support means little here: {self.below[0]:.0%} of the named objects are below this threshold. "
                "The model says yes too readily, or the captions leave out much of what is in the pictures: "
                "find it from labels"
            )
        kind = KINDS[self.by][1]
        count = self.objects[kind]
        if count < FEW[self.by]:
            yield f"only {count} {kind}: the threshold is uncertain"


def _share_below(supports: NDArray[np.float64], limit: float) -> float:
    """Return the share of sorted values that are below a limit; 0 without any."""
    return float(np.searchsorted(supports, limit)) / max(1, len(supports))


def read_captions(paths: Sequence[Path]) -> tuple[Source, list[Caption]]:
    """Read records that `sira caption --verify flag` or `sira check` wrote; failed ones are left out."""
    sources: dict[str, Source] = {}
    captions: list[Caption] = []
    for where, record in itertools.chain.from_iterable(map(read_newest, paths)):
        if is_failure(record):
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
            how = "caption the pictures with `verify=` flag, or check their captions"
            raise DataError(f"{where}: not a record with a second look: {how}") from error
        if source not in sources.values():
            sources[where] = source
    if not captions:
        raise DataError(f"{paths[0]}: holds no captions with a second look")
    if len(sources) > 1:
        one, other, *_ = sources
        raise DataError(f"{one} and {other}: made with different models, questions or words; calibrate each by itself")
    return next(iter(sources.values())), captions


def labelled_by(
    captions: Sequence[Caption], truth: Mapping[str, Collection[str]], known: Collection[str] | None = None
) -> Supports:
    """Label the objects of captions by all objects in their pictures; others than the known ones are left out."""
    labelled = []
    for caption in captions:
        present = set(map(_head, truth[caption.file_name]))
        for thing, support in caption.support.items():
            head = _head(thing)
            if known is None or head in known:
                labelled.append((head in present, support))
    return labelled


def truth_of(captions: Sequence[Caption], labels: Path) -> Mapping[str, Collection[str]]:
    """Return all objects in the pictures of captions: by COCO's annotations in a folder, or by a JSON object."""
    if labels.is_dir():
        images: dict[str, int] = {}
        for caption in captions:
            name = re.split(r"[/\\_]", caption.file_name)[-1]  # drawn scenes have other beginnings
            image = image_of(name)
            if image is None:
                raise DataError(f"{caption.where}: {brief(caption.file_name)} is not a file name of COCO")
            images[caption.file_name] = image
        objects = Chair(labels, ids=sorted({*images.values()})).truth.objects
        return {name: objects[image] for name, image in images.items()}
    truth = read_json(labels)
    lists = truth.values() if isinstance(truth, dict) and truth else [None]
    if not all(isinstance(each, list) and all(isinstance(name, str) for name in each) for each in lists):
        raise DataError(f'{labels}: expected a list of objects per picture such as {{"a.jpg": ["person", "dog"]}}')
    for caption in captions:
        if caption.file_name not in truth:
            raise DataError(f"{labels}: has no labels of {brief(caption.file_name)} ({caption.where})")
    return dict(truth)


def from_files(records: Sequence[Path], labels: Path) -> SupportReport:
    """Find the threshold by records, and by a folder of COCO's annotations or a file of labels."""
    source, captions = read_captions(records)
    known = {*HEADS.values()} if labels.is_dir() else None  # CHAIR's ground truth has no others
    labelled = labelled_by(captions, truth_of(captions, labels), known)
    unknown = sum(len(caption.support) for caption in captions) - len(labelled)
    return SupportReport.of(
        source, "labels", labelled, len({caption.file_name for caption in captions}), unknown=unknown
    )


def _head(name: str) -> str:
    """Return the head of an object's synonyms."""
    found = shipped().things(f"a {name}")
    return found[0].group if len(found) == 1 else name.strip().lower()


class WithControls(WordList):
    """Finds the things that captions name, and with them controls, which have no spans."""

    def __init__(self, words: WordList, texts: Iterable[str]) -> None:
        self._words = words
        self._pool: dict[str, str] = {}  # by group, the thing that stands for it
        groups = []  # that each text names
        for text in texts:
            things = words.things(text)
            groups.append({thing.group for thing in things})
            for thing in things:
                self._pool.setdefault(thing.group, thing.name)
        if all(named == self._pool.keys() for named in groups):
            raise DataError("the captions name no different things of a list: controls are what other captions name")
        which = json.dumps([SEED, PER_PICTURE, *self._pool.values()])
        super().__init__({}, f"{words.name}, controls {hashlib.sha256(which.encode()).hexdigest()[:8]}")

    def group(self, name: str) -> str:
        """Return the head of an object's synonyms."""
        return self._words.group(name)

    def things(self, text: str) -> list[Thing]:
        """Return the things that a text names, and its controls."""
        named = self._words.things(text)
        others = self._pool.keys() - {thing.group for thing in named}
        drawn = sorted(others, key=lambda group: hashlib.sha256(json.dumps([SEED, text, group]).encode()).digest())
        return [*named, *(Thing(self._pool[group], (), group) for group in drawn[:PER_PICTURE])]


def from_controls(records: Iterable[Mapping[str, Any]]) -> SupportReport:
    """Find the threshold by records of checks with controls."""
    every = list(records)
    checks = [record for record in every if not is_failure(record)]
    if not checks:
        raise DataError("no picture could be asked about, so no threshold can be found")
    supports = []
    for check in checks:
        for claim in check["objects"]:
            supports.append((bool(claim["spans"]), float(claim["support"])))
    return SupportReport.of(Source.of(checks[0]), "controls", supports, len(checks), len(every) - len(checks))
