"""Keyed records of a run on disk: those of an earlier run are kept, and a later run continues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sira_cli.models.preset import ONLY_IF_SET
from sira_cli.pictures.picture import Picture
from sira_cli.run.continued import check_same
from sira_cli.run.ledger import Ledger
from sira_cli.run.records import Result, flat
from sira_cli.run.run_record import read_report


class RecordFile:
    """Records in one file, locked against other processes until `close`.

    Attributes:
        ledger: the open file.
        path: its path.
        report: where the run's report goes; None: nowhere.
    """

    def __init__(self, ledger: Ledger, *, report: bool = True, repeated: bool = True) -> None:
        """Wrap an open ledger."""
        self.ledger, self.path, self._repeated = ledger, ledger.path, repeated
        self.report = ledger.path.with_suffix(".run.json") if report else None
        self._folder = ledger.path.parent.resolve()

    @property
    def revision(self) -> str:
        """The revision of the model that made the records; empty without records."""
        return str(self.ledger.configuration.get("revision", ""))

    def name(self, picture: Picture) -> str:
        """Return its path, relative to the file."""
        return picture.name_in(self._folder)

    def check(self, settings: dict[str, Any]) -> None:
        """Check, before the model is loaded, that existing records were made with the same settings.

        Without a report, most settings are known from the records.
        """
        there = read_report(self.report).get("settings") if len(self.ledger) else None
        if isinstance(there, dict):
            off = dict.fromkeys(ONLY_IF_SET)
            check_same(self.path, off | flat(settings), off | flat(there))

    def key(self, name: str) -> str:
        """Return the key of a picture's record; empty without one."""
        return self.ledger.key(name)

    def is_error(self, name: str) -> bool:
        """Return whether the picture is in the file as failed."""
        return self.ledger.is_error(name)

    def record(self, name: str) -> dict[str, Any]:
        """Return a picture's newest record."""
        return self.ledger.record(name)

    def begin(self, like: Result | None) -> None:
        """Get ready for results like this one; None: for none."""
        if like is not None:
            self.ledger.check(like.configuration())
        self.ledger.begin()

    def append(self, picture: Picture, result: Result) -> None:
        """Add a record."""
        record = result.to_record()
        self.ledger.append({"schema": record["schema"], "id": picture.id, **record} if picture.id else record)

    def finish(self, pictures: Sequence[Picture]) -> None:
        """Put the records in the order of the pictures."""
        self.ledger.finish((picture.id or self.name(picture) for picture in pictures), repeated=self._repeated)

    def close(self) -> None:
        """Release the lock."""
        self.ledger.close()
