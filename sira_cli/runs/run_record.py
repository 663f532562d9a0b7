"""What is written beside a file of records: how they were made, and how fast."""

from __future__ import annotations

import platform
import time
from typing import Any

import torch
import transformers

from sira_cli._version import __version__


def run_report(
    state: str,
    settings: dict[str, Any],
    facts: dict[str, Any],
    pictures: dict[str, int],
    tokens: int,
    began: float,
) -> dict[str, Any]:
    """The report of a run, ready for JSON.

    Args:
        state: running, finished, stopped (--fail-fast), interrupted or failed.
        settings: everything that decides the texts.
        facts: what the engine says about the model, the device and the memory.
        pictures: how many there are, and became `ok` or `error`, in this run or before.
        tokens: those that were generated in this run.
        began: when, in seconds since the epoch.
    """
    seconds = max(time.time() - began, 1e-9)
    return {
        "state": state,
        "settings": settings,
        **facts,
        "versions": {
            "sira": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "pictures": pictures,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        "seconds": round(seconds, 3),
        "pictures_per_second": round((pictures["ok"] + pictures["error"]) / seconds, 3),
        "tokens_per_second": round(tokens / seconds, 2),
    }
