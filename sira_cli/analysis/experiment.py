"""The pattern of an experiment: units of work that are kept, a report on them, its table and its figure.

units = Units(Path("sweep.jsonl"))                 # a killed run goes on from its file
units.begin(settings)                              # a file belongs to one configuration
for event in run_missing(lvlm, task, items, units):  # an item's id is the name of its unit
    print(event)
report = SweepReport.of(lvlm, questions, grid, units)
print(report.to_json(), *report.table())           # and, for experiments with a figure, report.draw()
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sira_cli.run.events import Advanced, FailedPicture, Halved, StageStarted
from sira_cli.run.ledger import ContinuedFile, check_same
from sira_cli.run.records import Report, as_line

if TYPE_CHECKING:
    from sira_cli.models.model import LoadedModel
    from sira_cli.run.lvlm import Lvlm
    from sira_cli.run.runner import BatchSize, Item, Task

SCHEMA = "sira.sweep.units/1"

T = TypeVar("T")
Events = Generator[StageStarted | Advanced | FailedPicture | Halved, None, None]


class Units(dict[str, T]):
    """The results of finished units by the unit's name: in memory, and optionally in a file of JSON lines.

    The first line of the file holds the settings. The file of a killed process is complete, except perhaps for its last
    line, which the next run cuts off. `failures` are the pictures that failed in this run, by name.
    """

    def __init__(self, path: Path | None = None, *, overwrite: bool = False) -> None:
        """Open or create the file, and read it."""
        super().__init__()
        self.failures: dict[str, FailedPicture] = {}
        self._file = None if path is None else _UnitFile(path, self, overwrite=overwrite)

    def check(self, settings: Mapping[str, Any]) -> None:
        """Check that the known settings equal the file's."""
        if self._file is not None:
            check_same(self._file.path, settings, self._file.settings or {})

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Get ready to add: drop a torn last line, or with `overwrite` everything; write the settings if need be."""
        self.check(settings)
        if self._file is not None:
            self._file.begin()
            if self._file.settings is None:
                self._file.add(as_line({"schema": SCHEMA, "settings": dict(settings)}))

    def add(self, units: Mapping[str, T]) -> None:
        """Keep the results of finished units."""
        if self._file is not None:
            self._file.add(b"".join(as_line({"unit": unit, "texts": result}) for unit, result in units.items()))
        self.update(units)

    def complete(self) -> None:
        """Note that all units are finished."""
        if self._file is not None:
            self._file.complete()

    def close(self) -> None:
        """Close the file and release its lock."""
        if self._file is not None:
            self._file.close()


class _UnitFile(ContinuedFile):
    beginning = b'{"schema": "sira.sweep'
    wrong = "was not written by a sweep"
    settings: dict[str, Any] | None = None  # of the first line; None: the file has none yet

    def __init__(self, path: Path, results: dict[str, Any], *, overwrite: bool) -> None:
        self._results = results
        super().__init__(path, overwrite=overwrite)

    def _read_line(self, number: int, line: bytes) -> None:
        record = json.loads(line)
        if number > 1:
            self._results[record["unit"]] = list(record["texts"])
        elif record["schema"] == SCHEMA:
            self.settings = dict(record["settings"])
        else:
            raise ValueError


def run_missing(
    lvlm: LoadedModel,
    task: Task[T],
    items: Iterable[Item[T]],
    units: Units[T],
    batch_size: BatchSize | None = None,
    pieces: int = 1,
) -> Events:
    """Work on the items whose units are missing, keep each result, and yield events; a unit counts as `pieces`."""
    from sira_cli.run.runner import Runner  # imports torch

    every = list(items)
    missing = [item for item in every if item.id not in units]
    yield Advanced(pieces * (len(every) - len(missing)), worked=False)
    with closing(Runner(lvlm, task, batch_size).run(missing)) as settled:
        for item in settled:
            if isinstance(item, Halved):
                yield item
                continue
            if item.result is not None:
                units.add({item.id: item.result})
            elif item.name not in units.failures:
                units.failures[item.name] = FailedPicture(item.name, item.error)
                yield units.failures[item.name]
            yield Advanced(pieces)


@dataclass(frozen=True)
class ModelReport(Report):
    """The model that was measured, as it was loaded; reports on one model are subclasses."""

    preset: str
    model: str
    revision: str
    quantization: str | None
    dtype: str

    @staticmethod
    def fields_of(lvlm: Lvlm) -> dict[str, Any]:
        """Return the fields of a loaded model."""
        names = {"preset": lvlm.preset.name, "model": lvlm.preset.model, "revision": lvlm.revision}
        return names | {"quantization": lvlm.quantization, "dtype": lvlm.dtype}
