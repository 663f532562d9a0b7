"""How much memory a run took, and whether it was too little."""

from __future__ import annotations

import sys

import torch
from accelerate.utils.memory import should_reduce_batch_size


def peak_memory() -> dict[str, int]:
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
        peak["cuda"] = sum(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))
    return peak


def out_of_memory(error: Exception) -> bool:
    """Return whether an error says that memory did not suffice, so that fewer pictures at once might do."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or bool(should_reduce_batch_size(error))
