"""Other forms of a run's results, next to the records: text files, XMP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sira_cli.data.captions.sidecars import Sidecars
from sira_cli.data.records.record import Result
from sira_cli.pictures.picture import Picture
from sira_cli.runs.xmp_sidecars import XmpSidecars


class Sink:
    """An additional output of a run's results."""

    def refusal(self, picture: Picture) -> str:
        """Return why a picture's result could not be written; empty if it can."""
        return ""

    def write(self, picture: Picture, result: Result) -> None:
        """Write a new result.

        Raises:
            SiraError: it cannot be written.
        """

    def complete(self, picture: Picture, record: Callable[[], dict[str, Any]]) -> None:
        """Write a result of an earlier run, whose record is known, if it is missing here.

        Raises:
            SiraError: it cannot be written.
        """


class TextFiles(Sink):
    """A text file next to each picture, or in a tree."""

    def __init__(self, sidecars: Sidecars, text: Callable[[Mapping[str, Any]], str] | None = None) -> None:
        """Args: the files, and the function from a record's text to the file's; None: the text itself."""
        self.sidecars, self._text = sidecars, text or (lambda record: str(record["text"]))

    def write(self, picture: Picture, result: Result) -> None:
        """Write the text, unless an existing file is to be kept; a picture that failed has none."""
        if result.status == "ok":
            self.sidecars.write(picture, self._text(result.to_record()))

    def complete(self, picture: Picture, record: Callable[[], dict[str, Any]]) -> None:
        """Write the text if its file is missing."""
        self.sidecars.complete(picture, lambda: self._text(record()))


class XmpFiles(TextFiles):
    """An XMP sidecar of each picture."""

    sidecars: XmpSidecars

    def refusal(self, picture: Picture) -> str:
        """Return why the existing sidecar cannot be read."""
        return self.sidecars.refusal(picture)

    def write(self, picture: Picture, result: Result) -> None:
        """Put the description into the sidecar; a picture that failed has none."""
        if result.status == "ok":
            self.sidecars.describe(picture, result.to_record())

    def complete(self, picture: Picture, record: Callable[[], dict[str, Any]]) -> None:
        """Put the description into a sidecar that lacks it."""
        if not self.sidecars.is_there(picture):
            self.sidecars.describe(picture, record())
