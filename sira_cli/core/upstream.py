"""All private names of transformers that the package uses: an update may change them without notice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, cache_utils
from transformers.integrations.sdpa_attention import sdpa_attention_forward as sdpa_attention_forward

if hasattr(cache_utils, "DummyLayer"):
    DummyLayer = cache_utils.DummyLayer
else:  # until transformers 5.22, where layers that read another layer's keys have none in the cache

    class DummyLayer:  # type: ignore[no-redef]
        """A layer of a cache that holds nothing."""


def position_ids(model: Any, input_ids: Tensor, inputs: Mapping[str, Any]) -> Tensor:
    """Return the positions that `generate` gives left-padded prompts, `[B, S]`, or `[N, B, S]` for N axes."""
    positions: Tensor = model._prepare_position_ids_for_generation(input_ids, inputs)
    return positions


def next_inputs(model: Any, output: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model inputs of `generate` for the token after these: the mask and the like grow by one."""
    grown: dict[str, Any] = model._update_model_kwargs_for_generation(output, dict(inputs))
    return grown


def last_logits_only(model: Any, rows: int = 1) -> dict[str, int]:
    """Return the argument by which a model computes logits of the last rows only; empty if it has none."""
    return {"logits_to_keep": rows} if model._supports_logits_to_keep() else {}


def attention_of(config: Any) -> str:
    """Return the name of the attention function that modules with this config call."""
    name: str = config._attn_implementation
    return name


def set_attention(config: Any, name: str) -> None:
    """Make modules with this config use another attention function from their next call on."""
    config._attn_implementation = name


def end_and_pad(generation: GenerationConfig) -> tuple[list[int], Tensor | None]:
    """Return the end tokens and the padding token of the config that `generate` passes on."""
    config: Any = generation  # its attributes are not declared
    ends = config._eos_token_tensor
    return [] if ends is None else ends.tolist(), config._pad_token_tensor
