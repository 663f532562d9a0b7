"""Pictures whose results could not be written: they fail before any work is done on them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace

from sira_cli.data.wrapped import refused_picture
from sira_cli.pictures.picture import Picture
from sira_cli.runs.events import Halved, PictureEvent
from sira_cli.runs.targets import Targets


class Refused:
    """Filter between pictures and an engine, to which pictures that cannot be written look unreadable."""

    def __init__(self, targets: Targets) -> None:
        """Make the filter.

        Args:
            targets: where results go.
        """
        self._targets = targets
        self._originals: dict[str, Picture] = {}

    def names(self, pictures: Iterable[Picture]) -> Iterator[tuple[Picture, str]]:
        """Yield the pictures for the engine, each with its name in the record."""
        for picture in pictures:
            name = self._targets.name(picture)
            reason = self._targets.refusal(picture, picture.id or name)
            if reason:
                self._originals[picture.identity] = picture
            yield refused_picture(picture, reason) if reason else picture, name

    def events(
        self, events: Generator[PictureEvent | Halved, None, None]
    ) -> Generator[PictureEvent | Halved, None, None]:
        """Yield the engine's events, about the original pictures."""
        try:
            for event in events:
                if not isinstance(event, Halved):
                    event = replace(event, picture=self._originals.get(event.picture.identity, event.picture))
                yield event
        finally:
            events.close()
