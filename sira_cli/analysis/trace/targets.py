"""The destinations of trace lines: one file, a tree of files, or the caller."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sira_cli.analysis.trace.file import TraceFile, trace_name
from sira_cli.errors import SettingsError
from sira_cli.files import make_folder, replacing
from sira_cli.pictures.picture import Picture
from sira_cli.run.sidecars import Sidecars

Line = dict[str, Any]


class TraceTargets:
    """The files of traces, checked and locked until `close`. Without any, lines go to the listener alone."""

    def __init__(
        self,
        pictures: Sequence[Picture],
        *,
        output: Path | None = None,
        output_dir: Path | None = None,
        overwrite: bool = False,
        on_line: Callable[[Picture | None, Line], None] = lambda picture, line: None,
    ) -> None:
        """Check and open the files.

        Args:
            pictures: all that are traced.
            output: one file for all traces (.jsonl); traces that it holds already are kept.
            output_dir: a tree with one file per picture; existing ones are kept.
            overwrite: replace existing files.
            on_line: without files, called with each line and its picture (None: it could not be opened).

        Raises:
            SettingsError: a file cannot be there, or another process writes to it.
            DataError: `output` holds something else.
            SiraError: `output` cannot be opened.
        """
        self._file: TraceFile | None = None
        self._on_line = on_line
        self._tree: Sidecars | None = None
        if output_dir is not None:
            self._tree = Sidecars(pictures, extension=".trace.jsonl", output_dir=output_dir, overwrite=overwrite)
        if output is not None:
            if output.suffix != ".jsonl":
                raise SettingsError(f"`output=` {output}: expected a name that ends in .jsonl")
            self._file = TraceFile(output, overwrite=overwrite)

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            self._file.close()

    def check(self, settings: Mapping[str, Any]) -> None:
        """Check that traces of these settings belong in the file of all traces; see `TraceFile.check`.

        Raises:
            SettingsError: the file holds traces of other settings; the message names the differences.
        """
        if self._file is not None:
            self._file.check(settings)

    def begin(self) -> None:
        """Get ready to write.

        Raises:
            SiraError: the file cannot be written.
        """
        if self._file is not None:
            self._file.begin()

    def complete(self) -> None:
        """Note that all traces are written."""
        if self._file is not None:
            self._file.complete()

    def name(self, picture: Picture) -> str:
        """Return a picture's name in its trace: relative to the file."""
        if self._tree is not None:
            return picture.name_in(self._tree.place(picture).parent.resolve())
        return picture.name_in(None if self._file is None else self._file.path.parent.resolve())

    def has(self, picture: Picture, prompt: str, text: str | None = None) -> bool:
        """Return whether an earlier run has written a trace to its end.

        Args:
            picture: that was traced.
            prompt: that it was traced with.
            text: that was forced; None: it was generated.
        """
        if self._file is not None:
            return trace_name(self.name(picture), prompt, text) in self._file
        return self._tree is not None and self._tree.keeps(picture)

    @contextmanager
    def opened(self, picture: Picture) -> Iterator[Callable[[Line], None]]:
        """Yield the writer of the lines of one trace.

        Raises:
            SiraError: the lines cannot be written.
        """
        if self._tree is not None:
            place = self._tree.place(picture)
            make_folder(place.parent)
            with replacing(place) as file:  # one of many files appears when it is complete

                def write(line: Line) -> None:
                    file.write(_encoded(line))
                    file.flush()

                yield write
        elif self._file is not None:  # a file for all grows line by line
            add = self._file.add
            yield lambda line: add(_encoded(line))
        else:
            yield lambda line: self._on_line(picture, line)

    def fail(self, line: Line) -> None:
        """Write the line of a failed picture. In a tree it gets no file, and is tried again by a later run.

        Raises:
            SiraError: the file cannot be written.
        """
        if self._file is not None:
            self._file.add(_encoded(line))
        elif self._tree is None:
            self._on_line(None, line)


def as_json(line: Line) -> str:
    """Return a line of a trace as JSON."""
    return json.dumps(line, ensure_ascii=False, allow_nan=False)


def _encoded(line: Line) -> bytes:
    return as_json(line).encode() + b"\n"
