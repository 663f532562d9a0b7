"""`batch_size="auto"`: as many pictures at once as fit into memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    import torch

    from sira_cli.models.loading.memory import PictureMemory
    from sira_cli.models.recording import RecordingModel

BatchSize = int | Literal["auto"]
AUTO: Literal["auto"] = "auto"
FIRST = 32  # pictures, the largest of which decides an automatic batch size

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Halved:
    """Memory was too small for `before` pictures at once; from now on the batch size is `batch_size`."""

    before: int
    batch_size: int


def check_batch_size(batch_size: BatchSize | None) -> None:
    """Check a batch size; None means the default."""
    is_number = isinstance(batch_size, int) and not isinstance(batch_size, bool) and batch_size > 0
    if not (batch_size is None or batch_size == AUTO or is_number):
        raise SettingsError(f"`batch_size=` {batch_size!r}: expected a whole number from 1 on, or auto")


def usual_batch_size(device: torch.device) -> BatchSize:
    """Return the default batch size: `auto` on a GPU of NVIDIA or AMD, else 1."""
    return AUTO if device.type == "cuda" else 1


def largest_batch(lvlm: RecordingModel, inputs: Any, task: str) -> int:
    """Run a picture's prompt, and return the number of such pictures that fit into memory with texts of any length."""
    from sira_cli.models.loading.memory import measure_picture

    return most_that_fit(
        lvlm.model,
        lambda: measure_picture(lvlm, inputs, task),
        "a prompt takes {prompt:.3f} GB and a text {text:.3f} GB at most, and {free:.1f} GB of memory may be taken",
    )


def most_that_fit(model: Any, measure: Callable[[], PictureMemory], says: str) -> int:
    """Measure the memory of one picture, and return the number that fits."""
    from sira_cli.models.loading.memory import free_memory, most_pictures
    from sira_cli.models.loading.placement import devices_of
    from sira_cli.models.many.memory import out_of_memory

    try:
        picture = measure()
    except Exception as error:
        if not out_of_memory(error):
            raise
        _log.info("batch size 1: memory does not suffice for one picture")
        return 1
    free = free_memory(*devices_of(model))
    size = picture.largest_batch(free, most_pictures(model.device))
    numbers = says.format(prompt=picture.prefill / 1e9, text=picture.text / 1e9, free=free / 1e9)
    _log.info("batch size %d: %s", size, numbers)
    return size
