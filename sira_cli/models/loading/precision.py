"""The precision `auto` on a processor: the checkpoint's own, if the processor computes in it."""

from __future__ import annotations

import logging
import platform
from pathlib import Path

import psutil
import torch

HALVES = (torch.bfloat16, torch.float16)

_log = logging.getLogger(__name__)


def computes_in(dtype: torch.dtype) -> bool:
    """Return whether this processor has arithmetic for a 16-bit type. Without it every number is converted first.

    If torch cannot determine it, as without oneDNN, the answer is yes.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call] # not annotated upstream
        return True
    if dtype == torch.bfloat16:
        if platform.machine().lower() in ("x86_64", "amd64"):  # torch's answer includes processors that only convert
            return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def on_processor(own: torch.dtype | None, folder: Path, packed: int | None = None) -> torch.dtype | str:
    """Return the precision of `auto` for a model on the CPU."""
    if own not in HALVES or computes_in(own):
        return "auto"
    name = str(own).removeprefix("torch.")
    needed = packed or 2 * sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    free = psutil.virtual_memory().available
    if needed > free:
        _log.info(
            "%s, though this processor has no arithmetic for it: float32 would take %.1f GB, and %.1f GB are free",
            *(name, needed / 1e9, free / 1e9),
        )
        return "auto"
    _log.info("float32 instead of the checkpoint's %s, for which this processor has no arithmetic", name)
    return torch.float32
