"""Keyed records of a run on disk: those of an earlier run are kept, and a later run continues."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sira_cli.data.records.continued_file import check_same
from sira_cli.data.records.ledger import Ledger
from sira_cli.data.records.record import Result, flat
from sira_cli.models.loading.preset import ONLY_IF_SET
from sira_cli.pictures.picture import Picture
from sira_cli.runs.run_record import read_report
from sira_cli.runs.sinks import Sink


class Store(ABC):
    """Records of a run, locked against other processes until `close`.

    Attributes:
        path: of the records, or their folder.
        report: where the run's report goes; None: nowhere.
    """

    path: Path
    report: Path | None

    @property
    @abstractmethod
    def revision(self) -> str:
        """The revision of the model that made the records; empty without records."""

    @abstractmethod
    def name(self, picture: Picture) -> str:
        """Return a picture's public name in its record."""

    @abstractmethod
    def key(self, name: str) -> str:
        """Return the key in a picture's record; empty without one."""

    @abstractmethod
    def is_error(self, name: str) -> bool:
        """Return whether a picture is known as failed."""

    @abstractmethod
    def record(self, name: str) -> dict[str, Any]:
        """Return the record of a picture that has one."""

    @abstractmethod
    def begin(self, like: Result | None) -> None:
        """Get ready for results like this one; None: for none.

        Raises:
            SettingsError: existing records have another configuration.
        """

    @abstractmethod
    def append(self, picture: Picture, result: Result) -> None:
        """Keep a result.

        Raises:
            SiraError: the file cannot be written; it holds what it held before.
        """

    @abstractmethod
    def settled(self, picture: Picture) -> None:
        """Note that a picture is finished: its record is new, or an earlier run's."""

    @abstractmethod
    def finish(self, pictures: Sequence[Picture], sinks: Sequence[Sink]) -> None:
        """Put the records in the order of the pictures, and let the sinks have them.

        Raises:
            SiraError: a file cannot be written.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the files."""

    def check(self, settings: dict[str, Any]) -> None:
        """Check, before the model is loaded, that existing records were made with the same settings.

        Without a report, most settings are known from the records.

        Args:
            settings: from `Request.settings`.

        Raises:
            SettingsError: they were not; the message names the differences.
        """
        there = read_report(self.report).get("settings")
        if isinstance(there, dict):
            off = dict.fromkeys(ONLY_IF_SET)
            check_same(self.path, off | flat(settings), off | flat(there))


class RecordFile(Store):
    """Records in one file."""

    def __init__(self, ledger: Ledger, *, report: bool = True, repeated: bool = True) -> None:
        """Wrap an open ledger.

        Args:
            ledger: the file.
            report: whether the run has a report next to it.
            repeated: whether captions that many pictures share get a warning.
        """
        self.ledger, self.path, self._repeated = ledger, ledger.path, repeated
        self.report = ledger.path.with_suffix(".run.json") if report else None
        self._folder = ledger.path.parent.resolve()

    @property
    def revision(self) -> str:
        """The revision in all records."""
        return str(self.ledger.configuration.get("revision", ""))

    def name(self, picture: Picture) -> str:
        """Return its path, relative to the file."""
        return picture.name_in(self._folder)

    def check(self, settings: dict[str, Any]) -> None:
        """Check existing records, if there are any."""
        if len(self.ledger):
            super().check(settings)

    def key(self, name: str) -> str:
        """Return the key of a picture's record."""
        return self.ledger.key(name)

    def is_error(self, name: str) -> bool:
        """Return whether the picture is in the file as failed."""
        return self.ledger.is_error(name)

    def record(self, name: str) -> dict[str, Any]:
        """Return a picture's newest record."""
        return self.ledger.record(name)

    def begin(self, like: Result | None) -> None:
        """Check the configuration; drop a torn last line."""
        if like is not None:
            self.ledger.check(like.configuration())
        self.ledger.begin()

    def append(self, picture: Picture, result: Result) -> None:
        """Add a line."""
        record = result.to_record()
        self.ledger.append({"schema": record["schema"], "id": picture.id, **record} if picture.id else record)

    def settled(self, picture: Picture) -> None:
        """Do nothing: the file is finished as a whole."""

    def finish(self, pictures: Sequence[Picture], sinks: Sequence[Sink]) -> None:
        """Bring the file into its final state."""
        self.ledger.finish((picture.id or self.name(picture) for picture in pictures), repeated=self._repeated)
        for sink in sinks:
            sink.finish(pictures, self.ledger)

    def close(self) -> None:
        """Release the lock."""
        self.ledger.close()
