"""Where the lines of traces go: one file, a tree of files, or the caller."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sira_cli.errors import SettingsError
from sira_cli.files import make_folder, replacing, writing
from sira_cli.pictures.picture import Picture
from sira_cli.runs.sidecars import Sidecars

Line = dict[str, Any]


class TraceTargets:
    """The files of traces, checked. Without any, lines go to the listener alone."""

    def __init__(
        self,
        pictures: Sequence[Picture],
        *,
        output: Path | None = None,
        output_dir: Path | None = None,
        overwrite: bool = False,
        on_line: Callable[[Picture | None, Line], None] = lambda picture, line: None,
    ) -> None:
        """Check; an existing `output` is removed.

        Args:
            pictures: all that are traced.
            output: one file for all traces.
            output_dir: a tree with one file per picture.
            overwrite: replace existing files.
            on_line: without files, called with each line and its picture (None: it could not be opened).

        Raises:
            SettingsError: a file cannot be there, or exists and is not to be overwritten.
        """
        self._output, self._on_line = output, on_line
        self._tree: Sidecars | None = None
        if output_dir is not None:
            self._tree = Sidecars(pictures, extension=".trace.jsonl", output_dir=output_dir, overwrite=overwrite)
        if output is not None:
            if output.exists() and not overwrite:
                raise SettingsError(f"`output=` {output}: exists: give another, or `overwrite=`")
            with writing(output):
                output.unlink(missing_ok=True)

    def name(self, picture: Picture) -> str:
        """Return a picture's name in its trace: relative to the file."""
        file = self._output if self._tree is None else self._tree.place(picture)
        return picture.name_in(None if file is None else file.parent.resolve())

    def has(self, picture: Picture) -> bool:
        """Return whether an earlier run has written this trace to its end."""
        return self._tree is not None and self._tree.keeps(picture)

    @contextmanager
    def opened(self, picture: Picture) -> Iterator[Callable[[Line], None]]:
        """Yield the writer of the lines of one trace.

        Raises:
            SiraError: they cannot be written.
        """
        if self._tree is not None:
            place = self._tree.place(picture)
            make_folder(place.parent)
            with replacing(place) as file:  # one of many files appears when it is complete
                yield lambda line: _write(file, line)
        elif self._output is not None:
            with self._appending() as write:
                yield write
        else:
            yield lambda line: self._on_line(picture, line)

    def fail(self, line: Line) -> None:
        """Write the line of a picture without a trace. In a tree it has no file, and is tried again.

        Raises:
            SiraError: the file cannot be written.
        """
        if self._output is not None:
            with self._appending() as write:
                write(line)
        elif self._tree is None:
            self._on_line(None, line)

    @contextmanager
    def _appending(self) -> Iterator[Callable[[Line], None]]:
        assert self._output is not None
        with writing(self._output), self._output.open("ab") as file:  # a file for all grows line by line
            yield lambda line: _write(file, line)


def as_json(line: Line) -> str:
    """Return a line of a trace as JSON."""
    return json.dumps(line, ensure_ascii=False, allow_nan=False)


def _write(file: Any, line: Line) -> None:
    file.write(as_json(line).encode() + b"\n")
    file.flush()
