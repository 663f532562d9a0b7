"""Where the lines of traces go: stdout, one file, a tree of files, or a strip on the terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.cli.console import verbosity
from sira_cli.cli.options import check_file
from sira_cli.files import make_folder, replacing, writing
from sira_cli.pictures.stores import is_uri, public

if TYPE_CHECKING:
    from sira_cli.pictures.sources import Source
    from sira_cli.runs.sidecars import Sidecars

Line = dict[str, Any]


class TraceTarget:
    """Where the lines go: stdout, a file for all, a file for each picture, or a strip on the terminal."""

    def __init__(self, sources: list[Source], output: Path | None, output_dir: Path | None, overwrite: bool) -> None:
        """Check; an existing `output` is removed.

        Raises:
            SettingsError: a file cannot be there, or is there and not to be overwritten.
        """
        check_file("--output", output, overwrite)
        self._output = output
        self._legend = True
        self._sidecars: Sidecars | None = None
        if output_dir is not None:
            from sira_cli.runs.sidecars import Sidecars

            self._sidecars = Sidecars(sources, extension=".trace.jsonl", output_dir=output_dir, overwrite=overwrite)
        if output is not None:
            output.unlink(missing_ok=True)
        self._strip = output is None and output_dir is None and sys.stdout.isatty()

    def name(self, source: Source) -> str:
        """A picture's name in its trace: relative to the file."""
        from sira_cli.pictures.sources import STDIN

        file = self._output if self._sidecars is None else self._sidecars.place(source)
        if is_uri(source.path):
            return public(source.path)
        if file is None or source.path == STDIN:
            return source.path
        return Path(os.path.relpath(Path(source.path).absolute(), file.parent.resolve())).as_posix()

    def has(self, source: Source) -> bool:
        """Whether an earlier run has written this trace to its end."""
        return self._sidecars is not None and self._sidecars.keeps(source)

    @contextmanager
    def opened(self, source: Source | None) -> Iterator[Callable[[Line], None]]:
        """What writes the lines of one trace; of no picture: to stdout, or the file for all.

        Raises:
            SiraError: they cannot be written.
        """
        if self._strip and source is not None:
            lines: list[Line] = []
            yield lines.append
            self._show(source, lines)
            return
        if self._output is None and self._sidecars is None:
            yield lambda line: print(_json(line), flush=True)
            return
        path = self._output or self._place(source)
        # A file for all grows line by line; one of many appears when it is complete.
        with writing(path), self._output.open("ab") if self._output is not None else replacing(path) as file:

            def write(line: Line) -> None:
                file.write(_json(line).encode() + b"\n")
                file.flush()

            yield write

    def error(self, message: str) -> None:
        """A picture without a trace; in a tree it has no file, and is tried again."""
        if self._sidecars is None and not self._strip:
            from sira_cli.analysis.trace.record import failed

            with self.opened(None) as write:
                write(failed(message))

    def _place(self, source: Source | None) -> Path:
        assert self._sidecars is not None
        assert source is not None
        place = self._sidecars.place(source)
        make_folder(place.parent)
        return place

    def _show(self, source: Source, lines: list[Line]) -> None:
        from sira_cli.cli.strip import print_candidates, print_words
        from sira_cli.pictures.opening import one_line

        print(f"{one_line(source.path)}:")
        print_words(lines[-1]["text"], lines[-1]["words"], legend=self._legend)
        self._legend = False
        if verbosity() >= 1:
            print_candidates([line for line in lines if line["type"] == "token"])


def _json(line: Line) -> str:
    return json.dumps(line, ensure_ascii=False, allow_nan=False)
