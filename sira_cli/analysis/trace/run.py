"""Trace many pictures, without a terminal: it yields events, and lines go to targets.

lvlm = load("llava-1.5-7b")
pictures = find_pictures(["photos/"])
with closing(TraceTargets(pictures, output=Path("traces.jsonl"))) as targets:
    for event in TraceRun(lvlm, [TraceRequest(picture) for picture in pictures], targets).events():
        print(event)
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sira_cli.analysis.trace.record import failed, trace_forced, trace_generated
from sira_cli.analysis.trace.request import OpenedRequest, TraceOptions, TraceRequest, settings_of
from sira_cli.analysis.trace.targets import Line, TraceTargets
from sira_cli.methods.prompts import pictures_of
from sira_cli.models.model import LoadedModel
from sira_cli.models.processor import check_pictures
from sira_cli.pictures.picture import OpenedPicture, Picture
from sira_cli.run.batch import Batch, Item
from sira_cli.run.events import Halved
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.runner import Runner
from sira_cli.run.task import Task

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown


@dataclass(frozen=True)
class Traced:
    """A picture's trace is complete."""

    picture: Picture


@dataclass(frozen=True)
class TraceFailed:
    """A picture has no trace; the reason is given."""

    picture: Picture
    error: str


@dataclass(frozen=True)
class TraceSkipped:
    """A picture was traced in an earlier run."""

    picture: Picture


TraceEvent = Traced | TraceFailed | TraceSkipped | Halved


@dataclass(frozen=True)
class TraceTask(Task[list[Line]]):
    """The lines of each trace. Those of a generated text are written as soon as each token is known."""

    task: str  # `caption` or `ask`
    texts: Mapping[str, str | None]  # to force, by id
    targets: TraceTargets
    options: TraceOptions

    in_order = True  # of generated texts in one file

    def needs_images(self) -> bool:
        """Return True: a trace makes its own inputs."""
        return True

    def inputs(self, lvlm: LoadedModel, items: Sequence[Item[list[Line]]], images: Sequence[Shown]) -> Any:
        """Return True: a trace makes its own inputs."""
        check_pictures(lvlm.processor, images)
        return True

    def answers(self, lvlm: LoadedModel, batch: Batch[list[Line]], on_text: Any = None) -> list[list[Line]]:
        """Return the lines of each trace; for a generated text, only the last one, as the others are written."""
        requests = [self._opened(item, image) for item, image in zip(batch.items, batch.images, strict=True)]
        if requests[0].text is None:
            with self.targets.opened(batch.items[0].picture) as write:
                return [[trace_generated(lvlm, requests[0], self.options, write)]]
        lines: list[list[Line]] = [[] for _ in requests]
        trace_forced(lvlm, requests, self.options, [each.append for each in lines])
        return lines

    def _opened(self, item: Item[list[Line]], shown: Shown) -> OpenedRequest:
        first, *more = pictures_of(shown)
        picture = OpenedPicture(item.picture.location, first, item.sha256, item.warnings, tuple(more))
        address, text = item.picture.address, self.texts[item.id]
        return OpenedRequest(self.task, picture, item.name, item.prompt, text, address)


class TraceRun:
    """A run of traces: generated texts one by one, forced texts in batches."""

    def __init__(
        self,
        lvlm: Lvlm,
        requests: Sequence[TraceRequest],
        targets: TraceTargets,
        options: TraceOptions | None = None,
        *,
        batch_size: int = 1,
        prompt: str | None = None,
        question: bool = False,
    ) -> None:
        """Prepare a run.

        Args:
            lvlm: the model.
            requests: pictures and prompts to trace; either all with texts to force, or none.
            targets: where the lines go.
            options: of the lines.
            batch_size: texts that are forced together; fewer when memory is too small.
            prompt: instead of the requests' own; without either, the preset's caption prompt.
            question: whether the prompt is a question, so that the task is `ask`.
        """
        options, prompts = options or TraceOptions(), lvlm.preset.prompts
        self._requests = [replace(each, prompt=prompt or each.asked(prompts)) for each in requests]
        self._lvlm, self._targets, self._options = lvlm, targets, options
        texts = {str(number): request.text for number, request in enumerate(self._requests)}
        task = TraceTask("ask" if question else "caption", texts, targets, options)
        self._forced = None not in texts.values()
        self._runner = Runner(lvlm, task, batch_size if self._forced else 1)

    def events(self) -> Generator[TraceEvent, None, None]:
        """Trace everything, and yield events. A picture that fails is an event; the others go on.

        Raises:
            SiraError: about the model, the settings or the files.
        """
        lvlm = self._lvlm
        self._targets.check(
            {
                **settings_of(lvlm.preset, lvlm.decoder, self._options),
                "k": lvlm.k,
                "revision": lvlm.revision,
                "dtype": lvlm.dtype,
            }
        )
        todo = []
        for number, request in enumerate(self._requests):
            if self._targets.has(request.picture, request.prompt, request.text):
                yield TraceSkipped(request.picture)
            else:
                todo.append(number)
        if todo:
            self._targets.begin()
        with closing(
            self._runner.run(map(self._item, todo))
        ) as settled:  # an item lives as long as its lines are needed
            for item in settled:
                yield item if isinstance(item, Halved) else self._event(item)
        self._targets.complete()

    def _item(self, number: int) -> Item[list[Line]]:
        request = self._requests[number]
        return Item(request.picture, self._targets.name(request.picture), request.prompt, str(number))

    def _event(self, item: Item[list[Line]]) -> TraceEvent:
        picture = item.picture
        if item.result is None:
            self._targets.fail(failed(item.error))
            return TraceFailed(picture, item.error)
        if self._forced:
            with self._targets.opened(picture) as write:
                for line in item.result:
                    write(line)
        error = item.result[-1]["error"]
        return TraceFailed(picture, error) if error else Traced(picture)
