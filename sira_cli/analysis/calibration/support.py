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
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sira_cli.errors import DataError
from sira_cli.eval.chair import Chair
from sira_cli.eval.coco import HEADS, image_of
from sira_cli.eval.statistics import Figure, auroc_interval, ratio
from sira_cli.look.words import Thing, WordList, shipped
from sira_cli.pictures.rows import brief, read_json, read_rows
from sira_cli.run.records import Report, Table

FALSE_ALARMS = 0.03  # allowed share of real objects below the threshold
PERCENTILE = 98  # of controls, below the threshold
PER_PICTURE = 8  # controls of each caption, if the others name so many
SEED = 0  # of the choice of controls
SHOWN = (0.1, 0.3, 0.5, 0.7, 0.9)  # thresholds in the table, besides the one that is found
FEW_ABSENT, FEW_CONTROLS = 20, 500  # with fewer, the threshold is uncertain
DOUBTFUL = 0.25  # share of named things below the threshold from which on support means little


class Labelled(NamedTuple):
    """An object that a caption names: the number of its picture, whether it is there, and its support."""

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


Shares = dict[float, tuple[float, float]]  # by threshold, of both kinds of objects below it


@dataclass(frozen=True)
class SupportReport(Report):
    """The threshold that was found by labels, and its effect."""

    schema = "sira.calibrate-support/1"

    source: Source
    pictures: int
    there: int  # named objects in the picture
    absent: int  # and not in it
    unknown: int  # objects without a label; they are left out
    false_alarms: float  # allowed share of real objects below the threshold
    threshold: float
    auroc: Figure | None  # of support, in percent, with its interval over pictures; None without both kinds
    below: Shares  # of real and of absent objects

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
        there, absent = (np.array([one.support for one in labelled if one.there is kind]) for kind in (True, False))
        if not len(there):
            raise DataError(
                "no labelled object is in its picture, so no threshold can be found: check names and labels"
            )
        threshold = next(each for each in np.arange(1000, -1, -1) / 1000 if _below(there, each) <= false_alarms)
        numbers, kinds, scores = (np.array(column) for column in zip(*labelled, strict=True))
        auroc, below = auroc_interval(numbers, kinds, scores, pictures), _shares(there, absent, float(threshold))
        counts = len(there), len(absent), unknown
        return cls(source, pictures, *counts, false_alarms, float(threshold), auroc, below)

    def table(self) -> Iterator[Table | str]:
        """Yield the effect of several thresholds, and the threshold found."""
        yield _table("below it: real objects", "hallucinated", self.below, self.threshold, digits=0)
        unknown = f", {self.unknown:,} without a label" * bool(self.unknown)
        yield f"{self.pictures:,} pictures, {self.there:,} real objects named, {self.absent:,} hallucinated{unknown}"
        if self.auroc is not None:
            yield f"AUROC of support: {self.auroc} (100: perfect separation, 50: chance)"
        yield f"min_support = {self.threshold:g}: at most {self.false_alarms:.1%} of real objects are below it"

    def doubts(self) -> Iterator[str]:
        """Yield reasons to doubt the threshold."""
        if self.absent < FEW_ABSENT:
            yield f"only {self.absent} hallucinated objects: the share of them below the threshold is uncertain"


@dataclass(frozen=True)
class ControlsReport(Report):
    """The threshold that was found by controls, and its effect."""

    schema = "sira.calibrate-controls/1"

    source: Source
    pictures: int  # captioned ones that were asked about
    failed: int
    named: int  # things that captions name
    controls: int
    percentile: float  # percentage of controls whose support is below the threshold
    threshold: float
    interval: tuple[float, float]  # 95 %, by bootstrap over pictures; about four times as many pictures halve it
    yes: tuple[float, float]  # shares of named things and of controls that the model sees: support of 0.5 and more
    below: Shares  # of named things and of controls

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]], percentile: float = PERCENTILE) -> ControlsReport:
        """Find the threshold."""
        every = list(records)
        checks = [record for record in every if record["status"] == "ok"]
        named, controls = (supports(checks, named=kind) for kind in (True, False))
        if not len(controls):
            raise DataError("no picture could be asked about, so no threshold can be found")
        threshold = threshold_of(controls, percentile)
        return cls(
            source=Source.of(checks[0]),
            pictures=len(checks),
            failed=len(every) - len(checks),
            named=len(named),
            controls=len(controls),
            percentile=percentile,
            threshold=threshold,
            interval=interval_of([supports([check], named=False) for check in checks], percentile),
            yes=(1 - _below(named, 0.5), 1 - _below(controls, 0.5)),
            below=_shares(named, controls, threshold),
        )

    def table(self) -> Iterator[Table | str]:
        """Yield the effect of several thresholds, and the threshold found."""
        yield _table("below it: named objects", "controls", self.below, self.threshold, digits=1)
        yield f"{self.pictures:,} captions, {self.named:,} objects named, {self.controls:,} controls"
        named, controls = self.yes
        yield f"the model says yes to {named:.1%} of the named objects and to {controls:.1%} of the controls"
        yield f"min_support = {self.threshold:g}: {self.percentile:g} % of the controls are below it"
        low, high = self.interval
        more = 4 * self.pictures  # widths of such intervals fall with the root of the number
        yield f"95 % interval: {low:g} to {high:g}, by bootstrap over pictures; about {more:,} captions halve it"

    def doubts(self) -> Iterator[str]:
        """Yield reasons to doubt the threshold."""
        if (share := self.below[self.threshold][0]) > DOUBTFUL:
            yield (
                f"support means little here: {share:.0%} of the named objects are below this threshold. The model says "
                "yes too readily, or the captions leave out much of what is in the pictures: find it from labels"
            )
        if self.controls < FEW_CONTROLS:
            yield f"only {self.controls} controls: the threshold is uncertain"


def _below(support: np.ndarray[Any, Any], threshold: float) -> float:
    return ratio(int((support < threshold).sum()), len(support))


def _shares(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], threshold: float) -> Shares:
    return {each: (_below(one, each), _below(other, each)) for each in sorted({*SHOWN, threshold})}


def _table(one: str, other: str, below: Shares, threshold: float, digits: int) -> Table:
    rows = [
        (f"{each:g}", f"{first:.1%}", f"{second:.{digits}%}", "found" * (each == threshold))
        for each, (first, second) in below.items()
    ]
    return Table((), ("threshold", one, other), [rows], words=("",))


# --- captions with labels


def read_captions(paths: Sequence[Path]) -> tuple[Source, list[Caption]]:
    """Read records that `sira caption --verify flag` or `sira check` wrote; failed ones are left out."""
    sources: dict[str, Source] = {}
    captions: list[Caption] = []
    for where, record in (row for path in paths for row in read_rows(path)):
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
    numbers = {name: number for number, name in enumerate(dict.fromkeys(each.file_name for each in captions))}
    there = [{_head(name) for name in objects(caption)} for caption in captions]
    return [
        Labelled(numbers[caption.file_name], _head(thing) in heads, support)
        for caption, heads in zip(captions, there, strict=True)
        for thing, support in caption.support.items()
    ]


def from_coco(captions: Sequence[Caption], annotations: Path) -> tuple[list[Labelled], int]:
    """Label the objects of captions of COCO's images by CHAIR's ground truth; the number of others is returned too."""
    images: dict[str, int] = {}
    for caption in captions:
        name = re.split(r"[/\\_]", caption.file_name)[-1]  # scenes are named as COCO's images, but for the beginning
        if (image := image_of(name)) is None:
            raise DataError(f"{caption.where}: {brief(caption.file_name)} is not a file name of COCO")
        images[caption.where] = image
    truth = Chair(annotations, ids=sorted({*images.values()})).truth.objects
    heads = {*HEADS.values()}
    known = [
        replace(caption, support={thing: value for thing, value in caption.support.items() if _head(thing) in heads})
        for caption in captions
    ]
    labelled = labelled_by(known, lambda caption: truth[images[caption.where]])
    return labelled, sum(len(caption.support) for caption in captions) - len(labelled)


def from_labels(captions: Sequence[Caption], path: Path) -> list[Labelled]:
    """Label the objects of captions by a JSON object: all objects of each picture, by its file name."""
    labels = read_json(path)
    if not isinstance(labels, dict) or not labels:
        raise DataError(f'{path}: expected a JSON object such as {{"a.jpg": ["person", "dog"]}}')
    for name, objects in labels.items():
        if not isinstance(objects, list) or not all(isinstance(each, str) for each in objects):
            raise DataError(f"{path}: {brief(name)}: expected a list of objects, got {brief(objects)}")
    for caption in captions:
        if caption.file_name not in labels:
            raise DataError(f"{path}: has no labels of {brief(caption.file_name)} ({caption.where})")
    return labelled_by(captions, lambda caption: labels[caption.file_name])


def from_files(records: Sequence[Path], labels: Path) -> SupportReport:
    """Find the threshold by records, and by a folder of COCO's annotations or a file of labels."""
    source, captions = read_captions(records)
    labelled, unknown = from_coco(captions, labels) if labels.is_dir() else (from_labels(captions, labels), 0)
    return SupportReport.of(source, len({caption.file_name for caption in captions}), labelled, unknown)


def _head(name: str) -> str:
    """Return the head of an object's synonyms."""
    found = shipped().things(f"a {name}")
    return found[0].group if len(found) == 1 else name.strip().lower()


# --- controls


class WithControls(WordList):
    """Finds the things that captions name, and with them controls, which have no spans."""

    def __init__(self, words: WordList, texts: Iterable[str]) -> None:
        """Collect the things in all captions."""
        self._words = words
        named = {text: words.things(text) for text in texts}
        self._pool: dict[str, str] = {}  # by group, the thing that stands for it
        for thing in (thing for things in named.values() for thing in things):
            self._pool.setdefault(thing.group, thing.name)
        if all(len({thing.group for thing in things}) == len(self._pool) for things in named.values()):
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


def supports(checks: Sequence[Mapping[str, Any]], *, named: bool) -> np.ndarray[Any, Any]:
    """Return the support of the things that captions name, or of the controls."""
    return np.array([each["support"] for check in checks for each in check["objects"] if bool(each["spans"]) is named])


def threshold_of(controls: np.ndarray[Any, Any], percentile: float = PERCENTILE) -> float:
    """Return the lowest threshold, in thousandths, with this percentage of controls below it; 1 if too many reach 1."""
    grid, most = np.arange(1001) / 1000, len(controls) * (100 - percentile) / 100
    found = np.flatnonzero(len(controls) - np.searchsorted(np.sort(controls), grid) <= most)
    return float(grid[found[0]]) if len(found) else 1.0


def interval_of(
    controls: Sequence[np.ndarray[Any, Any]], percentile: float = PERCENTILE, samples: int = 1000
) -> tuple[float, float]:
    """Return the 95 % interval of the threshold: that of other draws of as many pictures."""
    chance = np.random.default_rng(0)
    drawn = (chance.integers(len(controls), size=len(controls)) for _ in range(samples))
    found = [threshold_of(np.concatenate([controls[number] for number in numbers]), percentile) for numbers in drawn]
    low, high = np.percentile(found, [2.5, 97.5])
    return round(float(low), 3), round(float(high), 3)
