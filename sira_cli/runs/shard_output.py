"""The output of one file of a data set, and the small files that describe it.

out/.sira/cc3m-00000.jsonl         records, appended as they come
out/.sira/cc3m-00000.tar.done      marks the output as sira's; an empty one marks it as complete
out/.sira/cc3m-00000.source        the path of the data set's file
out/cc3m-00000.tar                 the output, written as a whole
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sira_cli.data.records.ledger import Ledger
from sira_cli.errors import SettingsError
from sira_cli.files import too_long, write_whole
from sira_cli.pictures.tables import is_table
from sira_cli.pictures.webdataset import key_and_extension
from sira_cli.runs.shard_files import write_jsonl, write_parquet, write_tar

ENDINGS = {"jsonl": ".jsonl", "parquet": ".parquet", "webdataset": ".tar"}
_NOT_YET = b"not yet\n"


@dataclass
class ShardOutput:
    """The output of one file of the data set.

    Attributes:
        folder: of all outputs.
        format: one of `ENDINGS`.
        source: the path or URI of the data set's file.
        stem: its name without the ending.
        keys: of its pictures by their names in records, in order.
        left: number of those without a result in this run.
        ledger: its records, if they are open.
        written: whether this run has written to them.
    """

    folder: Path
    format: str
    source: str
    stem: str
    keys: dict[str, str] = field(default_factory=dict)
    left: int = 0
    ledger: Ledger | None = None
    written: bool = False

    @property
    def final(self) -> Path:
        """The output."""
        return self.folder / (self.stem + ENDINGS[self.format])

    @property
    def records(self) -> Path:
        """The file of records."""
        return self._beside(".jsonl")

    @property
    def is_complete(self) -> bool:
        """Whether the output has all records."""
        return self._mark.exists() and not self._mark.stat().st_size and self.final.exists()

    def check(self, *, overwrite: bool) -> None:
        """Check that the output replaces neither its source, nor files of others, nor the output of another file.

        Args:
            overwrite: whether it may replace files other than its source.

        Raises:
            SettingsError: it would replace one, or the name is too long for a file.
        """
        if any(too_long(self._beside(f"{ending}.done")) for ending in ENDINGS.values()):
            raise SettingsError(f"{self.source}: names made from it would be too long: give the file a shorter one")
        if self.final.resolve() == Path(self.source).resolve():
            raise SettingsError(f"`output=` {self.folder}: {self.final} would be replaced: give another folder")
        if overwrite:
            return
        way_out = "give another `output=`, or `overwrite=` to replace it"
        if self.final.exists() and not self._mark.exists():
            raise SettingsError(f"{self.final}: is from another kind of run: {way_out}")
        try:
            before, now = Path(os.fsdecode(self._origin.read_bytes())), Path(self.source)
            is_other = not before.samefile(now) and before.stat().st_size != now.stat().st_size
        except (OSError, ValueError):  # nothing was written yet, or the file has moved, or is in a store
            return
        if is_other:
            raise SettingsError(f"{self.final}: is of {before}, another file of the same name: {way_out}")

    def outdate(self) -> None:
        """Mark the outputs of all formats as incomplete, before records are added.

        Raises:
            SiraError: the file cannot be written.
        """
        write_whole(self._origin, os.fsencode(Path(self.source).absolute()))
        for ending in ENDINGS.values():
            mark = self._beside(f"{ending}.done")
            if mark.exists() or mark == self._mark:
                write_whole(mark, _NOT_YET)

    def write(self, ledger: Ledger, task: str) -> None:
        """Write the output from all its records, and mark it as complete.

        Raises:
            SiraError: the file cannot be written.
        """
        records = {self._key(record["file_name"]): record for record in ledger.records()}
        if "" not in self.keys.values():
            records.pop("", None)  # from a run in which the file as a whole could not be read
        self._write(records, task)
        write_whole(self._mark, b"")

    def close(self) -> None:
        """Close the records."""
        if self.ledger is not None:
            self.ledger.close()
            self.ledger = None

    def _write(self, records: dict[str, dict[str, Any]], task: str) -> None:
        copied = self.format == "webdataset" or (self.format == "parquet" and is_table(self.source))
        if copied and not any(self.keys.values()):
            return  # of the file as a whole nothing can be read
        if self.format == "jsonl":
            write_jsonl(records, self.final)
        elif self.format == "parquet":
            write_parquet(records, self.source, self.keys.values(), self.final)
        else:
            write_tar(records, self.source, {"caption": "caption.txt"}.get(task, "answer.txt"), self.final)

    def _key(self, name: str) -> str:
        """Return the key of a record, even if it is from a run over more of the file."""
        if name in self.keys:
            return self.keys[name]
        member = name.partition("/")[2]
        found = None if is_table(self.source) else key_and_extension(member)
        return member if found is None else found[0]

    @property
    def _mark(self) -> Path:
        return self._beside(f"{ENDINGS[self.format]}.done")

    @property
    def _origin(self) -> Path:
        return self._beside(".source")

    def _beside(self, ending: str) -> Path:
        return self.folder / ".sira" / (self.stem + ending)
