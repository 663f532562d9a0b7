"""The files of a run over a data set, one output per input: records while it runs, the final form at its end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from sira_cli.data.records.ledger import Ledger
from sira_cli.data.records.record import Result
from sira_cli.data.records.tables import check_format
from sira_cli.errors import SettingsError
from sira_cli.files import make_folder
from sira_cli.pictures.containers import ContainedPicture
from sira_cli.pictures.names import as_text, from_text
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.tables import is_table
from sira_cli.runs.run_record import read_report
from sira_cli.runs.shard_output import ENDINGS, ShardOutput
from sira_cli.runs.sinks import Sink
from sira_cli.runs.store import Store

_OPEN = 32  # files of records that are open without having been written to


class ShardStore(Store):
    """The files that a run over a data set writes into a folder, one per file of the data set."""

    def __init__(
        self,
        pictures: Sequence[Picture],
        output: Path,
        output_format: str,
        *,
        task: str,
        overwrite: bool,
        same_prompt: bool,
    ) -> None:
        """Check the outputs. The files of records are opened when their turn comes.

        Args:
            pictures: all of the run, of data sets only.
            output: the folder, made if need be.
            output_format: `jsonl`, `parquet` or `webdataset`.
            task, overwrite, same_prompt: as for `targets_for`.

        Raises:
            SettingsError: a setting cannot be followed, or two files of the data set have the same name.
            SiraError: the folder cannot be made.
        """
        if output_format not in ENDINGS:
            raise SettingsError(
                f"`output_format=` {output_format}: for a data set in a folder, expected {', '.join(ENDINGS)}"
            )
        self.path, self._format, self._task = output, output_format, task
        self.report = output / ".sira" / f"{task}.run.json"
        self._overwrite, self._same_prompt = overwrite, same_prompt
        self._lock = threading.RLock()  # reading threads call `key`
        self._like: Result | None = None
        self._shards: dict[str, ShardOutput] = {}  # by the file's name
        stems: dict[str, str] = {}
        for picture in pictures:
            if not isinstance(picture, ContainedPicture):
                raise SettingsError(
                    f"`output=` {output}: {picture.shown} is not in a data set: caption pictures and data sets "
                    "in two runs, or give a file"
                )
            name = picture.container_name
            if name not in self._shards or self._shards[name].source != picture.container:
                stem = PurePath(from_text(name)).stem
                if stems.setdefault(stem, picture.container) != picture.container:
                    raise SettingsError(
                        f"`output=` {output}: {stems[stem]} and {picture.container} would both be {stem}: "
                        "caption them in two runs, with two folders"
                    )
                if self._format == "webdataset" and is_table(name):
                    raise SettingsError(f"`output_format=` webdataset: {name} is a table, expected .tar files")
                self._shards[name] = ShardOutput(output, self._format, picture.container, stem)
            shard = self._shards[name]
            shard.keys[self.name(picture)] = picture.member_key
            shard.left += 1
        for shard in self._shards.values():
            shard.check(overwrite=overwrite)
        check_format(Path("x" + ENDINGS[self._format]))
        make_folder(output / ".sira")

    def close(self) -> None:
        """Release the files."""
        for shard in self._shards.values():
            shard.close()

    @property
    def revision(self) -> str:
        """The revision in the earlier run's report."""
        model = read_report(self.report).get("model")
        return str(model.get("revision", "")) if isinstance(model, dict) else ""

    def name(self, picture: Picture) -> str:
        """Return the name of the picture's file, without the folder, and its own."""
        assert isinstance(picture, ContainedPicture)
        return f"{picture.container_name}/{as_text(picture.member)}" if picture.member else picture.container_name

    def check(self, settings: dict[str, Any]) -> None:
        """Check existing records, unless they are replaced."""
        if not self._overwrite:
            super().check(settings)

    def key(self, name: str) -> str:
        """Return the key of a picture's record."""
        with self._lock:
            return self._ledger(name).key(name)

    def is_error(self, name: str) -> bool:
        """Return whether a picture's record is a failure."""
        with self._lock:
            return self._ledger(name).is_error(name)

    def record(self, name: str) -> dict[str, Any]:
        """Return a picture's newest record."""
        with self._lock:
            return self._ledger(name).record(name)

    def begin(self, like: Result | None) -> None:
        """Note the configuration; each file is checked when its turn comes."""
        self._like = like

    def append(self, picture: Picture, result: Result) -> None:
        """Add a line to the records of the picture's file."""
        name = self.name(picture)
        with self._lock:
            shard, ledger = self._shard(name), self._ledger(name)
            if not shard.written:
                ledger.check((self._like or result).configuration())
                shard.outdate()
                ledger.begin()
                shard.written = True
            ledger.append(result.to_record())

    def settled(self, picture: Picture) -> None:
        """Write the output of a file of the data set after its last picture."""
        with self._lock:
            shard = self._shard(self.name(picture))
            shard.left -= 1
            if shard.left:
                return
            if shard.written or not shard.is_complete:
                ledger = self._ledger(next(iter(shard.keys)))
                if not shard.written:
                    shard.outdate()
                    ledger.begin()
                ledger.finish(shard.keys, repeated=True)
                shard.write(ledger, self._task)
            shard.written = False
            shard.close()

    def finish(self, pictures: Sequence[Picture], sinks: Sequence[Sink]) -> None:
        """Do nothing: each file was written when its last picture was done."""

    def _shard(self, name: str) -> ShardOutput:
        return self._shards[name.partition("/")[0]]

    def _ledger(self, name: str) -> Ledger:
        """Return the open file of records that a picture's record belongs to."""
        shard = self._shard(name)
        if shard.ledger is None:
            idle = [other for other in self._shards.values() if other.ledger is not None and not other.written]
            for other in idle[:-_OPEN]:
                other.close()
            fresh = self._overwrite and shard.left > 0
            shard.ledger = Ledger(shard.records, overwrite=fresh, same_prompt=self._same_prompt)
        return shard.ledger
