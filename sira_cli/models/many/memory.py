"""Detection of errors about too little memory."""

from __future__ import annotations

import torch
from accelerate.utils.memory import should_reduce_batch_size


def out_of_memory(error: Exception) -> bool:
    """Return whether an error means too little memory, so that fewer pictures at once might fit."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or bool(should_reduce_batch_size(error))
