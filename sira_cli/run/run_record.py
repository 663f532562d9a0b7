"""The run report next to a file of records: how they were made, and how fast."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sira_cli._version import __version__
from sira_cli.run.events import Failed, Finished, PictureEvent, Skipped

# Facts from an engine about the model, the device and the memory.
FACTS = ("workers", "model", "device", "dtype", "pixels", "batch_size", "peak_memory_bytes")


@dataclass
class Counts:
    """Numbers of pictures by result, in this run and before.

    Attributes:
        total: all pictures.
        ok, error: done in this run.
        ok_before, error_before: done in an earlier run.
        tokens: generated in this run.
    """

    total: int = 0
    ok: int = 0
    error: int = 0
    ok_before: int = 0
    error_before: int = 0
    tokens: int = 0

    @property
    def failed(self) -> int:
        """Pictures without a text, including those of earlier runs."""
        return self.error + self.error_before

    @property
    def worked(self) -> int:
        """Pictures that this run worked on."""
        return self.ok + self.error

    def add(self, event: PictureEvent) -> None:
        """Count a picture's result."""
        if isinstance(event, Skipped):
            self.error_before += event.failed
            self.ok_before += not event.failed
        else:
            self.error += isinstance(event, Failed)
            self.ok += isinstance(event, Finished)
            self.tokens += event.record.output_tokens


def run_record(
    state: str,
    settings: dict[str, Any],
    facts: dict[str, Any],
    counts: Counts,
    seconds: float,
    left_out: Mapping[str, int],
    before: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the report of a run, ready for JSON."""
    times = {
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds)),
        "seconds": round(seconds, 3),
        "pictures_per_second": round(counts.worked / max(seconds, 1e-9), 3),
        "tokens_per_second": round(counts.tokens / max(seconds, 1e-9), 2),
    }
    if before.keys() >= times.keys() and before["pictures_per_second"] * before["seconds"] > counts.worked:
        times = {name: before[name] for name in times}
    return {
        "state": state,
        "settings": settings,
        **facts,
        "versions": {
            "sira": __version__,
            "torch": version("torch"),
            "transformers": version("transformers"),
            "python": platform.python_version(),
        },
        "pictures": {
            "all": counts.total,
            "ok": counts.ok,
            "error": counts.error,
            "ok before": counts.ok_before,
            "error before": counts.error_before,
        },
        **({"left_out": dict(left_out)} if left_out else {}),
        **times,
    }


def read_report(path: Path | None) -> dict[str, Any]:
    """Return the report of an earlier run; empty if it does not exist or cannot be read."""
    try:
        report = json.loads(path.read_text(encoding="utf-8")) if path is not None else None
    except (OSError, ValueError):
        report = None
    return report if isinstance(report, dict) else {}
