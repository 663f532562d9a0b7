"""vLLM's schedulers, under which a prompt begins with blocks of earlier ones only as far as both streams can."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler as TheirAsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler as TheirScheduler

from sira_cli.vllm.prefix import most_shared
from sira_cli.vllm.step import image_tokens


class _TwoStreams:
    """Mixed into the schedulers."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        manager: Any = self.kv_cache_manager  # type: ignore[attr-defined]
        size: int = self.block_size  # type: ignore[attr-defined]
        find = manager.get_computed_blocks

        def find_shared(request: Any) -> Any:
            """Return the blocks to begin with, their tokens, and a place that matters to recurrent layers only."""
            blocks, computed, place = find(request)
            image = image_tokens(feature.mm_position for feature in request.mm_features)
            if not image[:computed].any():  # of text alone, both streams' rows lie in the same places
                return blocks, computed, place
            most = min(computed, most_shared(image, size))
            return manager.truncate_computed_blocks(blocks, most), most, place

        manager.get_computed_blocks = find_shared


class Scheduler(_TwoStreams, TheirScheduler):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """A step after another."""


class AsyncScheduler(_TwoStreams, TheirAsyncScheduler):  # type: ignore[misc]
    """A step is scheduled while the one before it runs."""
