"""Pictures whose results could not be written: they fail before any work is done on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace

from sira_cli.data.records.record import Result
from sira_cli.pictures.picture import Picture
from sira_cli.runs.events import Failed, Halved, PictureEvent
from sira_cli.runs.targets import Targets


class Refused:
    """Filter between pictures and an engine: pictures that cannot be written get an error event instead."""

    def __init__(self, targets: Targets, blank: Result | None) -> None:
        """Make the filter.

        Args:
            targets: where results go.
            blank: a result without a picture; None: all pictures go to the engine.
        """
        self._targets, self._blank = targets, blank
        self._waiting: deque[Failed] = deque()

    def names(self, pictures: Iterable[Picture]) -> Iterator[tuple[Picture, str]]:
        """Yield the pictures for the engine, each with its name in the record."""
        for picture in pictures:
            name = self._targets.name(picture)
            number = picture.id or name
            reason = "" if self._blank is None else self._targets.refusal(picture, number)
            if self._blank is None or not reason:
                yield picture, name
                continue
            record = replace(
                self._blank,
                file_name=name,
                status="error",
                finish_reason="error",
                error=f"{picture.shown}: {reason}",
                images=picture.images(name),
                support=None if self._blank.support is None else 0.0,
            )
            self._waiting.append(Failed(picture, name, number, record))

    def events(
        self, events: Generator[PictureEvent | Halved, None, None]
    ) -> Generator[PictureEvent | Halved, None, None]:
        """Yield the engine's events, and those of refused pictures."""
        try:
            for event in events:
                yield from self._refused()
                yield event
            yield from self._refused()
        finally:
            events.close()

    def _refused(self) -> Iterator[Failed]:
        while self._waiting:
            yield self._waiting.popleft()
