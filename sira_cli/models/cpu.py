"""A model on the CPU: the precision of its arithmetic, and torch's threads."""

from __future__ import annotations

import logging
import os
import platform
from pathlib import Path
from typing import Any

import psutil
import torch

HALVES = (torch.bfloat16, torch.float16)
CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # variables by which a user chooses threads
SMALL = 50_000_000  # weights; with fewer, threads wait for each other longer than they work
_log = logging.getLogger(__name__)


def computes_in(dtype: torch.dtype) -> bool:
    """Return whether this processor has arithmetic for a 16-bit type, and yes if torch cannot determine it."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call] # not annotated upstream
        return True
    if dtype == torch.bfloat16:
        if platform.machine().lower() in ("x86_64", "amd64"):  # torch's answer includes processors that only convert
            return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def on_processor(
    stated: torch.dtype | None, folder: Path, packed: int | None = None, bits: int = 16
) -> torch.dtype | str:
    """Return the precision of `auto` for a model on the CPU.

    Args:
        stated: precision of the checkpoint.
        folder: the checkpoint.
        packed: bytes of the model if its matrices can be packed.
        bits: of a weight in the files.
    """
    if stated not in HALVES or computes_in(stated):
        return "auto"
    needed = packed or 32 // bits * sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    free = psutil.virtual_memory().available
    numbers = f"float32 takes {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
    _log.info("this processor has no arithmetic for the checkpoint's %s; %s", stated, numbers)
    return torch.float32 if needed <= free else "auto"


def use_threads(model: Any) -> None:
    """Let torch use as many threads as suit a model on a CPU, at most one per physical core; a user's choice wins."""
    if model.device.type != "cpu" or any(os.environ.get(name) for name in CHOSEN):
        return
    threads = torch.get_num_threads()
    if sum(weight.numel() for weight in model.parameters()) < SMALL:
        threads = 1
    torch.set_num_threads(min(threads, psutil.cpu_count(logical=False) or threads))
