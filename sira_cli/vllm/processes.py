"""vLLM's processes end with the one that asks them: after an interrupt, and when it was killed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import TypeVar

import psutil

from sira_cli import interrupts

OWNER = "SIRA_VLLM_OWNER"  # an environment variable: the process that starts vLLM
TRACKER = "multiprocessing.resource_tracker"  # ends by itself, after it has removed shared memory

T = TypeVar("T")


def own() -> None:
    """Make vLLM's processes that this one starts end with it."""
    os.environ[OWNER] = str(os.getpid())


def watch_owner() -> None:
    """End this process soon after the one that `own`s it: vLLM's would wait, and keep its memory."""
    owner = int(os.environ.get(OWNER, os.getpid()))
    if owner != os.getpid():
        Thread(target=_end_with, args=(owner,), daemon=True).start()


def _end_with(owner: int) -> None:
    while _runs(owner):
        time.sleep(0.5)
    os._exit(1)


def _runs(number: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(number).status() != psutil.STATUS_ZOMBIE)
    return False


def started(start: Callable[[], T]) -> T:
    """Start vLLM and return it; an interrupt ends the processes that it waits for.

    It runs in another thread: libraries swallow interrupts where they wait.
    """
    try:
        return interrupts.in_time(start, math.inf, interrupts.check)
    except KeyboardInterrupt:
        end_all()
        raise


def end_all() -> None:
    """End all processes that this one has started, and those that they have started."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if not any(TRACKER in argument for argument in process.cmdline()):
                process.kill()
