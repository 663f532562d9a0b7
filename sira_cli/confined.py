"""Runs a script in a separate process, with limits on memory, time and output.

For work on untrusted files that may take minutes and gigabytes, or crash: following a schema, decoding a clip.
As a script, `python -P confined.py MEMORY SECONDS WRITTEN SCRIPT [ARGUMENT...]`, it sets the limits and becomes SCRIPT.
It imports nothing of the package, whose imports take seconds.
"""

from __future__ import annotations

import contextlib
import runpy
import subprocess
import sys
from dataclasses import dataclass
from typing import IO


@dataclass(frozen=True)
class ProcessLimits:
    """Limits of a process, where the system can set them.

    Attributes:
        memory: bytes of its address space.
        seconds: of processor time, after which the system ends it.
        longest: seconds on the clock, after which it is ended on any system.
        written: bytes of a file that it writes.
    """

    memory: int
    seconds: int
    longest: float
    written: int = 2**20


def run_confined(
    script: str,
    *arguments: str,
    limits: ProcessLimits,
    stdin: bytes | IO[bytes],
    stdout: IO[bytes] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a script to its end.

    Args:
        script: path of a Python file.
        *arguments: for it.
        limits: of its process.
        stdin: bytes that it reads, or an open file.
        stdout: an open file that it writes to; None: its output is the result's.

    Raises:
        subprocess.TimeoutExpired: the script took too long.
        OSError: the process cannot be started.
    """
    numbers = (limits.memory, limits.seconds, limits.written)
    return subprocess.run(
        [sys.executable or "python", "-P", __file__, *map(str, numbers), script, *arguments],
        input=stdin if isinstance(stdin, bytes) else None,
        stdin=None if isinstance(stdin, bytes) else stdin,
        stdout=subprocess.PIPE if stdout is None else stdout,
        stderr=subprocess.PIPE,
        timeout=limits.longest,
    )


def set_limits(memory: int, seconds: int, written: int) -> None:
    """Limit this process, where the system can; for the arguments see `ProcessLimits`."""
    try:
        import resource
    except ImportError:
        return
    kinds = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: written,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in kinds.items():
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    set_limits(*map(int, sys.argv[1:4]))
    sys.argv = sys.argv[4:]
    runpy.run_path(sys.argv[0], run_name="__main__")
