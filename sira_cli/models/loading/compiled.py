"""Decoding steps as one compiled graph: `load(..., compile=True)`.

Transformers compiles the decoding step of a static cache, hooks included, but not the pass over the prompt. This file
passes it the same cache each time: a cache of another size would need a new graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import CompileConfig

from sira_cli.core.families import check_static_cache
from sira_cli.core.static_cache import ReusedCache
from sira_cli.core.upstream import compile_everywhere
from sira_cli.errors import SettingsError

CACHE_ROWS = 256  # the rows of caches come in multiples of this, so that prompts share a graph


class CompiledSteps:
    """Arguments of `generate` for compiled decoding steps.

    Attributes:
        config: how steps are compiled.
        cache: the cache of the latest request; None before the first.

    Args:
        model: a Hugging Face LVLM.

    Raises:
        SettingsError: steps cannot be compiled on its device or with its quantization.
        UnsupportedModelError: transformers has no static caches for it.
    """

    def __init__(self, model: Any) -> None:
        if model.device.type not in ("cpu", "cuda"):
            raise SettingsError(f"compile needs device cpu or cuda, not {model.device.type}")
        quantizer = getattr(model, "hf_quantizer", None)
        if quantizer is not None and not quantizer.is_compileable:
            raise SettingsError("compile does not work with this quantization: leave out one of them")
        check_static_cache(model)
        self._model = model
        # Inductor, with CUDA graphs on CUDA; not for sliding windows, whose rows transformers counts in Python: each
        # count would need its own CUDA graph.
        kinds = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
        self.config = CompileConfig(mode="default") if "sliding_attention" in kinds else CompileConfig()
        compile_everywhere(self.config)
        self.cache: ReusedCache | None = None
        self._batch = self._rows = 0

    def arguments(self, batch: int, prompt: int, new_tokens: int) -> dict[str, Any]:
        """Return arguments of `generate`: an empty cache with room for prompts and texts, and how to compile.

        The cache is kept while the batch size stays the same, and only grows: a long one also serves short prompts.
        """
        needed = prompt + new_tokens
        if self.cache is None or self._batch != batch or self._rows < needed or self.cache.new_tokens < new_tokens:
            self.cache = None  # free its memory first
            self._batch, self._rows = batch, math.ceil(needed / CACHE_ROWS) * CACHE_ROWS
            self.cache = ReusedCache(self._model.config, self._rows, new_tokens)
        self.cache.reset()  # type: ignore[no-untyped-call] # not annotated upstream
        return {"past_key_values": self.cache, "compile_config": self.config}


@contextmanager
def compiler_errors() -> Iterator[None]:
    """Turn compiler errors inside the block into an error with advice.

    Raises:
        SettingsError: the decoding step cannot be compiled on this machine, or for this model.
    """
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    try:
        yield
    except TorchDynamoException as error:
        cause = getattr(error, "inner_exception", error)
        if isinstance(cause, torch.OutOfMemoryError):
            raise cause from error
        reason = next((line for line in map(str.strip, str(error).splitlines()) if line), type(error).__name__)
        advice = "leave out compile"
        if isinstance(cause, InvalidCxxCompiler | CppCompileError):
            advice = f"torch.compile needs a C++ compiler such as g++; install one, or {advice}"
        raise SettingsError(f"the decoding step cannot be compiled here ({reason}): {advice}") from error
