"""The most memory that something took: on GPUs by torch's own count, elsewhere by the system's of the process."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

TICK = 0.005  # seconds between two looks at the process's memory


@dataclass
class Peak:
    """The most memory that a block took beyond what was in use before, in bytes."""

    bytes: int = 0


@contextlib.contextmanager
def peak_memory(*devices: torch.device) -> Iterator[Peak]:
    """Measure the most memory that the block takes: what torch allocates on GPUs, else what the process has."""
    peak = Peak()
    if devices[0].type == "cuda":
        for device in devices:
            torch.cuda.synchronize(device)
        before = _restart_count(devices)
        yield peak
        for device in devices:
            torch.cuda.synchronize(device)
        peak.bytes = _counted(devices) - before
        return
    ended, process = threading.Event(), psutil.Process()
    before = process.memory_info().rss

    def look() -> None:
        while not ended.wait(TICK):
            peak.bytes = max(peak.bytes, process.memory_info().rss - before)

    watcher = threading.Thread(target=look, name="sira-memory", daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()
        peak.bytes = max(peak.bytes, process.memory_info().rss - before)


def restart_peak(devices: Sequence[torch.device]) -> int | None:
    """Let `peak_since` count from here on. Return the bytes that torch has allocated so far, on GPUs.

    No thread looks at the memory in between, so that what is timed is not disturbed. On Linux the process's own peak
    (`peak_of_process`) is forgotten.
    """
    if devices[0].type == "cuda":
        return _restart_count(devices)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak becomes what is in use now
    return None


def peak_since(devices: Sequence[torch.device]) -> int | None:
    """Return the peak since `restart_peak` in bytes: of what torch allocated on GPUs, of a process on Linux."""
    if devices[0].type == "cuda":
        return _counted(devices)
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if devices[0].type == "cpu" and status.is_file() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), None)


def peak_of_process() -> dict[str, int]:
    """Return bytes: `host`, the most that this process had, and `cuda`, what torch had on its GPUs, if any."""
    peak = {}
    try:
        import resource
    except ImportError:  # Windows
        pass
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        peak["host"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    if torch.cuda.is_available():
        peak["cuda"] = _counted([torch.device("cuda", number) for number in range(torch.cuda.device_count())])
    return peak


def _restart_count(devices: Sequence[torch.device]) -> int:
    """Let torch count from here on, and return the bytes that are allocated."""
    for device in devices:
        torch.cuda.reset_peak_memory_stats(device)
    return sum(map(torch.cuda.memory_allocated, devices))


def _counted(devices: Sequence[torch.device]) -> int:
    return sum(map(torch.cuda.max_memory_allocated, devices))
