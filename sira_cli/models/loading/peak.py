"""Peak memory: on GPUs by torch's count, elsewhere by the system's count for the process."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

TICK = 0.005  # seconds between two readings of the process's memory


@dataclass
class Peak:
    """Peak memory of a block beyond the memory in use before, in bytes."""

    bytes: int = 0


@contextlib.contextmanager
def peak_memory(*devices: torch.device) -> Iterator[Peak]:
    """Measure the block's peak memory: torch's allocations on GPUs, else the memory of the process."""
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
    """Restart the count of `peak_since`. Return the bytes that torch has allocated so far, on GPUs.

    No thread reads the memory in between, so timing is not disturbed. On Linux this also resets the process's own
    peak (`peak_of_process`).
    """
    if devices[0].type == "cuda":
        return _restart_count(devices)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # Linux: the peak becomes the current use
    return None


def peak_since(devices: Sequence[torch.device]) -> int | None:
    """Return the peak since `restart_peak` in bytes: torch's allocations on GPUs, else the process on Linux."""
    if devices[0].type == "cuda":
        return _counted(devices)
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if devices[0].type == "cpu" and status.is_file() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), None)


def peak_of_process() -> dict[str, int]:
    """Return peaks in bytes: `host`, of this process, and `cuda`, torch's on its GPUs, if any."""
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
    """Restart torch's count, and return the allocated bytes."""
    for device in devices:
        torch.cuda.reset_peak_memory_stats(device)
    return sum(map(torch.cuda.memory_allocated, devices))


def _counted(devices: Sequence[torch.device]) -> int:
    return sum(map(torch.cuda.max_memory_allocated, devices))
