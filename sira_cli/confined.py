"""Runs a script in a separate process, with limits on memory, time and output.

For work on untrusted files that may take minutes and gigabytes, or crash: following a schema.
As a script, `python -P confined.py MEMORY SECONDS SCRIPT`, it sets the limits and becomes SCRIPT.
It imports nothing of the package, whose imports take seconds.
"""

from __future__ import annotations

import contextlib
import runpy
import subprocess
import sys
from dataclasses import dataclass

_WRITTEN = 2**20  # bytes of a file that a process writes


@dataclass(frozen=True)
class ProcessLimits:
    """Limits of a process, where the system can set them.

    Attributes:
        memory: bytes of its address space.
        seconds: of processor time, after which the system ends it.
        longest: seconds on the clock, after which it is ended on any system.
    """

    memory: int
    seconds: int
    longest: float


def run_confined(script: str, *, limits: ProcessLimits, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run a script to its end.

    Args:
        script: path of a Python file.
        limits: of its process.
        stdin: bytes that it reads.

    Raises:
        subprocess.TimeoutExpired: the script took too long.
        OSError: the process cannot be started.
    """
    numbers = (limits.memory, limits.seconds)
    return subprocess.run(
        [sys.executable or "python", "-P", __file__, *map(str, numbers), script],
        input=stdin,
        capture_output=True,
        timeout=limits.longest,
    )


def set_limits(memory: int, seconds: int) -> None:
    """Limit this process, where the system can; for the arguments see `ProcessLimits`."""
    try:
        import resource
    except ImportError:
        return
    kinds = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: _WRITTEN,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in kinds.items():
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    set_limits(*map(int, sys.argv[1:3]))
    runpy.run_path(sys.argv[3], run_name="__main__")
