"""Other forms of a run's results, next to the records: text files, XMP, tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sira_cli.data.captions.sidecars import Sidecars
from sira_cli.data.records.ledger import Ledger
from sira_cli.data.records.record import Result
from sira_cli.data.records.tables import check_format, write_table
from sira_cli.errors import SettingsError
from sira_cli.pictures.containers import ContainedPicture
from sira_cli.pictures.picture import Picture
from sira_cli.runs.xmp_sidecars import XmpSidecars


class Sink:
    """An additional output of a run's results. A new one overrides `write` or `finish`, and has a line in `FILES`."""

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

    def finish(self, pictures: Sequence[Picture], ledger: Ledger) -> None:
        """Write all records, in order, at the end of the run.

        Raises:
            SiraError: they cannot be written.
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


class Table(Sink):
    """All records as one table, .csv or .parquet."""

    def __init__(self, path: Path) -> None:
        """Check the format.

        Raises:
            SettingsError: Parquet needs pyarrow, which is missing.
        """
        check_format(path)
        self._path = path

    def finish(self, pictures: Sequence[Picture], ledger: Ledger) -> None:
        """Write the table."""
        write_table(ledger.lines(), self._path, ledger.columns)


# By the ending of the file that is asked for. Records are kept next to it.
FILES: dict[str, Callable[[Path], Sink]] = {".csv": Table, ".parquet": Table}


def check_replaceable(table: Path, pictures: Sequence[Picture], *, may_exist: bool) -> None:
    """Check that a file, which is rewritten, replaces neither an input of the run nor a file of others.

    Raises:
        SettingsError: it does.
    """
    if not table.exists():
        return
    own = table.resolve()
    for container in {picture.container for picture in pictures if isinstance(picture, ContainedPicture)}:
        if Path(container).resolve() == own:
            raise SettingsError(f"`output=` {table}: the data set would be replaced: give another file, or a folder")
    if not may_exist:
        raise SettingsError(f"{table}: is from another kind of run: give another `output=`, or use `overwrite=`")
