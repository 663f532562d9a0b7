"""Where a run's results go: stdout, a file of records, text files beside the pictures, tables."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

from sira_cli.cli.options import OutputOptions
from sira_cli.errors import SettingsError
from sira_cli.files import make_folder, relative, replacing
from sira_cli.methods.base import Method
from sira_cli.models.presets import Preset
from sira_cli.models.records import Result, as_text
from sira_cli.pictures.sources import Source
from sira_cli.pictures.stores import is_uri, public
from sira_cli.runs.ledger import Ledger, configuration_of
from sira_cli.runs.sidecars import Sidecars
from sira_cli.runs.tables import check_format, write_table

FORMATS = (".jsonl", ".csv", ".parquet")


class Targets:
    """The files that a run writes, checked and locked.

    Attributes:
        ledger: the file of records, if there is one.
        sidecars: the text files, if there are to be some.
    """

    def __init__(self, task: str, sources: list[Source], output: OutputOptions) -> None:
        """Check and open. An --output without an ending is a folder, made if need be; `task` names the file in it.

        Raises:
            SettingsError: an option that cannot be followed, a file in use, or one that is not of sira.
            SiraError: the file of records cannot be opened.
        """
        self._output = output
        self.ledger: Ledger | None = None
        self.sidecars: Sidecars | None = None
        self._table: Path | None = None
        if output.sidecar or output.output_dir is not None:
            self.sidecars = Sidecars(
                sources,
                extension=output.caption_extension,
                output_dir=output.output_dir,
                overwrite=output.overwrite,
            )
        if output.output is None:
            return
        path = output.output
        if path.is_dir() or not path.suffix:
            make_folder(path)
            path /= "captions.jsonl" if task == "caption" else "answers.jsonl"
        if path.suffix.lower() not in FORMATS:
            raise SettingsError(f"--output {path}: expected a name that ends in {', '.join(FORMATS)}")
        if path.suffix.lower() != ".jsonl":
            check_format(path)
            self._table, path = path, path.with_suffix(".jsonl")
        if not path.parent.is_dir():
            raise SettingsError(f"--output {path}: the folder {path.parent} does not exist: make it first")
        self.ledger = Ledger(path, overwrite=output.overwrite)
        self._folder = path.parent.resolve()

    @property
    def to_stdout(self) -> bool:
        """Whether texts go to stdout, because they go nowhere else."""
        return self.ledger is None and self.sidecars is None

    @property
    def report(self) -> Path | None:
        """The file beside the records that says how they were made."""
        return self.ledger.path.with_suffix(".run.json") if self.ledger else None

    def name(self, source: Source) -> str:
        """A picture's name in its record: its path, relative to the file of records."""
        if is_uri(source.path):
            return public(source.path)
        if self.ledger is None:
            return as_text(source.path)
        folder, file = os.path.split(source.path)
        return as_text(Path(self._relative(folder), file).as_posix())

    @functools.cache  # noqa: B019 (one object a run; pictures share few folders)
    def _relative(self, folder: str) -> str:
        return relative(Path(folder), self._folder)

    def check(self, settings: dict[str, Any]) -> None:
        """Before the model is loaded: whether the records that are there were made with the same settings.

        Raises:
            SettingsError: they were not; the message says what differs.
        """
        if self.ledger is None or not len(self.ledger) or self.report is None:
            return
        try:
            there = json.loads(self.report.read_text(encoding="utf-8"))["settings"]
        except (OSError, ValueError, KeyError, TypeError):
            return  # the records themselves still say most of it
        self.ledger.check(_flat(settings), _flat(there))

    def done(self, name: str) -> str:
        """The key of what an earlier run did about a picture and is not to be done again."""
        if self.ledger is None or (self._output.retry_errors and self.ledger.is_error(name)):
            return ""
        return self.ledger.key(name)

    def failed_before(self, name: str) -> bool:
        """Of a skipped picture: whether it is in the file as failed."""
        return self.ledger is not None and self.ledger.is_error(name)

    def keeps(self, source: Source) -> bool:
        """Whether a picture's text file is all that is asked for, and there already."""
        return self.ledger is None and self.sidecars is not None and self.sidecars.keeps(source)

    def begin(self, like: Result | None) -> None:
        """Make ready to write results like this one.

        Raises:
            SettingsError: the records that are there have another configuration.
        """
        if self.ledger is not None:
            if like is not None:
                self.ledger.check(configuration_of(like))
            self.ledger.begin()

    def write(self, source: Source, name: str, result: Result | None) -> None:
        """Keep a result; with None, that of an earlier run, whose text file may be missing.

        Raises:
            SiraError: it cannot be written.
        """
        if self.ledger is not None and result is not None:
            self.ledger.append(result.to_record())
        if self.sidecars is None:
            return
        if result is not None and result.status == "ok":
            self.sidecars.write(source, result.text)
        elif result is None and self.ledger is not None and not self.ledger.is_error(name):
            self.sidecars.complete(source, functools.partial(self.ledger.text, name))

    def finish(self, sources: list[Source]) -> None:
        """Put the records in order, and write the table.

        Raises:
            SiraError: it cannot be written.
        """
        if self.ledger is None:
            return
        self.ledger.finish(self.name(source) for source in sources)
        if self._table is not None:
            write_table(self.ledger.records(), self._table)

    def write_report(self, report: dict[str, Any]) -> None:
        """Write the file that says how the records were made.

        Raises:
            SiraError: it cannot be written.
        """
        if self.report is None:
            return
        with replacing(self.report) as file:
            file.write(json.dumps(report, indent=2, ensure_ascii=False).encode() + b"\n")

    def close(self) -> None:
        """Let go of the files."""
        if self.ledger is not None:
            self.ledger.close()


def settings_of(task: str, prompt: str, preset: Preset, method: Method, quantization: str | None) -> dict[str, Any]:
    """Everything that decides the texts of a run, as its report holds it."""
    return {
        "task": task,
        "prompt": prompt,
        "method": method.name,
        "quantization": quantization,
        "preset": preset.name,
        **method.decisive(preset),
    }


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
