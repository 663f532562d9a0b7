"""Where a run's results go: a file of records, text files next to the pictures, tables; or nowhere."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sira_cli.errors import SettingsError
from sira_cli.files import make_folder, replacing
from sira_cli.methods.base import Method
from sira_cli.models.preset import ONLY_IF_SET, Preset
from sira_cli.models.records import Result
from sira_cli.pictures.containers import ContainedPicture
from sira_cli.pictures.picture import Picture
from sira_cli.runs.ledger import Ledger
from sira_cli.runs.questions import write_llava
from sira_cli.runs.run_record import FACTS
from sira_cli.runs.sidecars import Sidecars
from sira_cli.runs.tables import check_format, write_table

FORMATS = (".jsonl", ".csv", ".parquet")
NAMES = {"caption": "captions.jsonl", "ask": "answers.jsonl", "check": "checks.jsonl"}  # of files, by task
# An `ImageFolder` of Hugging Face's `datasets` opens every picture that its metadata names.
METADATA, METADATA_FAILURES = "metadata.jsonl", "metadata.errors.jsonl"


class Targets:
    """The files that a run writes, checked and locked. A context manager: at its end they are released.

    Attributes:
        ledger: the file of records, if there is one.
        sidecars: the text files, if there are to be some.
    """

    def __init__(
        self,
        pictures: Sequence[Picture],
        *,
        task: str = "caption",
        output: Path | None = None,
        sidecar: bool = False,
        caption_extension: str = ".txt",
        output_dir: Path | None = None,
        overwrite: bool = False,
        retry_errors: bool = False,
        same_prompt: bool = True,
        output_format: str | None = None,
    ) -> None:
        """Check and open the files.

        Args:
            pictures: all of the run.
            task: `caption`, `ask` or `check`; names the file of records where `output` is a folder.
            output: records (.jsonl), or a table (.csv, .parquet) made from records next to it. Without an
                ending it is a folder, made if need be.
            sidecar: write a text file next to each picture.
            caption_extension: of the text files.
            output_dir: a tree for the text files, instead of next to the pictures.
            overwrite: start again; replace text files.
            retry_errors: try again the pictures that failed in an earlier run.
            same_prompt: whether all pictures have the same prompt.
            output_format: `llava` writes answers to questions as LLaVA's scripts read them, from records next to them.

        Raises:
            SettingsError: a setting cannot be followed, or a file is in use.
            DataError: a file of records is not one of sira's.
            SiraError: the file of records cannot be opened.
        """
        self._task, self._retry_errors = task, retry_errors
        self.ledger: Ledger | None = None
        self.sidecars: Sidecars | None = None
        self._table: Path | None = None
        self._folder: Path | None = None
        if sidecar or output_dir is not None:
            self.sidecars = Sidecars(pictures, extension=caption_extension, output_dir=output_dir, overwrite=overwrite)
        asked = any(picture.id for picture in pictures[:1])
        self._llava = output_format == "llava"
        if self._llava and not (asked and output is not None and output.suffix.lower() == ".jsonl"):
            raise SettingsError("`output_format=` llava: expected `questions=`, and `output=` that ends in .jsonl")
        if output is None:
            return
        if output.is_dir() or not output.suffix:
            make_folder(output)
            output /= NAMES[task]
        if output.suffix.lower() not in FORMATS:
            raise SettingsError(f"`output=` {output}: expected a name that ends in {', '.join(FORMATS)}")
        if self._llava:
            self._table, output = output, output.with_suffix(".records.jsonl")
        elif output.suffix.lower() != ".jsonl":
            check_format(output)
            self._table, output = output, output.with_suffix(".jsonl")
        if self._table is not None:
            _check_replaceable(self._table, pictures, may_exist=overwrite or output.exists())
        if not output.parent.is_dir():
            raise SettingsError(f"`output=` {output}: the folder {output.parent} does not exist: make it first")
        failures = output.with_name(METADATA_FAILURES) if output.name == METADATA else None
        self.ledger = Ledger(
            output, overwrite=overwrite, by="id" if asked else "file_name", same_prompt=same_prompt, failures=failures
        )
        self._folder = output.parent.resolve()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.ledger is not None:
            self.ledger.close()

    @property
    def any(self) -> bool:
        """Whether there are any: otherwise results only go to the caller."""
        return self.ledger is not None or self.sidecars is not None

    @property
    def report(self) -> Path | None:
        """The run report, next to the records: how they were made."""
        return None if self.ledger is None else self.ledger.path.with_suffix(".run.json")

    @property
    def output(self) -> Path | None:
        """The file that was asked for: the table, or the file of records."""
        return self._table or (None if self.ledger is None else self.ledger.path)

    @property
    def revision_before(self) -> str:
        """The revision of the model that made the records; empty without records."""
        return "" if self.ledger is None else str(self.ledger.configuration.get("revision", ""))

    def facts_before(self) -> dict[str, Any]:
        """Return the facts of an earlier run's report about the model, the device and the memory."""
        before = self._report_before()
        return {name: before[name] for name in FACTS if name in before}

    def _report_before(self) -> dict[str, Any]:
        try:
            report = json.loads(self.report.read_text(encoding="utf-8")) if self.report is not None else None
        except (OSError, ValueError):
            report = None
        return report if isinstance(report, dict) else {}

    def name(self, picture: Picture) -> str:
        """Return a picture's name in its record: its path, relative to the file of records."""
        return picture.name_in(self._folder)

    def check(self, settings: dict[str, Any]) -> None:
        """Check, before the model is loaded, that existing records were made with the same settings.

        Args:
            settings: from `settings_of`.

        Raises:
            SettingsError: they were not; the message names the differences.
        """
        if self.ledger is None or not len(self.ledger):
            return
        there = self._report_before().get("settings")
        if isinstance(there, dict):  # otherwise the records themselves hold most of it
            off = dict.fromkeys(ONLY_IF_SET)
            self.ledger.check(off | flat(settings), off | flat(there))

    def done(self, name: str) -> str:
        """Return the key of an earlier run's result about a picture, if it is kept."""
        if self.ledger is None or (self._retry_errors and self.ledger.is_error(name)):
            return ""
        return self.ledger.key(name)

    def failed_before(self, name: str) -> bool:
        """Return whether a skipped picture is in the file as failed."""
        return self.ledger is not None and self.ledger.is_error(name)

    def record_before(self, picture: Picture, name: str) -> dict[str, Any]:
        """Return the record of a picture that an earlier run has done.

        If the text is only in a text file, the other fields are empty.
        """
        if self.ledger is not None:
            return self.ledger.record(name)
        assert self.sidecars is not None
        unknown: dict[str, Any] = {
            each.name: {"str": "", "int": 0, "float": 0.0}[str(each.type)]
            for each in fields(Result)
            if str(each.type) in ("str", "int", "float")
        }
        known = {"schema": f"sira.{self._task}/1", "file_name": name, "text": self.sidecars.text(picture)}
        return Result(**unknown | known, status="ok", finish_reason="stop").to_record()

    def keeps(self, picture: Picture) -> bool:
        """Return whether only a picture's text file is asked for, and exists already."""
        return self.ledger is None and self.sidecars is not None and self.sidecars.keeps(picture)

    def begin(self, like: Result | None) -> None:
        """Get ready to write results like this one.

        Raises:
            SettingsError: existing records have another configuration.
        """
        if self.ledger is not None:
            if like is not None:
                self.ledger.check(like.configuration())
            self.ledger.begin()

    def write(self, picture: Picture, result: Result) -> None:
        """Keep a result.

        Raises:
            SiraError: the file cannot be written.
        """
        if self.ledger is not None:
            record = result.to_record()
            self.ledger.append({"schema": record["schema"], "id": picture.id, **record} if picture.id else record)
        if self.sidecars is not None and result.status == "ok":
            self.sidecars.write(picture, result.text)

    def complete(self, picture: Picture, name: str) -> None:
        """Write the text file of a picture that an earlier run has done, if it is missing.

        Raises:
            SiraError: the file cannot be written.
        """
        if self.sidecars is not None and self.ledger is not None and not self.ledger.is_error(name):
            self.sidecars.complete(picture, functools.partial(self.ledger.text, name))

    def finish(self, pictures: Sequence[Picture]) -> None:
        """Put the records in order, and write the table.

        Raises:
            SiraError: the file cannot be written.
        """
        if self.ledger is None:
            return
        self.ledger.finish((picture.id or self.name(picture) for picture in pictures), repeated=True)
        if self._llava and self._table is not None:
            write_llava(pictures, self.ledger.record, self._table)
        elif self._table is not None:
            write_table(self.ledger.lines(), self._table, self.ledger.columns)

    def write_report(self, report: dict[str, Any]) -> None:
        """Write the file that says how the records were made.

        Raises:
            SiraError: the file cannot be written.
        """
        if self.report is None:
            return
        with replacing(self.report) as file:
            file.write(json.dumps(report, indent=2, ensure_ascii=False).encode() + b"\n")


def _check_replaceable(table: Path, pictures: Sequence[Picture], *, may_exist: bool) -> None:
    """Check that a table, which is rewritten, replaces neither an input of the run nor a file of others.

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


def settings_of(task: str, prompt: str, preset: Preset, method: Method, quantization: str | None) -> dict[str, Any]:
    """Return all settings that decide the texts of a run, as in its report."""
    return {
        "task": task,
        "prompt": prompt,
        "method": method.name,
        "quantization": quantization,
        "preset": preset.name,
        **method.decisive(preset.decisive(), task),
    }


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn `{"a": {"b": 1}}` into `{"a.b": 1}`."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found
