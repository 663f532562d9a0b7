"""What is written beside a file of records: how they were made, and how fast."""

from __future__ import annotations

import platform
import sys
import time
from typing import Any

import torch
import transformers

from sira_cli._version import __version__
from sira_cli.lvlm import Lvlm


def run_report(
    state: str,
    settings: dict[str, Any],
    lvlm: Lvlm,
    batch_size: int,
    pictures: dict[str, int],
    tokens: int,
    began: float,
) -> dict[str, Any]:
    """The report of a run, ready for JSON.

    Args:
        state: running, finished, stopped (--fail-fast), interrupted or failed.
        settings: everything that decides the texts.
        lvlm: the model.
        batch_size: that of the end, which may be smaller than what was asked for.
        pictures: how many there are, and became `ok` or `error`, in this run or before.
        tokens: those that were generated in this run.
        began: when, in seconds since the epoch.
    """
    seconds = max(time.time() - began, 1e-9)
    return {
        "state": state,
        "settings": settings,
        "model": {"revision": lvlm.revision, "k": lvlm.k, "layers": lvlm.layers},
        "device": str(lvlm.model.device),
        "dtype": str(lvlm.model.dtype).removeprefix("torch."),
        "batch_size": batch_size,
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
        "peak_memory_bytes": _peak_memory(),
    }


def _peak_memory() -> dict[str, int]:
    """Of this process, and of its GPU."""
    peak = {}
    try:
        import resource
    except ImportError:  # Windows
        pass
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        peak["host"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    if torch.cuda.is_available():
        peak["cuda"] = torch.cuda.max_memory_allocated()
    return peak
