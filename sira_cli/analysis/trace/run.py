"""Traces of many pictures, and the files that keep them (docs/truth.md)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from sira_cli.analysis.trace.task import Line, Trace
from sira_cli.errors import DataError, SettingsError
from sira_cli.files import make_folder, replacing
from sira_cli.parsing import from_json
from sira_cli.pictures.find import Shard
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.records import is_failure, read_newest
from sira_cli.pictures.rows import text_of
from sira_cli.pictures.sources import recorded
from sira_cli.run.engines import Local
from sira_cli.run.events import Event, PictureEvent, Skipped
from sira_cli.run.ledger import ContinuedFile, check_same, open_locked
from sira_cli.run.output import Sidecars
from sira_cli.run.records import as_line
from sira_cli.run.run import run
from sira_cli.run.sink import Sink

if TYPE_CHECKING:
    from sira_cli.run.lvlm import Lvlm

Name = tuple[str, str, str | None]  # of a trace in a file: the picture's name, the prompt, the forced text

_BEGINNINGS = {kind: f'{{"type": "{kind}"'.encode() for kind in ("run", "token", "end")}


def read_texts(path: Path, shard: Shard | None = None, limit: int | None = None) -> list[Picture]:
    """Return the pictures of a file of records with the texts and prompts; failed records are left out.

    Args:
        path: the file.
        shard: only the pictures of this part.
        limit: only so many of them, the first ones.

    Raises:
        DataError: the file holds no texts.
        SettingsError: a text is empty.
    """
    pictures = []
    for where, record in read_newest(path):
        name, text = text_of(where, record, "file_name"), text_of(where, record, "text", "caption")
        prompt = text_of(where, {"prompt": "", **record}, "prompt")
        if not is_failure(record):
            if not text.strip():
                raise SettingsError(f"{where}: the text to force is empty")
            pictures.append(recorded(name, path.parent).known(prompt=prompt or None, caption=text))
    if not pictures:
        raise DataError(f"{path}: holds no texts")
    if shard is not None:
        pictures = [picture for picture in pictures if shard.holds(picture.relative)]
    return pictures[:limit]


class TraceOutput(Sink[list[Line]]):
    """Where traces go, locked until the end of a `with`: one file, a tree of files, or only the caller."""

    def __init__(
        self,
        task: Trace,
        pictures: Sequence[Picture],
        *,
        output: Path | None = None,
        output_dir: Path | None = None,
        overwrite: bool = False,
    ) -> None:
        """Check and open the files, before the model is loaded.

        Args:
            task: what is recorded.
            pictures: all that are traced; with captions, if the task is `forced`.
            output: one file for all traces (.jsonl), with a report of the run next to it; traces that it holds already
                are kept.
            output_dir: a tree with one file per picture; existing ones are kept.
            overwrite: replace existing files.

        Raises:
            SettingsError: the file is not one of such traces, or the only trace with all logits is there already.
        """
        if output is not None and output.suffix != ".jsonl":
            raise SettingsError(f"`output=` {output}: expected a name that ends in .jsonl")
        super().__init__(pictures, task.settings(), None if output is None else output.with_suffix(".run.json"))
        self._task = task
        self.file = self._tree = None
        if output_dir is not None:
            self._tree = Sidecars(pictures, extension=".trace.jsonl", output_dir=output_dir, overwrite=overwrite)
        if output is not None:
            self.file = TraceFile(output, overwrite=overwrite)
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        if self.file is not None:
            self.file.check(self._settings)
            if self.file.kept:
                self.read_report()
        if self._task.full_logits is not None and all(map(self.keeps, self._pictures)):
            raise SettingsError("`full_logits=`: the trace exists already: give `overwrite=`, or another output")

    def close(self) -> None:
        """Release the file."""
        if self.file is not None:
            self.file.close()

    @override
    def name(self, picture: Picture) -> str:
        """Return a picture's name in its trace: relative to the file."""
        path = self._tree.place(picture) if self._tree is not None else self.file.path if self.file else None
        return picture.name_in(None if path is None else path.parent.resolve())

    @override
    def keeps(self, picture: Picture) -> bool:
        """Return whether an earlier run has written a picture's trace to its end."""
        if self._tree is not None:
            return self._tree.keeps(picture)
        if self.file is None:
            return False
        return _name(self.name(picture), self._task.first_prompt(picture), picture.caption) in self.file.kept

    @override
    def begin(self, like: list[Line] | None) -> None:
        """Check that the traces of a loaded model belong in the file: `like` is their shared beginning."""
        if self.file is not None:
            for settings in like or ():
                self.file.check(settings)
            self.file.begin()
        self._begun = True
        self.report("running")

    @override
    def write(self, event: PictureEvent[list[Line]]) -> PictureEvent[list[Line]]:
        """Write a whole trace. In a tree, a picture that failed gets no file, and is tried again by a later run."""
        if isinstance(event, Skipped):
            self.counts.add(event)
            return event
        lines = event.record
        data = b"".join(map(as_line, lines))
        if self.file is not None:
            self.file.add(data)
        elif self._tree is not None and len(lines) > 1:
            place = self._tree.place(event.picture)
            make_folder(place.parent)
            with replacing(place) as file:
                file.write(data)
        self.counts.add(event, lines[-1]["output_tokens"])
        return event

    @override
    def finish(self) -> None:
        """Note that all traces are written."""
        if self.file is not None and self._begun:
            self.file.complete()


class TraceFile(ContinuedFile):
    """An open, locked file of traces. Traces with a text are kept; a later run repeats the others."""

    beginning = _BEGINNINGS["run"]
    wrong = "is not one of a trace"

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self.kept: dict[Name, tuple[int, int]] = {}  # where each begins and ends
        self._run, self._start = Line(), 0  # the run line of the trace that is being read, and where it is
        self._settings: Line = {}
        super().__init__(path, overwrite=overwrite)

    def check(self, settings: Mapping[str, Any]) -> None:
        """Check that traces of these settings belong in the file."""
        check_same(self.path, settings, self._settings)

    def begin(self) -> None:
        """Get ready to append: drop the traces that are made again, or with `overwrite` everything."""
        places, end = [*self.kept.values()], sum(stop - start for start, stop in self.kept.values())
        if places and end < places[-1][1]:
            with replacing(self.path) as new, self.path.open("rb") as old:
                for start, stop in places:
                    old.seek(start)
                    new.write(old.read(stop - start))
            self._file.close()
            self._file = open_locked(self.path)
        self._end = end
        super().begin()

    def _read_line(self, number: int, line: bytes) -> None:
        kind = next(kind for kind, beginning in _BEGINNINGS.items() if line.startswith(beginning))
        if kind == "run":
            self._run = from_json(line)
            self._start = self._end
        elif kind == "end":
            run = self._run
            end = from_json(line)
            self._run = {}
            if run and end["status"] == "ok":
                name = _name(run["file_name"], run["prompt"], end["text"] if run["forced"] else None)
                self.kept.setdefault(name, (self._start, self._end + len(line)))
                track = [tracked["word"] for tracked in run["tracked"]]
                self._settings = {**run, "track": track, "verify": "verify" in end}


def _name(file_name: str, prompt: str, text: str | None) -> Name:
    return file_name, prompt, None if text is None else " ".join(text.split())


def run_traces(
    task: Trace,
    pictures: Sequence[Picture],
    model: Lvlm | Callable[[Any], Lvlm],
    output: TraceOutput,
    batch_size: int = 1,
) -> Generator[Event[list[Line]], None, None]:
    """Trace pictures, write each trace, and yield the events of the run, with the lines of each trace.

    Args:
        task: what is recorded.
        pictures: with captions, if the task is `forced`. One that fails is an event; the others go on.
        model: the loaded model, or what loads it if anything is left to do.
        output: where the lines go; traces that it has are skipped.
        batch_size: texts that are forced together; fewer when memory is too small. A text is decoded alone.
    """
    return run(task, pictures, Local(model, batch_size if task.forced else 1), output)
