"""`batch_size="auto"`: as many pictures at once as fit into memory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal

from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    import torch

    from sira_cli.models.lvlm import Lvlm

BatchSize = int | Literal["auto"]
AUTO: Literal["auto"] = "auto"

_log = logging.getLogger(__name__)


def check_batch_size(batch_size: BatchSize | None) -> None:
    """Check a batch size; None stands for the usual one.

    Raises:
        SettingsError: it is neither a number from 1 on nor `auto`.
    """
    is_number = isinstance(batch_size, int) and not isinstance(batch_size, bool) and batch_size > 0
    if not (batch_size is None or batch_size == AUTO or is_number):
        raise SettingsError(f"`batch_size=` {batch_size!r}: expected a whole number from 1 on, or auto")


def usual_batch_size(device: torch.device) -> BatchSize:
    """Return the batch size where none is given: `auto` on a GPU of NVIDIA's or AMD's, else 1."""
    return AUTO if device.type == "cuda" else 1


def largest_batch(lvlm: Lvlm, inputs: Any, task: str, groups: int = 0) -> int:
    """Run a picture's prompt, and return how many such pictures fit into memory with texts of any length.

    Args:
        lvlm: the model under its method.
        inputs: from its `prepare`, of one picture.
        task: `caption` or `ask`.
        groups: in how many groups pictures take places that are free; 0: batch after batch.
    """
    from sira_cli.models.memory import free_memory, measure_picture, most_pictures
    from sira_cli.runs.memory import out_of_memory

    device = lvlm.model.device
    try:
        picture = measure_picture(lvlm, inputs, task, refilled=groups > 0)
    except Exception as error:
        if not out_of_memory(error):
            raise
        _log.info("batch size 1: memory does not suffice for one picture")
        return 1
    free = free_memory(device)
    size = picture.largest_batch(free, most_pictures(device), groups)
    _log.info(
        "batch size %d: a prompt takes %.3f GB and a text %.3f GB at most, and %.1f GB of memory may be taken",
        *(size, picture.prefill / 1e9, picture.text / 1e9, free / 1e9),
    )
    return size
