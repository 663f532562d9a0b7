"""The number of torch's threads on a CPU, by the size of the model."""

from __future__ import annotations

import os
from typing import Any

import psutil
import torch

CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # variables by which a user chooses
SMALL = 50_000_000  # weights; with fewer, threads wait for each other longer than they work


def threads_for(model: Any) -> int:
    """Return the number of threads for a model on the CPU.

    One for a small model; else torch's own number, but at most one per physical core. A user's choice wins.
    """
    own = torch.get_num_threads()
    if any(os.environ.get(name) for name in CHOSEN):
        return own
    if sum(weight.numel() for weight in model.parameters()) < SMALL:
        return 1
    return min(own, psutil.cpu_count(logical=False) or own)


def use_threads(model: Any) -> None:
    """Let torch use as many threads as suit a model, in the whole process, if the model is on a CPU."""
    if model.device.type == "cpu":
        torch.set_num_threads(threads_for(model))
