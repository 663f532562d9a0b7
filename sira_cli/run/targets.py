"""The destinations of a run's results: a store of records, and other outputs next to it, or none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from sira_cli.errors import SettingsError
from sira_cli.files import check_unprotected, make_folder, replacing
from sira_cli.pictures.picture import Picture
from sira_cli.run.ledger import Ledger
from sira_cli.run.records import Result
from sira_cli.run.run_record import FACTS, read_report
from sira_cli.run.sidecars import Sidecars
from sira_cli.run.store import RecordFile

NAMES = {"caption": "captions.jsonl", "ask": "answers.jsonl", "check": "checks.jsonl"}  # of files, by task
# An `ImageFolder` of Hugging Face's `datasets` opens every picture that its metadata names.
METADATA, METADATA_FAILURES = "metadata.jsonl", "metadata.errors.jsonl"


class Targets:
    """The files that a run writes, checked and locked until `close`.

    Attributes:
        store: the records; None: they are not kept.
    """

    def __init__(
        self,
        store: RecordFile | None = None,
        sidecars: Sidecars | None = None,
        *,
        task: str = "caption",
        retry_errors: bool = False,
    ) -> None:
        """Combine records and text files; see `targets_for`."""
        self.store, self._sidecars, self._task, self._retry_errors = store, sidecars, task, retry_errors

    def close(self) -> None:
        """Release the files."""
        if self.store is not None:
            self.store.close()

    @property
    def output(self) -> Path | None:
        """The file of records; None: they are not kept."""
        return None if self.store is None else self.store.path

    @property
    def any(self) -> bool:
        """Whether there are any outputs; otherwise results only go to the caller."""
        return self.store is not None or self._sidecars is not None

    def remarks(self) -> list[str]:
        """Return the remarks on the text files for the summary of a run."""
        if self._sidecars is None:
            return []
        joined, apart, found = self._sidecars.joined, self._sidecars.apart, []
        if joined:
            number = f"{joined} text of several lines is" if joined == 1 else f"{joined} texts of several lines are"
            found.append(f"{number} one line (setting `text.lines`: keep)")
        if apart:
            number = "1 text file is" if len(apart) == 1 else f"{len(apart)} text files are"
            found.append(f"{number} named like {next(iter(apart.values())).name}, next to another picture's")
        return found

    @property
    def _report(self) -> Path | None:
        return None if self.store is None else self.store.report

    @property
    def revision_before(self) -> str:
        """The revision of the model that made the records; empty without records."""
        return "" if self.store is None else self.store.revision

    def report_before(self) -> dict[str, Any]:
        """Return the report of the earlier run that this one continues; empty without one."""
        return {} if self.store is None or not len(self.store.ledger) else read_report(self._report)

    def facts_before(self) -> dict[str, Any]:
        """Return the facts of an earlier run's report about the model, the device and the memory."""
        before = self.report_before()
        return {name: before[name] for name in FACTS if name in before}

    def name(self, picture: Picture) -> str:
        """Return a picture's public name in its record."""
        return picture.name_in(None) if self.store is None else self.store.name(picture)

    def check(self, settings: dict[str, Any]) -> None:
        """Check, before the model is loaded, that existing records were made with the same settings."""
        if self.store is not None:
            self.store.check(settings)

    def done(self, name: str) -> str:
        """Return the key of an earlier run's result about a picture, if it is kept."""
        if self.store is None or (self._retry_errors and self.store.is_error(name)):
            return ""
        return self.store.key(name)

    def failed_before(self, name: str) -> bool:
        """Return whether a skipped picture is known as failed."""
        return self.store is not None and self.store.is_error(name)

    def record_before(self, picture: Picture, name: str) -> dict[str, Any]:
        """Return the record of a picture that an earlier run has done.

        If the text is only in a text file, the other fields are empty.
        """
        if self.store is not None:
            return self.store.record(name)
        unknown: dict[str, Any] = {
            each.name: {"str": "", "int": 0, "float": 0.0}[str(each.type)]
            for each in fields(Result)
            if str(each.type) in ("str", "int", "float")
        }
        text = "" if self._sidecars is None else self._sidecars.text(picture)
        known = {"schema": f"sira.{self._task}/1", "file_name": name, "text": text}
        return Result(**unknown | known, status="ok", finish_reason="stop").to_record()

    def keeps(self, picture: Picture) -> bool:
        """Return whether only the text file of a picture is wanted, and exists already."""
        return self.store is None and self._sidecars is not None and self._sidecars.keeps(picture)

    def begin(self, like: Result | None) -> None:
        """Get ready to write results like this one."""
        if self.store is not None:
            self.store.begin(like)

    def write(self, picture: Picture, result: Result) -> None:
        """Keep a result."""
        if self.store is not None:
            self.store.append(picture, result)
        if self._sidecars is not None and result.status == "ok":
            self._sidecars.write(picture, result.text)

    def complete(self, picture: Picture, name: str) -> None:
        """Write the missing text file of a picture that an earlier run has done."""
        if self.store is None or self._sidecars is None or self.store.is_error(name):
            return
        record = self.store.record
        self._sidecars.complete(picture, lambda: str(record(name)["text"]))

    def finish(self, pictures: Sequence[Picture]) -> None:
        """Put the records in order."""
        if self.store is not None:
            self.store.finish(pictures)

    def write_report(self, report: dict[str, Any]) -> None:
        """Write the report on how the records were made."""
        if self._report is not None:
            with replacing(self._report) as file:
                file.write(json.dumps(report, indent=2, ensure_ascii=False).encode() + b"\n")


def targets_for(
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
    of_method: str = "",
    keep_lines: bool = False,
) -> Targets:
    """Check and open the files of a run."""
    sidecars = None
    if sidecar or output_dir is not None:
        extension = f".{of_method}" * bool(of_method) + f".{caption_extension.removeprefix('.')}"
        places: dict[str, Any] = {"output_dir": output_dir, "overwrite": overwrite, "keep_lines": keep_lines}
        sidecars = Sidecars(pictures, extension=extension, **places)
    asked = any(picture.id for picture in pictures[:1])
    if output is None:
        return Targets(None, sidecars, task=task, retry_errors=retry_errors)
    if output.is_dir() or not (output.suffix or output.exists()):
        make_folder(output)
        output /= NAMES[task]
    if of_method:
        output = output.with_stem(f"{output.stem}-{of_method}")
    if output.suffix.lower() != ".jsonl":
        raise SettingsError(f"`output=` {output}: expected a name that ends in .jsonl, or a folder")
    if not output.parent.is_dir():
        raise SettingsError(f"`output=` {output}: the folder {output.parent} does not exist: make it first")
    failures = output.with_name(METADATA_FAILURES) if output.name == METADATA else None
    for beside in (output.with_suffix(".run.json"), failures):
        if beside is not None:
            check_unprotected(beside)
    by = "id" if asked else "file_name"
    ledger = Ledger(output, overwrite=overwrite, by=by, same_prompt=same_prompt, failures=failures)
    return Targets(RecordFile(ledger), sidecars, task=task, retry_errors=retry_errors)
