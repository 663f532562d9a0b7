"""The pattern of an experiment: units of work that are kept (`Units`, `run_stage`), a report, its table and figure.

Units may have a file, from which a killed run goes on; it belongs to one configuration.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from sira_cli.errors import PictureError, SettingsError, install
from sira_cli.parsing import from_json
from sira_cli.pictures.picture import Picture
from sira_cli.run.engines import Local
from sira_cli.run.events import Advanced, Event, Failed, Finished, PictureEvent, StageStarted
from sira_cli.run.items import Task
from sira_cli.run.ledger import ContinuedFile, check_same
from sira_cli.run.records import as_line
from sira_cli.run.reports import Report
from sira_cli.run.run import run
from sira_cli.run.sink import Sink

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from sira_cli.run.lvlm import Lvlm
    from sira_cli.run.runner import BatchSize

FORMATS = (".png", ".pdf", ".svg")
# Okabe and Ito's colours, distinct for the colour-blind; markers make lines distinct in grey.
STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v"), ("#56B4E9", "P"))
T = TypeVar("T")
Events = Generator[StageStarted | Event[Any] | Advanced, None, None]


@dataclass(frozen=True)
class FailedPicture:
    """A picture that could not be measured, and the reason."""

    picture: str
    error: str


class Units(dict[str, T]):
    """The results of finished units by the unit's name: in memory, and optionally in a file of JSON lines.

    The first line of the file holds the settings. The file of a killed process is complete, except perhaps for its last
    line, which the next run cuts off. `failures` are the pictures that failed in this run, by name.
    """

    def __init__(self, path: Path | None = None, *, overwrite: bool = False, experiment: str = "sweep") -> None:
        """Open the file, lock out other processes, and read it.

        Args:
            path: the file; None: units are only in memory.
            overwrite: replace the content of the file.
            experiment: whose units the file holds, for its first line: `sweep` or `bench`.

        Raises:
            DataError: the file holds something else.
        """
        super().__init__()
        self.failures: dict[str, FailedPicture] = {}
        self._file = None if path is None else _UnitFile(path, self, experiment, overwrite=overwrite)

    def check(self, settings: Mapping[str, Any], *, whole: bool = False) -> None:
        """Check that settings equal the file's: some of them, or `whole`: there are no others."""
        if self._file is not None:
            check_same(self._file.path, settings, self._file.settings or {}, whole=whole)

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Get ready to add: drop a torn last line, or with `overwrite` everything; write the settings if need be."""
        self.check(settings, whole=True)
        if self._file is not None:
            self._file.begin()
            if self._file.settings is None:
                self._file.add(as_line({"schema": self._file.schema, "settings": dict(settings)}))

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
    settings: dict[str, Any] | None = None  # of the first line; None: the file has none yet

    def __init__(self, path: Path, results: dict[str, Any], experiment: str, *, overwrite: bool) -> None:
        self._results = results
        self.schema = f"sira.{experiment}.units/1"
        self.beginning = f'{{"schema": "sira.{experiment}'.encode()
        self.wrong = f"was not written by a {experiment}"
        super().__init__(path, overwrite=overwrite)

    def _read_line(self, number: int, line: bytes) -> None:
        record = from_json(line)
        if number > 1:
            self._results[record["unit"]] = list(record["texts"])
        elif record["schema"] == self.schema:
            self.settings = dict(record["settings"])
        else:
            raise ValueError


class UnitOutput(Sink[T]):
    """Where the results of a stage go: to `Units`, each under its picture's id, or its name if it has no id."""

    def __init__(self, units: Units[T], pictures: Sequence[Picture], name: Callable[[Picture], str]) -> None:
        super().__init__(pictures, {})
        self._units = units
        self._name = name

    @override
    def name(self, picture: Picture) -> str:
        """Return the picture's name, as failures have it."""
        return self._name(picture)

    @override
    def keeps(self, picture: Picture) -> bool:
        """Return whether the picture's unit is finished."""
        return (picture.id or self.name(picture)) in self._units

    @override
    def write(self, event: PictureEvent[T]) -> PictureEvent[T]:
        """Keep the picture's result, or its first failure."""
        if isinstance(event, Finished):
            self._units.add({event.id: event.record})
        elif isinstance(event, Failed):
            self._units.failures.setdefault(event.name, FailedPicture(event.name, event.error))
        self.counts.add(event)
        return event


def run_stage(
    lvlm: Lvlm,
    task: Task[T],
    pictures: Sequence[Picture],
    units: Units[T],
    batch_size: BatchSize | None = None,
    *,
    name: Callable[[Picture], str] = lambda picture: picture.name_in(None),
    all_needed: bool = False,
) -> Generator[Event[T], None, None]:
    """Work on the pictures whose units are missing, keep each result, and yield the events of the run.

    Args:
        lvlm: the loaded model, under the method of the task.
        task: with results that `units` can write as JSON.
        pictures: all pictures of a stage, each with its prompt; its unit is its `id`, or its name if it has no id.
        units: the results so far, to which new ones are added.
        batch_size: as for `Runner`.
        name: returns a picture's name, as failures have it.
        all_needed: whether the experiment ends at the first picture that fails.

    Raises:
        PictureError: a picture failed, and all are needed.
    """
    output = UnitOutput(units, pictures, name)
    with closing(run(task, pictures, Local(lvlm, batch_size), output)) as events:
        for event in events:
            if all_needed and isinstance(event, Failed):
                raise PictureError(event.error)
            yield event


def check_finite(measured: Tensor, picture: str) -> None:
    """Check that a measurement has finite numbers only.

    Raises:
        PictureError: it has others; the message names the picture.
    """
    if not bool(measured.isfinite().all()):
        raise PictureError(f"{picture}: the model computes numbers out of range: try another dtype")


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


def check_format(path: Path) -> None:
    """Check that a figure can be drawn to a path."""
    if path.suffix.lower() not in FORMATS:
        raise SettingsError(f"{path}: expected a name that ends in {', '.join(FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise SettingsError(f"{path}: a figure needs matplotlib: {install('plot')}")


def new_figure(height: float) -> Figure:
    """Make an empty figure of 10 by `height` inches, without pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_line(axes: Any, x: Sequence[float], values: Sequence[tuple[float, float, float]], label: str, n: int) -> str:
    """Draw values with a band from low to high around them in the n-th style, and return its colour."""
    colour, marker = STYLES[n % len(STYLES)]
    value, low, high = zip(*values, strict=True)
    axes.plot(x, value, color=colour, marker=marker, markersize=4, label=label)
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    return colour
