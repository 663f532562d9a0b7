"""A file of many traces, which a later run continues."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError
from sira_cli.files import replacing
from sira_cli.models.preset import ONLY_IF_SET
from sira_cli.run.continued import ContinuedFile, check_same, open_locked

TraceName = tuple[str, str, str | None]  # the picture's name, the prompt, the forced text

_BEGINNINGS = {kind: f'{{"type": "{kind}"'.encode() for kind in ("run", "token", "end")}


def trace_name(file_name: str, prompt: str, text: str | None) -> TraceName:
    """Return a trace's name, unique in a file; `text` is the forced text, if any."""
    return file_name, prompt, None if text is None else " ".join(text.split())


class TraceFile(ContinuedFile):
    """An open, locked file of traces. Traces with a text are kept; a later run repeats the others.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        """Open or create the file, lock out other processes, and read it."""
        self._run: dict[str, Any] = {}  # the run line of the trace that is being read
        self._start = 0  # of that trace
        self._kept: list[tuple[int, int]] = []  # where the traces begin and end that stay
        self._names: set[TraceName] = set()
        self._settings: dict[str, Any] = {}
        super().__init__(path, overwrite=overwrite)

    def __contains__(self, name: TraceName) -> bool:
        return name in self._names

    def check(self, settings: Mapping[str, Any]) -> None:
        """Check that traces of these settings belong in the file."""
        if self._settings:
            off = dict.fromkeys(ONLY_IF_SET)
            check_same(self.path, off | dict(settings), off | self._settings)

    def begin(self) -> None:
        """Get ready to append: drop the traces that are made again, or with `overwrite` everything."""
        end = sum(stop - start for start, stop in self._kept)
        if self._kept and end < self._kept[-1][1]:
            with replacing(self.path) as new, self.path.open("rb") as old:
                for start, stop in self._kept:
                    old.seek(start)
                    new.write(old.read(stop - start))
            self._file.close()
            self._file = open_locked(self.path)
        self._end = end
        super().begin()

    def _check_beginning(self, torn: bytes) -> None:
        if not _BEGINNINGS["run"].startswith(torn[: len(_BEGINNINGS["run"])]):
            raise self._foreign(1)

    def _read_line(self, number: int, line: bytes) -> None:
        try:
            kind = next(kind for kind, beginning in _BEGINNINGS.items() if line.startswith(beginning))
            if kind == "run":
                self._run, self._start = json.loads(line), self._end
            elif kind == "end":
                self._note(json.loads(line), self._end + len(line))
        except (StopIteration, ValueError, KeyError, TypeError, AttributeError):
            raise self._foreign(number) from None

    def _note(self, end: dict[str, Any], stop: int) -> None:
        """Note a trace whose end line ends at `stop`, unless it must be repeated."""
        run, self._run = self._run, {}
        if run and end["status"] == "ok":
            text = end["text"] if run["forced"] else None
            self._names.add(trace_name(run["file_name"], run["prompt"], text))
            self._kept.append((self._start, stop))
            track = [tracked["word"] for tracked in run["tracked"]]
            self._settings = {**run, "track": track, "verify": "verify" in end}

    def _foreign(self, number: int) -> DataError:
        return DataError(
            f"{self.path}: line {number} is not one of a trace: give another `output=`, or `overwrite=` to replace it"
        )
