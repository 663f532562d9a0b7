"""Trace many pictures, without a terminal: it yields events, and lines go to targets.

lvlm = load("llava-1.5-7b")
pictures = find_pictures(["photos/"])
targets = TraceTargets(pictures, output=Path("traces.jsonl"))
for event in TraceRun(lvlm, [TraceRequest(picture) for picture in pictures], targets).events():
    print(event)
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from sira_cli.analysis.trace.record import failed, trace_forced, trace_generated
from sira_cli.analysis.trace.request import OpenedRequest, TraceOptions, TraceRequest
from sira_cli.analysis.trace.targets import Line, TraceTargets
from sira_cli.errors import PictureError, SiraError
from sira_cli.models.lvlm import Lvlm
from sira_cli.models.processors import refused
from sira_cli.pictures.picture import Picture


@dataclass(frozen=True)
class Traced:
    """A picture's trace is complete."""

    picture: Picture


@dataclass(frozen=True)
class TraceFailed:
    """A picture has no trace, and why."""

    picture: Picture
    error: str


@dataclass(frozen=True)
class TraceSkipped:
    """A picture was traced in an earlier run."""

    picture: Picture


TraceEvent = Traced | TraceFailed | TraceSkipped


class TraceRun:
    """Pictures one after the other; texts that are to be forced go in batches."""

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
            requests: pictures and prompts to trace.
            targets: where the lines go.
            options: of the lines.
            batch_size: texts that are forced together.
            prompt: instead of the requests' own; without either, the preset's caption prompt.
            question: whether the prompt is a question, so that the task is `ask`.
        """
        self._lvlm, self._requests, self._targets = lvlm, list(requests), targets
        self._options, self._batch_size = options or TraceOptions(), batch_size
        self._prompt, self._task = prompt, "ask" if question else "caption"

    def events(self) -> Generator[TraceEvent, None, None]:
        """Trace everything, and yield events. A picture that fails is an event; the others go on.

        Raises:
            SiraError: about the model, the settings or the files.
        """
        batch: list[tuple[Picture, OpenedRequest]] = []
        for request in self._requests:
            if self._targets.has(request.picture):
                yield TraceSkipped(request.picture)
                continue
            try:
                opened = self._opened(request)
            except PictureError as error:
                yield self._fail(request.picture, str(error))
                continue
            if opened.text is None:
                yield self._generate(request.picture, opened)
                continue
            batch.append((request.picture, opened))
            if len(batch) == self._batch_size:
                yield from self._force(batch)
                batch = []
        if batch:
            yield from self._force(batch)

    def _opened(self, request: TraceRequest) -> OpenedRequest:
        picture = request.picture
        prompt = self._prompt or request.prompt or self._lvlm.preset.prompts.caption
        return OpenedRequest(
            self._task, picture.open(), self._targets.name(picture), prompt, request.text, picture.address
        )

    def _generate(self, picture: Picture, opened: OpenedRequest) -> TraceEvent:
        try:
            with self._targets.opened(picture) as write:
                end = trace_generated(self._lvlm, opened, self._options, write)
        except SiraError:
            raise
        except Exception as error:  # outside of the block, so that no half trace takes its place in a tree
            return self._fail(picture, str(refused(picture.location, error)))
        return TraceFailed(picture, end["error"]) if end["error"] else Traced(picture)

    def _force(self, batch: list[tuple[Picture, OpenedRequest]]) -> Generator[TraceEvent, None, None]:
        """Force texts together; if that fails, one after the other."""
        lines: list[list[Line]] = [[] for _ in batch]
        try:
            trace_forced(self._lvlm, [opened for _, opened in batch], self._options, [each.append for each in lines])
        except SiraError:
            raise
        except Exception as error:
            if len(batch) == 1:
                picture = batch[0][0]
                yield self._fail(picture, str(refused(picture.location, error)))
                return
            for one in batch:
                yield from self._force([one])
            return
        for (picture, _), trace in zip(batch, lines, strict=True):
            with self._targets.opened(picture) as write:
                for line in trace:
                    write(line)
            yield Traced(picture)

    def _fail(self, picture: Picture, message: str) -> TraceFailed:
        self._targets.fail(failed(message))
        return TraceFailed(picture, message)
