"""What the results of a run come from: a model on this machine, or an engine elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar

from sira_cli.pictures.picture import Picture
from sira_cli.run.events import Failed, Finished, Halved, PictureEvent, Skipped
from sira_cli.run.items import Item, Task
from sira_cli.run.records import Result
from sira_cli.run.runner import BatchSize, Runner

if TYPE_CHECKING:
    from sira_cli.run.lvlm import Lvlm

R = TypeVar("R", default=Result)


class Engine(ABC, Generic[R]):
    """What the results of a run come from: a model on this machine (`Local`), Ray's workers, a server.

    `run` calls `begin` once, then `results` once, then `facts` for the report, and `end` in any case. If nothing is
    left to do, only `end`. A subclass whose `begin` sets `_runner` inherits `results`.
    """

    revision: str | None = None  # of the model, where it is known before `begin`; None: that of the local files
    server: str = ""  # the address of the model; empty: on this machine
    _runner: Runner[R]  # made by `begin`

    @abstractmethod
    def begin(self, task: Task[R], done: Callable[[str], str]) -> R | None:
        """Get the model ready.

        Args:
            task: the work on each picture.
            done: returns the key of an item's earlier result, by `Item.id`; empty if it has none.

        Returns:
            A result without a picture, which has what is equal in the results of all of them: by it, files with other
            results are refused before the first picture. None if that is not known yet.
        """

    def results(self, todo: Iterable[Item[R]]) -> Generator[PictureEvent[R] | Halved, None, None]:
        """Yield `Finished`, `Failed` or `Skipped` for every item, in order, and `Halved` where a batch shrinks.

        Args:
            todo: to be read lazily.

        Raises:
            SiraError: no further picture could succeed.
        """
        with closing(self._runner.run(todo)) as items:
            for item in items:
                yield item if isinstance(item, Halved) else event_of(item)

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return the model as loaded, where it runs, and the memory that it took, for the run's report."""

    def end(self) -> None:
        """Release what was taken: the run is over, or nothing is left to do."""


def event_of(item: Item[R]) -> PictureEvent[R]:
    """Return the event of an item that is settled."""
    if item.skipped:
        return Skipped(item.picture, item.name, item.id)
    result: Any = item.result  # None where a task has no results for failures
    if item.error:
        return Failed(item.picture, item.name, item.id, result, item.error)
    return Finished(item.picture, item.name, item.id, result)


class Local(Engine[R]):
    """A model on this machine, or what loads one under the method of the first task that needs it."""

    def __init__(
        self,
        model: Lvlm | Callable[[Any], Lvlm],
        batch_size: BatchSize | None = None,
        on_text: Callable[[Picture, str], None] | None = None,
    ) -> None:
        self._model = model
        self._batch_size = batch_size
        self.on_text = on_text

    def begin(self, task: Task[R], done: Callable[[str], str]) -> R | None:
        """Load the model, or switch the loaded one to the method of another task."""
        if callable(self._model):
            lvlm = self._model = self._model(task)
        else:
            lvlm = task.model(self._model)
        self._lvlm = lvlm
        task = task.at(lvlm.revision)
        task.check_model(lvlm)
        self._runner = lvlm.runner(task, self._batch_size, done=done, on_text=self.on_text)
        return task.blank(lvlm)

    @property
    def batch_size(self) -> int:
        """Number of pictures decoded together, as for `Runner`."""
        return self._runner.batch_size

    def facts(self) -> dict[str, Any]:
        """Return the model as loaded, where it runs, and the memory that it took so far."""
        from sira_cli.models.memory import peak_of_process
        from sira_cli.models.processor import pixel_library

        lvlm = self._lvlm
        return {
            "model": {"revision": lvlm.revision, "k": lvlm.k, "layers": lvlm.layers},
            "device": lvlm.device,
            "dtype": lvlm.dtype,
            "pixels": pixel_library(lvlm.processor),
            "batch_size": self.batch_size,
            "peak_memory_bytes": peak_of_process(),
        }
