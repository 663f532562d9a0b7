"""What a run writes: a file of records with a report next to it, text files, or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sira_cli.errors import ModelNotFoundError, SettingsError
from sira_cli.files import check_folder, check_unprotected, make_folder, replacing, reserved, text_in, too_long
from sira_cli.models.hub import find_checkpoint
from sira_cli.pictures.names import one_line
from sira_cli.pictures.neighbours import Neighbours
from sira_cli.pictures.opening import endings
from sira_cli.pictures.picture import Cache, File, Picture
from sira_cli.run.events import PictureEvent, Skipped
from sira_cli.run.ledger import Ledger, check_same
from sira_cli.run.records import Result, flat
from sira_cli.run.runner import READ, READERS, ahead
from sira_cli.run.sink import Sink
from sira_cli.run.task import PictureTask

NAMES = {"caption": "captions.jsonl", "ask": "answers.jsonl", "check": "checks.jsonl"}  # of files, by task
# An `ImageFolder` of Hugging Face's `datasets` opens every picture that its metadata names.
METADATA = "metadata.jsonl"
_RECORDS = "write records with `output=`"


@dataclass(frozen=True)
class Files:
    """The files that a run is to write, as its caller names them."""

    output: str | Path | None = None  # the file of records, or a folder for it
    sidecar: bool = False  # write a text file next to each picture
    caption_extension: str = ".txt"  # of these files
    output_dir: str | Path | None = None  # write the text files into this folder
    overwrite: bool = False  # replace what an earlier run wrote
    retry_errors: bool = False  # try pictures again that failed in an earlier run
    method: str = ""  # part of the names, if a run has several methods

    @property
    def any(self) -> bool:
        """Whether results go into files; otherwise only to the caller."""
        return self.output is not None or self.sidecar or self.output_dir is not None

    def records(self, kind: str) -> Path:
        """Return the file of records of a kind of task."""
        path = Path(str(self.output))
        if path.is_dir() or not (path.suffix or path.exists()):
            make_folder(path)
            path /= NAMES[kind]
        if self.method:
            path = path.with_stem(f"{path.stem}-{self.method}")
        if path.suffix.lower() != ".jsonl":
            raise SettingsError(f"`output=` {path}: expected a name that ends in .jsonl, or a folder")
        make_folder(path.parent)
        return path


class Sidecars:
    """Captions as text files: `photo.txt` next to `photo.jpg`, or at the same place in another tree."""

    def __init__(
        self,
        pictures: Iterable[Picture],
        *,
        extension: str = ".txt",
        output_dir: Path | None = None,
        overwrite: bool = False,
        keep_lines: bool = False,
    ) -> None:
        """Choose every picture's text file."""
        extension = extension if extension.startswith(".") else f".{extension}"
        if len(extension) < 2 or "/" in extension or os.sep in extension or extension.lower() in endings():
            raise SettingsError(f"caption extension {extension!r}: expected one for text files, such as .txt")
        self._extension, self._output_dir, self._overwrite = extension, output_dir, overwrite
        self._keep_lines, self.joined = keep_lines, 0  # the second: texts of several lines that were written in one
        taken: dict[Path, Picture] = {}
        neighbours = Neighbours(endings())
        self.apart: dict[str, Path] = {}  # files of pictures that are named, but for the ending, like another one
        for picture in pictures:
            place, suffix = self.place(picture), Path(picture.relative).suffix
            replaces = place == Path(picture.location)
            shared = place in taken and suffix != Path(taken[place].relative).suffix  # IMG_1.heic and IMG_1.jpg
            if shared or (picture.is_here() and not neighbours.is_first(picture.location)):
                place = place.with_name(place.name.removesuffix(extension) + suffix + extension)
                self.apart[picture.identity] = place
            wrong, name = "", output_dir and reserved(picture.mirrored(extension))
            if replaces:
                wrong = ": its text would replace it: choose another extension"
            elif too_long(place):
                shorter = "choose a shorter `caption_extension=`"
                wrong = f": the name of its text file would be too long: rename it, {shorter}, or {_RECORDS}"
            elif name:
                wrong = f": its text file would be named {name}, which Windows does not allow: rename it, or {_RECORDS}"
            elif place in taken:
                file = f"described in {one_line(str(place))}: rename one, or {_RECORDS}"
                wrong = f" and {taken[place].label} would both be {file}"
            if wrong:
                raise SettingsError(picture.label + wrong)
            taken[place] = picture
        to_write = [place for place, picture in taken.items() if not self.keeps(picture)]
        for place in to_write:
            check_unprotected(place)
        for folder in {place.parent for place in to_write}:
            check_folder(folder, "write the text files elsewhere with `output_dir=`")

    def place(self, picture: Picture) -> Path:
        """Return the text file of a picture."""
        if (apart := self.apart.get(picture.identity)) is not None:
            return apart
        if self._output_dir is None:
            return picture.text_file(self._extension)
        return self._output_dir / picture.mirrored(self._extension)

    def keeps(self, picture: Picture) -> bool:
        """Return whether a picture's existing text file is kept; an empty one is not."""
        return not self._overwrite and self.is_there(picture)

    def text(self, picture: Picture) -> str:
        """Return the text in a picture's file."""
        place = self.place(picture)
        return text_in(place.read_bytes(), one_line(str(place))).strip()

    def is_there(self, picture: Picture) -> bool:
        """Return whether a picture's text file exists and is not empty."""
        try:
            return self.place(picture).stat().st_size > 0
        except OSError:
            return False

    def replace(self, picture: Picture, text: str) -> None:
        """Write a picture's text in the place of any other."""
        place = self.place(picture)
        make_folder(place.parent)
        if len(lines := text.splitlines()) > 1 and not self._keep_lines:
            text = " ".join(filter(None, map(str.strip, lines)))
            self.joined += 1
        with replacing(place) as file:
            file.write(f"{text}\n".encode())


class Output(Sink[Result]):
    """The files of a run, checked and locked until `close`; records of an earlier run are kept."""

    def __init__(self, task: PictureTask, pictures: Sequence[Picture], files: Files, *, report: bool = True) -> None:
        """Check and open the files, before the model is loaded; without `report` they are those of a benchmark."""
        path = None if files.output is None else files.records(task.kind)
        super().__init__(pictures, task.settings(), path.with_suffix(".run.json") if path and report else None)
        self._task, self._files = task, files
        self.any = files.any
        self.more: Mapping[str, Any] | None = None  # further fields of each record
        self._sidecars: Sidecars | None = None
        if files.sidecar or files.output_dir is not None:
            mark = f".{files.method}" if files.method else ""
            self._sidecars = Sidecars(
                pictures,
                extension=f"{mark}.{files.caption_extension.removeprefix('.')}",
                output_dir=None if files.output_dir is None else Path(files.output_dir),
                overwrite=files.overwrite,
                keep_lines=task.preset.text.lines == "keep",
            )
        self.ledger: Ledger | None = None  # without it, records are not kept
        self.path = path
        self._folder = None
        if path is None:
            return
        self._folder = path.parent.resolve()
        by = "id" if any(picture.id for picture in pictures[:1]) else "file_name"
        self.ledger = ledger = Ledger(path, files.overwrite, by, not task.fills, only_ok=path.name == METADATA)
        if not len(ledger):
            return
        self.read_report()
        settings = self._before.get("settings")
        if isinstance(settings, dict):  # most of which only the report knows
            try:
                check_same(path, flat(self._settings), flat(settings), whole=True)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Release the files."""
        if self.ledger is not None:
            self.ledger.close()

    def has_all(self, pictures: Sequence[Picture], revision: str | None = None, server: str = "") -> bool:
        """Return whether an earlier run has done these pictures, so that no model is needed.

        Pictures are read only if all of them are there by name. Without a revision and without local files of the
        model, the revision is that of the records.
        """
        if not (pictures and self.names_all(pictures)):
            return not pictures
        if revision is None:
            try:
                revision = find_checkpoint(self._task.preset, offline=True).revision
            except ModelNotFoundError:
                revision = "" if self.ledger is None else str(self.ledger.configuration.get("revision", ""))
        task = self._task.at(revision, server)
        cache = Cache[tuple[list[File], str]](READ)

        def is_done(picture: Picture) -> bool:
            name = self.name(picture)
            prompt = task.first_prompt(picture)
            sha256 = ""
            with suppress(Exception):  # an earlier run that has it as done has failed in the same way
                sha256 = picture.read_once(cache)[1]
                prompt = task.asked(picture)
            return self.done(picture.id or name) == task.key(name, sha256, prompt)

        with ThreadPoolExecutor(READERS, "sira-reader") as readers:
            return all(ahead(readers, is_done, pictures, 2 * READERS))

    def names_all(self, pictures: Iterable[Picture]) -> bool:
        """Return whether every picture has a record by its name, done or failed."""
        return all(self.done(picture.id or self.name(picture)) for picture in pictures)

    def name(self, picture: Picture) -> str:
        """Return a picture's public name in its record."""
        return picture.name_in(self._folder)

    def keeps(self, picture: Picture) -> bool:
        """Return whether only the text file of a picture is wanted, and exists already."""
        return self.ledger is None and self._sidecars is not None and self._sidecars.keeps(picture)

    def done(self, name: str) -> str:
        """Return the key of an earlier run's result about a picture, if it is kept; else nothing."""
        if self.ledger is None or (self._files.retry_errors and self.ledger.is_error(name)):
            return ""
        return self.ledger.key(name)

    def before(self, event: Skipped) -> dict[str, Any]:
        """Return the record of a picture that an earlier run has done; of a text file, most fields are empty."""
        if self.ledger is not None:
            return self.ledger.record(event.id)
        empty: dict[str, Any] = {"str": "", "int": 0, "float": 0.0}
        unknown = {each.name: empty[str(each.type)] for each in fields(Result) if str(each.type) in empty}
        text = "" if self._sidecars is None else self._sidecars.text(event.picture)
        known = {"schema": f"sira.{self._task.kind}/1", "file_name": event.name, "text": text}
        return Result(**unknown | known, status="ok", finish_reason="stop").to_record()

    def begin(self, like: Result | None) -> None:
        """Check, before anything is written, that results like this one belong in the files."""
        if self._begun:
            return
        if self.ledger is not None:
            if like is not None:
                self.ledger.check(like.configuration())
            self.ledger.begin()
        self._begun = True
        self.report("running")

    def write(self, event: PictureEvent[Result]) -> PictureEvent[Result]:
        """Keep a picture's result, or complete that of an earlier run, and count it."""
        if isinstance(event, Skipped):
            event = self._completed(event)
            self.counts.add(event)
            return event
        self.begin(event.record)
        if self.ledger is not None:
            self.ledger.append(self._line(event.picture, event.record))
        sidecars = self._sidecars
        if sidecars is not None and event.record.status == "ok" and not sidecars.keeps(event.picture):
            sidecars.replace(event.picture, event.record.text)
        self.counts.add(event, event.record.output_tokens)
        return event

    def _completed(self, event: Skipped) -> Skipped:
        """Return the event of a picture that an earlier run has done; write its text file, if it is wanted now."""
        self.begin(None)
        if self.ledger is None:
            return event
        event = replace(event, failed=self.ledger.is_error(event.id))
        sidecars = self._sidecars
        if sidecars is not None and not event.failed and not sidecars.is_there(event.picture):
            sidecars.replace(event.picture, str(self.ledger.record(event.id)["text"]))
        return event

    def _line(self, picture: Picture, result: Result) -> dict[str, Any]:
        """Return the record of a picture as its line in the file has it."""
        record = result.to_record()
        if self.more is not None:
            return {**record, "id": picture.id, **self.more}
        if picture.id:
            return {"schema": record["schema"], "id": picture.id, **record}
        return record

    def finish(self) -> None:
        """Put the records in the order of the pictures."""
        self.begin(None)
        if self.ledger is not None:
            self.ledger.finish(picture.id or self.name(picture) for picture in self._pictures)

    def remarks(self) -> list[str]:
        """Return the remarks on the text files for the summary of a run."""
        if self._sidecars is None:
            return []
        joined = self._sidecars.joined
        apart = list(self._sidecars.apart.values())
        remarks = []
        if joined:
            number = f"{joined} text of several lines is" if joined == 1 else f"{joined} texts of several lines are"
            remarks.append(f"{number} one line (setting `text.lines`: keep)")
        if apart:
            number = "1 text file is" if len(apart) == 1 else f"{len(apart)} text files are"
            remarks.append(f"{number} named like {apart[0].name}, next to another picture's")
        return remarks
