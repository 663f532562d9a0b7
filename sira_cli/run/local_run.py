"""The engine of a run on this machine."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

from sira_cli.errors import PictureError
from sira_cli.models.memory import peak_of_process
from sira_cli.models.processor import pixel_library
from sira_cli.pictures.picture import Picture
from sira_cli.run.batch import BatchSize, Item
from sira_cli.run.check_task import CheckTask
from sira_cli.run.events import Failed, Finished, Halved, PictureEvent, Skipped
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.picture_task import PictureTask
from sira_cli.run.records import Result
from sira_cli.run.request import Request

TASKS: dict[str, Callable[..., PictureTask]] = {"caption": PictureTask, "ask": PictureTask, "check": CheckTask}


class LocalRun:
    """A request about many pictures, on this machine."""

    def __init__(
        self,
        lvlm: Lvlm,
        request: Request,
        *,
        batch_size: BatchSize | None = None,
        done: Callable[[str], str] = lambda name: "",
        on_text: Callable[[Picture, str], None] | None = None,
    ) -> None:
        """Prepare a run."""
        self._task = TASKS[request.task](lvlm, request, done)
        self._runner = lvlm.runner(self._task, batch_size, on_text)

    @property
    def batch_size(self) -> int:
        """Number of pictures decoded together, as for `Runner`."""
        return self._runner.batch_size

    def blank(self) -> Result:
        """Return a result without a picture: the fields that are equal in all results of this run."""
        return self._task.blank()

    def facts(self) -> dict[str, Any]:
        """Return the model as loaded, where it runs, and the memory that it took so far, for the run's report."""
        lvlm = self._task.lvlm
        return {
            "model": {"revision": lvlm.revision, "k": lvlm.k, "layers": lvlm.layers},
            "device": lvlm.device,
            "dtype": lvlm.dtype,
            "pixels": pixel_library(lvlm.processor),
            "batch_size": self.batch_size,
            "peak_memory_bytes": peak_of_process(),
        }

    def give_up(self, picture: Picture, name: str, message: str) -> PictureEvent:
        """Fail a picture without opening it."""
        item = self._task.item(picture, name)
        self._task.fail(item, PictureError(f"{picture.shown}: {message}"))
        return event(item)

    def events(self, pictures: Iterable[tuple[Picture, str]]) -> Generator[PictureEvent | Halved, None, None]:
        """Yield the event of every picture, in order."""
        items = self._runner.run(self._task.item(picture, name) for picture, name in pictures)
        try:
            for item in items:
                yield item if isinstance(item, Halved) else event(item)
        finally:
            items.close()


def event(item: Item[Result]) -> PictureEvent:
    """Return the event of a settled item."""
    if item.result is None:
        return Skipped(item.picture, item.name, item.id)
    kind = Finished if item.result.status == "ok" else Failed
    return kind(item.picture, item.name, item.id, item.result)
