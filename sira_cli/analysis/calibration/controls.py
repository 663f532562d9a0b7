"""The threshold of support without labels: from objects that only captions of other pictures name.

Most of these controls are not in the picture. The percentile of their support was fixed on validation scenes of the
bundled model: its threshold leaves about 3 % of the real objects below, as with labels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sira_cli.analysis.calibration.support import SHOWN, Source
from sira_cli.errors import DataError
from sira_cli.eval.statistics import ratio
from sira_cli.look.words import Thing, WordList
from sira_cli.run.report import Report

PER_PICTURE = 8  # controls of each caption, if the others name so many
PERCENTILE = 98
SEED = 0  # of the choice of controls
DOUBTFUL = 0.25  # share of named things below the threshold from which on support means little


class WithControls(WordList):
    """Finds the things that captions name, and with them controls, which have no spans.

    Attributes:
        name: of the vocabulary, for the record.
    """

    def __init__(self, words: WordList, texts: Iterable[str]) -> None:
        """Collect the things in all captions."""
        self._words = words
        every = list(texts)
        if len(every) < 2:
            raise DataError(
                "controls are what captions of other pictures name: needs captions of at least two pictures"
            )
        found = {text: words.things(text) for text in every}
        self._pool: dict[str, str] = {}  # by group, the thing that stands for it
        for thing in (thing for things in found.values() for thing in things):
            self._pool.setdefault(thing.group, thing.name)
        if all(len({thing.group for thing in things}) == len(self._pool) for things in found.values()):
            raise DataError("the captions name no different things of a list: controls are what other captions name")
        which = json.dumps([SEED, PER_PICTURE, *self._pool.values()])
        super().__init__({}, f"{words.name}, controls {hashlib.sha256(which.encode()).hexdigest()[:8]}")

    def group(self, name: str) -> str:
        """Return the head of an object's synonyms."""
        return self._words.group(name)

    def things(self, text: str) -> list[Thing]:
        """Return the things that a text names, and its controls."""
        named = self._words.things(text)
        own = {thing.group for thing in named}
        controls = sorted(
            (group for group in self._pool if group not in own), key=lambda group: self._rank(text, group)
        )
        return [*named, *(Thing(self._pool[group], (), group) for group in controls[:PER_PICTURE])]

    def _rank(self, text: str, group: str) -> bytes:
        return hashlib.sha256(json.dumps([SEED, text, group]).encode()).digest()


@dataclass(frozen=True)
class ControlsReport(Report):
    """The threshold that was found, and its effect.

    Attributes:
        source: whose support it is.
        pictures, failed: numbers of captioned pictures that were asked about, and that failed.
        named, controls: numbers of the things that captions name, and of controls.
        percentile: percentage of controls whose support is below the threshold.
        threshold: below it an object is not supported.
        interval: its 95 % interval, by bootstrap over pictures; about four times as many pictures halve it.
        yes: shares of named things and of controls that the model sees: support of 0.5 and more.
        below: for several thresholds, the shares of named things and of controls below each.
    """

    schema = "sira.calibrate-controls/1"

    source: Source
    pictures: int
    failed: int
    named: int
    controls: int
    percentile: float
    threshold: float
    interval: tuple[float, float]
    yes: tuple[float, float]
    below: dict[float, tuple[float, float]]

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]], percentile: float = PERCENTILE) -> ControlsReport:
        """Find the threshold."""
        every = list(records)
        checks = [record for record in every if record["status"] == "ok"]
        support = {kind: supports(checks, named=kind) for kind in (True, False)}
        if not len(support[False]):
            raise DataError("no picture could be asked about, so no threshold can be found")

        def below(threshold: float) -> tuple[float, float]:
            named, controls = (
                ratio(int((support[kind] < threshold).sum()), len(support[kind])) for kind in (True, False)
            )
            return named, controls

        threshold = threshold_of(support[False], percentile)
        no = below(0.5)
        return cls(
            source=Source.of(checks[0]),
            pictures=len(checks),
            failed=len(every) - len(checks),
            named=len(support[True]),
            controls=len(support[False]),
            percentile=percentile,
            threshold=threshold,
            interval=interval_of([supports([check], named=False) for check in checks], percentile),
            yes=(1 - no[0], 1 - no[1]),
            below={each: below(each) for each in sorted({*SHOWN, threshold})},
        )

    @property
    def is_doubtful(self) -> bool:
        """Whether controls have so much support that it means little."""
        return self.below[self.threshold][0] > DOUBTFUL


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
