"""Where a run over a data set writes, one output per file: records on the way, the final form when all are there."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from pathlib import Path, PurePath
from types import TracebackType
from typing import Any

from sira_cli.errors import SettingsError
from sira_cli.files import make_folder
from sira_cli.models.preset import ONLY_IF_SET
from sira_cli.models.records import Result
from sira_cli.pictures.containers import ContainedPicture
from sira_cli.pictures.names import as_text, from_text
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.tables import is_table
from sira_cli.runs.continued_file import check_same
from sira_cli.runs.ledger import Ledger
from sira_cli.runs.shard_output import ENDINGS, ShardOutput
from sira_cli.runs.tables import check_format
from sira_cli.runs.targets import Targets, flat

_OPEN = 32  # files of records that are open without having been written to


class ShardTargets(Targets):
    """The files that a run over a data set writes into a folder, one per file of the data set."""

    def __init__(
        self,
        pictures: Sequence[Picture],
        output: Path,
        *,
        output_format: str | None = None,
        task: str = "caption",
        overwrite: bool = False,
        retry_errors: bool = False,
        same_prompt: bool = True,
        **texts: Any,
    ) -> None:
        """Check the outputs. The files of records are opened when their turn comes.

        Args:
            pictures: all of the run, of data sets only.
            output: the folder, made if need be.
            output_format: `jsonl` (also None), `parquet` or `webdataset`.
            task, overwrite, retry_errors, same_prompt: as for `Targets`.
            **texts: arguments of `Targets` for text files.

        Raises:
            SettingsError: a setting cannot be followed, or two files of the data set have the same name.
            SiraError: the folder cannot be made.
        """
        if output_format not in (None, *ENDINGS):
            raise SettingsError(
                f"`output_format=` {output_format}: for a data set in a folder, expected {', '.join(ENDINGS)}"
            )
        super().__init__(pictures, task=task, overwrite=overwrite, retry_errors=retry_errors, **texts)
        self._out, self._format = output, output_format or "jsonl"
        self._overwrite, self._same_prompt = overwrite, same_prompt
        self._lock = threading.RLock()  # reading threads call `done`
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
                self._shards[name] = ShardOutput(self._out, self._format, picture.container, stem)
            shard = self._shards[name]
            shard.keys[self.name(picture)] = picture.member_key
            shard.left += 1
        for shard in self._shards.values():
            shard.check(overwrite=overwrite)
        check_format(Path("x" + ENDINGS[self._format]))
        make_folder(self._out / ".sira")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for shard in self._shards.values():
            shard.close()

    @property
    def any(self) -> bool:
        """Whether anything is written: yes."""
        return True

    @property
    def report(self) -> Path:
        """The run report: how the records were made."""
        return self._out / ".sira" / f"{self._task}.run.json"

    @property
    def output(self) -> Path:
        """The folder."""
        return self._out

    @property
    def revision_before(self) -> str:
        """The revision of the model that made the records; empty without records."""
        model = self._report_before().get("model")
        return str(model.get("revision", "")) if isinstance(model, dict) else ""

    def name(self, picture: Picture) -> str:
        """Return a picture's name in its record: that of its file, without the folder, and its own."""
        assert isinstance(picture, ContainedPicture)
        return f"{picture.container_name}/{as_text(picture.member)}" if picture.member else picture.container_name

    def check(self, settings: dict[str, Any]) -> None:
        """Check that existing records were made with the same settings, as `Targets.check`."""
        there = self._report_before().get("settings")
        if isinstance(there, dict) and not self._overwrite:
            off = dict.fromkeys(ONLY_IF_SET)
            check_same(self._out, off | flat(settings), off | flat(there))

    def done(self, name: str) -> str:
        """Return the key of an earlier run's result about a picture, if it is kept."""
        with self._lock:
            ledger = self._ledger(name)
            return "" if self._retry_errors and ledger.is_error(name) else ledger.key(name)

    def failed_before(self, name: str) -> bool:
        """Return whether a skipped picture is known as failed."""
        with self._lock:
            return self._ledger(name).is_error(name)

    def record_before(self, picture: Picture, name: str) -> dict[str, Any]:
        """Return the record of a picture that an earlier run has done."""
        with self._lock:
            return self._ledger(name).record(name)

    def keeps(self, picture: Picture) -> bool:
        """Return whether only a text file is asked for: no."""
        return False

    def begin(self, like: Result | None) -> None:
        """Get ready to write results like this one."""
        self._like = like

    def write(self, picture: Picture, result: Result) -> None:
        """Keep a result; with the last one of a file of the data set, write that file's output.

        Raises:
            SettingsError: existing records have another configuration.
            SiraError: the file cannot be written.
        """
        name = self.name(picture)
        with self._lock:
            shard, ledger = self._shard(name), self._ledger(name)
            if not shard.written:
                ledger.check((self._like or result).configuration())
                shard.outdate()
                ledger.begin()
                shard.written = True
            ledger.append(result.to_record())
            if self.sidecars is not None and result.status == "ok":
                self.sidecars.write(picture, result.text)
            self._count(shard)

    def complete(self, picture: Picture, name: str) -> None:
        """Write the missing outputs of a picture that an earlier run has done.

        Raises:
            SiraError: the file cannot be written.
        """
        with self._lock:
            ledger = self._ledger(name)
            if self.sidecars is not None and not ledger.is_error(name):
                self.sidecars.complete(picture, functools.partial(ledger.text, name))
            self._count(self._shard(name))

    def finish(self, pictures: Sequence[Picture]) -> None:
        """Do nothing: each file was written when its last picture was done."""

    def _count(self, shard: ShardOutput) -> None:
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


def targets_for(
    pictures: Sequence[Picture], *, output: Path | None = None, output_format: str | None = None, **options: Any
) -> Targets:
    """Return the targets of results: in a folder, one output per file of a data set, else `Targets`.

    Args:
        pictures: all of the run.
        output, output_format, **options: as for `Targets` and `ShardTargets`.

    Raises:
        SettingsError, DataError, SiraError: as these.
    """
    if is_split(pictures, output, output_format):
        assert output is not None
        return ShardTargets(pictures, output, output_format=output_format, **options)
    if output_format in ENDINGS:
        raise SettingsError(
            f"`output_format=` {output_format}: expected .tar, .parquet or .arrow files in, and a folder as `output=`"
        )
    return Targets(pictures, output=output, output_format=output_format, **options)


def is_split(pictures: Sequence[Picture], output: Path | None, output_format: str | None = None) -> bool:
    """Return whether each file of a data set has an output of its own.

    In a run without pictures, as no file falls to its part, the format alone decides.
    """
    if output is None or (output.suffix and not output.is_dir()):
        return False
    if not pictures:
        return output_format in ENDINGS
    return any(isinstance(picture, ContainedPicture) for picture in pictures)
