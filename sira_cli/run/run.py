"""A resumable run over many pictures, without a terminal: it yields events and never prints."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, Self

from sira_cli.errors import SiraError
from sira_cli.methods.base import Method
from sira_cli.models.preset import Preset
from sira_cli.pictures.find import Pictures
from sira_cli.pictures.picture import Picture
from sira_cli.run.events import Event, Failed, Halved, PictureEvent, Skipped, Started
from sira_cli.run.records import Result
from sira_cli.run.request import Request
from sira_cli.run.run_record import Counts, run_record
from sira_cli.run.targets import Targets, targets_for


class Engine(Protocol):
    """A decoder of the pictures: `LocalRun` on this machine, `RayRun` on many, `RemoteRun` on a server."""

    def blank(self) -> Result | None:
        """Return a result without a picture; None if nothing is known before the first one."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return the model as loaded, where it runs, and the memory that it took, for the run's report."""
        ...

    def events(self, pictures: Iterable[tuple[Picture, str]]) -> Generator[PictureEvent | Halved, None, None]:
        """Yield the event of every picture, with its name in the record."""
        ...


class Job:
    """All pictures of a run under one method, and where the results go: everything is checked, the files are open.

    A context manager: at its end the files are released.

    Attributes:
        pictures: all of the run, in order.
        request: about each picture.
        preset, method: with the settings in force.
        targets: where results go.
        left_out: numbers of files that are not read, by ending.
        settings: everything that decides the records, for the report next to them.
    """

    def __init__(
        self,
        pictures: Sequence[Picture],
        request: Request,
        preset: Preset,
        method: Method,
        targets: Targets,
    ) -> None:
        """Combine the parts, and check that earlier results in the targets were made with the same settings."""
        self.pictures, self.request, self.targets = list(pictures), request, targets
        self.left_out = pictures.left_out if isinstance(pictures, Pictures) else {}
        self.preset, self.method = preset, method
        self.settings = request.settings(preset, method)
        try:
            targets.check(self.settings)
        except BaseException:
            targets.close()
            raise

    @classmethod
    def opened(
        cls,
        pictures: Sequence[Picture],
        request: Request,
        preset: Preset,
        method: Method,
        *,
        output: str | Path | None = None,
        **targets: Any,
    ) -> Self:
        """Check everything that can be checked before the model is loaded, and open the files."""
        request.check(preset, method)
        request = request.about(pictures)
        place = None if output is None else Path(output)
        targets |= {"same_prompt": not request.fills, "keep_lines": preset.text.lines == "keep"}
        files = targets_for(pictures, task=request.task, output=place, **targets)
        return cls(pictures, request, preset, method, files)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.targets.close()


class PictureRun:
    """A request about many pictures; results of an earlier run in the job's targets are kept.

    Attributes:
        counts: the run's progress.
        stopped: whether `fail_fast` ended it.
    """

    def __init__(self, job: Job, engine: Engine, *, fail_fast: bool = False) -> None:
        """Prepare a run."""
        self._pictures, self._targets, self._settings = job.pictures, job.targets, job.settings
        self._engine, self._fail_fast, self._left_out = engine, fail_fast, job.left_out
        self.counts = Counts(len(self._pictures))
        self.stopped = False
        self._began = time.monotonic()
        self._begun = False
        self._before = job.targets.report_before()

    @property
    def seconds(self) -> float:
        """Seconds since the run was made."""
        return time.monotonic() - self._began

    def events(self) -> Generator[Event, None, None]:
        """Run, and yield events. Closing the generator interrupts the run; finished pictures are kept."""
        try:
            if (blank := self._engine.blank()) is not None:
                self._begin(blank)
            yield Started(len(self._pictures))
            yield from self._all()
            self._begin(None)
            if not self.stopped:
                self._targets.finish(self._pictures)
        except (KeyboardInterrupt, GeneratorExit):
            self._report("interrupted")
            raise
        except SiraError:
            with suppress(SiraError):  # the disk may be full
                self._report("failed")
            raise
        self._report("stopped" if self.stopped else "finished")

    def _all(self) -> Generator[Event, None, None]:
        kept = [picture for picture in self._pictures if self._targets.keeps(picture)]
        for picture in kept:
            name = self._targets.name(picture)
            yield self._counted(Skipped(picture, name, picture.id or name))
        done = {picture.identity for picture in kept}
        left = (picture for picture in self._pictures if picture.identity not in done)
        events = self._engine.events((picture, self._targets.name(picture)) for picture in left)
        try:
            for event in events:
                if isinstance(event, Halved):
                    yield event
                    continue
                event = self._kept(event)
                yield self._counted(event)
                if self._fail_fast and isinstance(event, Failed):
                    self.stopped = True
                    return
        finally:
            events.close()

    def _kept(self, event: PictureEvent) -> PictureEvent:
        """Write a picture's result."""
        if isinstance(event, Skipped):
            self._begin(None)
            failed = self._targets.failed_before(event.id)
            self._targets.complete(event.picture, event.id)
            return Skipped(event.picture, event.name, event.id, failed)
        self._begin(event.record)
        self._targets.write(event.picture, event.record)
        return event

    def _counted(self, event: PictureEvent) -> PictureEvent:
        self.counts.add(event)
        return event

    def _begin(self, like: Result | None) -> None:
        """Check, before anything is written, that results like this one belong in the files."""
        if not self._begun:
            self._targets.begin(like)
            self._begun = True
            self._report("running")

    def _report(self, state: str) -> None:
        if self._begun:
            self._targets.write_report(
                run_record(
                    state, self._settings, self._engine.facts(), self.counts, self.seconds, self._left_out, self._before
                )
            )
