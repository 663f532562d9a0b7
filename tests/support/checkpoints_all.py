"""Every checkpoint that tests write, and those that stand for the rest where families differ little."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.support.checkpoints import write_llava, write_qwen
from tests.support.checkpoints_other import WRITERS, write_gemma4

ALL: dict[str, Callable[[Path], Path]] = {
    "LLaVA-1.5": write_llava,
    **{f"Qwen{version}-VL": partial(write_qwen, version=version) for version in ("2", "2.5", "3")},
    "Qwen3.5": partial(write_qwen, version="3.5"),
    "Gemma 4 E": write_gemma4,
    **WRITERS,
}
# A plain stack, positions in three axes, windows, a prompt that sees all of itself, and states instead of columns.
REPRESENTATIVES = ["LLaVA-1.5", "Qwen2.5-VL", "Gemma 3", "PaliGemma", "Qwen3.5"]
