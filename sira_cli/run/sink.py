"""Where the results of a run go: to records, lines of traces, or units of an experiment."""

from __future__ import annotations

import json
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar

from sira_cli._version import __version__
from sira_cli.files import check_unprotected, replacing
from sira_cli.parsing import from_json
from sira_cli.pictures.find import Pictures
from sira_cli.pictures.picture import Picture
from sira_cli.run.events import Counts, PictureEvent

# Facts from an engine about the model, the device and the memory.
FACTS = ("workers", "model", "device", "dtype", "pixels", "batch_size", "peak_memory_bytes")
TIMES = ("began", "seconds", "pictures_per_second", "tokens_per_second")

State = Literal["running", "finished", "stopped", "interrupted", "failed"]  # `stopped`: by `fail_fast`
R = TypeVar("R")


class Sink(ABC, Generic[R]):
    """Keeps the results of a run about its pictures, counts them, and writes the report of the run.

    `Output` keeps records, `TraceOutput` the lines of traces, `UnitOutput` the units of an experiment.
    """

    def __init__(self, pictures: Sequence[Picture], settings: dict[str, Any], report: Path | None = None) -> None:
        """Prepare to keep results.

        Args:
            pictures: all pictures of the run.
            settings: those that decide the results, for the report.
            report: the file of the report; None: without one.
        """
        self._pictures, self._settings, self._report = pictures, settings, report
        self.counts = Counts(len(pictures))
        self.facts: Callable[[], Mapping[str, Any]] = dict  # the engine's, for the report
        self._began = time.monotonic()
        self._begun = False
        self._before: dict[str, Any] = {}  # the report of an earlier run
        if report is not None:
            check_unprotected(report)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def name(self, picture: Picture) -> str:
        """Return a picture's public name in its result."""

    @abstractmethod
    def keeps(self, picture: Picture) -> bool:
        """Return whether a picture's result is there already and stays, whatever the model and the settings."""

    def done(self, name: str) -> str:
        """Return the key of an earlier run's result by its `Item.id`: an equal one is kept. Empty without one."""
        return ""

    def has_all(self, pictures: Sequence[Picture], revision: str | None = None, server: str = "") -> bool:
        """Return whether an earlier run has done these pictures with a revision of the model, on a server.

        Then no model is needed. None: the revision is that of the files here, or else of the earlier run.
        """
        return not pictures

    def begin(self, like: R | None) -> None:
        """Check, before anything is written, that results like this one belong here; by default, all do."""

    @abstractmethod
    def write(self, event: PictureEvent[R]) -> PictureEvent[R]:
        """Keep a picture's result, or complete that of an earlier run, and count it."""

    def finish(self) -> None:
        """Note that all pictures are done; by default, nowhere."""

    def close(self) -> None:
        """Release the files."""

    def read_report(self) -> None:
        """Read the report of an earlier run, whose results are kept."""
        if self._report is not None:
            with suppress(OSError, ValueError, TypeError):
                self._before = dict(from_json(self._report.read_text(encoding="utf-8")))

    @property
    def seconds(self) -> float:
        """Seconds since the files were opened."""
        return time.monotonic() - self._began

    def facts_before(self) -> dict[str, Any]:
        """Return the facts of an earlier run's report about the model, the device and the memory."""
        return {name: self._before[name] for name in FACTS if name in self._before}

    def report(self, state: State) -> None:
        """Write how the results were made, and how fast, if the run has begun."""
        if self._report is None or not self._begun:
            return
        counts = self.counts
        left_out = self._pictures.left_out if isinstance(self._pictures, Pictures) else {}
        libraries = {name: version(name) for name in ("torch", "transformers")}
        report = {
            "state": state,
            "settings": self._settings,
            **self.facts(),
            "versions": {"sira": __version__, **libraries, "python": platform.python_version()},
            "pictures": {
                "all": counts.total,
                "ok": counts.ok,
                "error": counts.error,
                "ok before": counts.ok_before,
                "error before": counts.error_before,
            },
            **({"left_out": dict(left_out)} if left_out else {}),
            **self._times(),
        }
        with replacing(self._report) as file:
            file.write(json.dumps(report, indent=2, ensure_ascii=False).encode() + b"\n")

    def _times(self) -> dict[str, Any]:
        """Return when the run began, and its speed; those of the earlier run if it worked on more pictures."""
        counts, before = self.counts, self._before
        seconds = max(self.seconds, 1e-9)
        if before.keys() >= {*TIMES} and before["pictures_per_second"] * before["seconds"] > counts.worked:
            return {name: before[name] for name in TIMES}
        return {
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds)),
            "seconds": round(seconds, 3),
            "pictures_per_second": round(counts.worked / seconds, 3),
            "tokens_per_second": round(counts.tokens / seconds, 2),
        }
