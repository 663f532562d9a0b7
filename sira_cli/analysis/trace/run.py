"""Traces of many pictures, and the files that keep them (docs/library.md)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sira_cli.analysis.trace.task import Line, Trace
from sira_cli.errors import DataError, SettingsError
from sira_cli.files import make_folder, replacing
from sira_cli.parsing import from_json
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.records import is_failure, read_newest
from sira_cli.pictures.rows import text_of
from sira_cli.pictures.sources import recorded
from sira_cli.run.events import Halved
from sira_cli.run.items import Item
from sira_cli.run.ledger import ContinuedFile, check_same, open_locked
from sira_cli.run.output import Sidecars
from sira_cli.run.records import as_line
from sira_cli.run.runner import Runner

if TYPE_CHECKING:
    from sira_cli.run.lvlm import Lvlm

Name = tuple[str, str, str | None]  # of a trace in a file: the picture's name, the prompt, the forced text

_BEGINNINGS = {kind: f'{{"type": "{kind}"'.encode() for kind in ("run", "token", "end")}


def read_texts(path: Path) -> list[Picture]:
    """Return the pictures of a file of records with the texts and prompts; failed records are left out."""
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
    return pictures


class TraceOutput:
    """Where traces go, locked until the end of a `with`: one file, a tree of files, or only the caller."""

    def __init__(
        self,
        pictures: Sequence[Picture],
        *,
        output: Path | None = None,
        output_dir: Path | None = None,
        overwrite: bool = False,
    ) -> None:
        """Check and open the files.

        Args:
            pictures: all that are traced.
            output: one file for all traces (.jsonl); traces that it holds already are kept.
            output_dir: a tree with one file per picture; existing ones are kept.
            overwrite: replace existing files.
        """
        self.file = self._tree = None
        if output_dir is not None:
            self._tree = Sidecars(pictures, extension=".trace.jsonl", output_dir=output_dir, overwrite=overwrite)
        if output is not None:
            if output.suffix != ".jsonl":
                raise SettingsError(f"`output=` {output}: expected a name that ends in .jsonl")
            self.file = TraceFile(output, overwrite=overwrite)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.file is not None:
            self.file.close()

    def name(self, picture: Picture) -> str:
        """Return a picture's name in its trace: relative to the file."""
        path = self._tree.place(picture) if self._tree is not None else self.file.path if self.file else None
        return picture.name_in(None if path is None else path.parent.resolve())

    def has(self, picture: Picture, prompt: str) -> bool:
        """Return whether an earlier run has written a picture's trace to its end."""
        if self._tree is not None:
            return self._tree.keeps(picture)
        return self.file is not None and _name(self.name(picture), prompt, picture.caption) in self.file.kept

    def write(self, picture: Picture, lines: Sequence[Line]) -> None:
        """Write a whole trace. In a tree, a picture that failed gets no file, and is tried again by a later run."""
        data = b"".join(map(as_line, lines))
        if self.file is not None:
            self.file.add(data)
        elif self._tree is not None and len(lines) > 1:
            place = self._tree.place(picture)
            make_folder(place.parent)
            with replacing(place) as file:
                file.write(data)


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
            self._run, self._start = from_json(line), self._end
        elif kind == "end":
            run, end, self._run = self._run, from_json(line), {}
            if run and end["status"] == "ok":
                name = _name(run["file_name"], run["prompt"], end["text"] if run["forced"] else None)
                self.kept.setdefault(name, (self._start, self._end + len(line)))
                track = [tracked["word"] for tracked in run["tracked"]]
                self._settings = {**run, "track": track, "verify": "verify" in end}


def _name(file_name: str, prompt: str, text: str | None) -> Name:
    return file_name, prompt, None if text is None else " ".join(text.split())


@dataclass(frozen=True)
class Traced:
    """A picture's trace; without lines, it was made in an earlier run."""

    picture: Picture
    lines: list[Line] = field(default_factory=list)

    @property
    def error(self) -> str:
        """Why the picture has no trace; empty if it has one."""
        return str(self.lines[-1]["error"]) if self.lines else ""


def run_traces(
    task: Trace, pictures: Sequence[Picture], model: Lvlm | Callable[[], Lvlm], output: TraceOutput, batch_size: int = 1
) -> Generator[Traced | Halved, None, None]:
    """Trace pictures, write each trace, and yield events. A picture that fails is an event; the others go on.

    Args:
        task: what is recorded.
        pictures: with captions, if the task is `forced`.
        model: the loaded model, or what loads it if anything is left to do.
        output: where the lines go; traces that it has are skipped.
        batch_size: texts that are forced together; fewer when memory is too small.
    """
    file, left = output.file, []
    if file is not None:
        file.check(task.settings())
    for picture in pictures:
        if output.has(picture, task.asked(picture)):
            yield Traced(picture)
        else:
            left.append(Item[list[Line]](picture, output.name(picture), task.asked(picture)))
    if not left:
        if task.full_logits is not None:
            raise SettingsError("`full_logits=`: the trace exists already: give `overwrite=`, or another output")
        return
    lvlm = model() if callable(model) else model
    task.tracked(lvlm)  # refuses words without tokens
    if file is not None:
        file.check(task.settings() | {"k": lvlm.k, "revision": lvlm.revision, "dtype": lvlm.dtype})
        file.begin()
    with closing(Runner(lvlm, task, batch_size if task.forced else 1).run(left)) as settled:
        for item in settled:
            if isinstance(item, Halved):
                yield item
            elif item.result is not None:
                output.write(item.picture, item.result)
                yield Traced(item.picture, item.result)
    if file is not None:
        file.complete()
