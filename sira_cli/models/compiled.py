"""Decoding steps as one compiled graph: `load(..., compile=True)`.

Transformers compiles the decoding step of a static cache, hooks included; the prompt's pass stays as it is. What is
left to do is to give it the same cache again and again, for a cache of another size is a new graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from transformers import CompileConfig

from sira_cli.core.families import check_static_cache
from sira_cli.core.static_cache import ReusedCache
from sira_cli.errors import SettingsError

CACHE_ROWS = 256  # caches have a multiple of as many rows, so that prompts share a graph


class CompiledSteps:
    """What `generate` needs so that its decoding steps are compiled.

    Args:
        model: a Hugging Face LVLM.

    Raises:
        SettingsError: it cannot be compiled on its device or with its quantization.
        UnsupportedModelError: transformers has no static caches for it.
    """

    def __init__(self, model: Any) -> None:
        check_static_cache(model)
        if model.device.type not in ("cpu", "cuda"):
            raise SettingsError(f"compile needs device cpu or cuda, not {model.device.type}")
        quantizer = getattr(model, "hf_quantizer", None)
        if quantizer is not None and not quantizer.is_compileable:
            raise SettingsError("compile does not go with this quantization: leave out one of them")
        self._model = model
        # Inductor, with CUDA graphs where there is CUDA; not for sliding windows, whose rows transformers counts in
        # Python: each count would be a CUDA graph of its own.
        kinds = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
        self._config = CompileConfig(mode="default") if "sliding_attention" in kinds else CompileConfig()
        self._config._compile_all_devices = True  # type: ignore[assignment] # annotated as None upstream
        self._cache: ReusedCache | None = None
        self._batch = self._rows = 0

    def arguments(self, batch: int, prompt: int, new_tokens: int) -> dict[str, Any]:
        """For `generate`: an empty cache with room for a batch of prompts and texts, and that it is to be compiled.

        The cache is kept while the batch size is, and may only grow: a longer one serves shorter prompts too.
        """
        needed = prompt + new_tokens
        if self._cache is None or self._batch != batch or self._rows < needed or self._cache.new_tokens < new_tokens:
            self._cache = None  # its memory first
            self._batch, self._rows = batch, math.ceil(needed / CACHE_ROWS) * CACHE_ROWS
            self._cache = ReusedCache(self._model.config, self._rows, new_tokens)
        self._cache.reset()  # type: ignore[no-untyped-call] # not annotated upstream
        return {"past_key_values": self._cache, "compile_config": self._config}


@contextmanager
def compiler_errors(decoder: AbstractContextManager[Any]) -> Iterator[Any]:
    """The context `decoder`, with what the compiler has against this machine or model as an error in the settings."""
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    try:
        with decoder as decoding:
            yield decoding
    except TorchDynamoException as error:
        cause = getattr(error, "inner_exception", error)
        if isinstance(cause, torch.OutOfMemoryError):
            raise cause from error
        reason = next((line for line in map(str.strip, str(error).splitlines()) if line), type(error).__name__)
        advice = "leave out compile"
        if isinstance(cause, InvalidCxxCompiler | CppCompileError):
            advice = f"torch.compile needs a C++ compiler such as g++; install one, or {advice}"
        raise SettingsError(f"the decoding step cannot be compiled here ({reason}): {advice}") from error
