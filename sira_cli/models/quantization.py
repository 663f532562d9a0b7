"""Quantized weights: by bitsandbytes, which matrices; and those of checkpoints that are stored so."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig
from transformers.quantizers.auto import AutoHfQuantizer

from sira_cli.core.families import text_stack
from sira_cli.errors import SettingsError, UnsupportedModelError
from sira_cli.models.placement import matrices

INPUTS = 64  # a 4-bit matrix has multiples of these where bitsandbytes packs it for AVX512-BF16
OUTPUTS = 32
# Of checkpoints with quantized weights, by `quant_method` in config.json. What transformers decodes to 16 bits is exact
# on every device; kept in 8 bits, FP8 needs kernels that it downloads, and compressed-tensors takes `ignore` literally.
DECODED = ("fp8", "compressed-tensors")
BY_VLLM = ("awq", "compressed-tensors")


def quantization_config(name: str, model: Any, device: str) -> BitsAndBytesConfig:
    """Return the config of a quantization for transformers."""
    if model is None:
        raise SettingsError("the checkpoint's own code makes this model, of unknown layers: leave out `quantization=`")
    if getattr(model.config, "quantization_config", None) is not None:
        raise SettingsError("the weights in this checkpoint are quantized: leave out `quantization=`")
    layers = text_stack(model).layers
    odd = any(part.in_features % INPUTS or part.out_features % OUTPUTS for part in matrices(layers))
    on_cpu = name == "4bit" and device == "cpu"
    if odd and on_cpu and importlib.import_module("bitsandbytes.functional").has_avx512bf16():
        raise SettingsError(
            f"on this processor bitsandbytes multiplies 4-bit matrices with multiples of {INPUTS} inputs and {OUTPUTS} "
            "outputs, and this model has others: give `quantization=` 8bit, or leave it out"
        )
    return BitsAndBytesConfig(
        **{f"load_in_{name}": True},
        llm_int8_skip_modules=_beside_layers(model, layers),
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=True,
    )


def check_stored(name: str, config: Any, device: str) -> None:
    """Check that the weights of a checkpoint can be read here, if they are quantized.

    Args:
        name: the model's, for messages.
        config: the model's.
        device: where the weights go.
    """
    stored = stored_quantization(config)
    if stored is None:
        return
    kind = stored.get("quant_method")
    try:
        AutoHfQuantizer.from_config(stored, pre_quantized=True).validate_environment(device_map=device)
    except (ImportError, RuntimeError, ValueError) as error:
        reason = f"{error}".splitlines()[0].rstrip(".")
        way = "take the original model, with `quantization=` 4bit or 8bit"
        if kind in BY_VLLM:
            way += ", or `engine=` vllm, which reads these"
        message = f"{name}: its weights are quantized by {kind}, which cannot be read here: {reason}; or {way}"
        raise UnsupportedModelError(message) from error


def stored_quantization(config: Any) -> dict[str, Any] | None:
    """Return how a checkpoint's weights are quantized; those of DECODED are decoded while they are read."""
    stored = getattr(config, "quantization_config", None)
    if stored is None:
        return None
    stored = dict(stored if isinstance(stored, dict) else stored.to_dict())
    if stored.get("quant_method") in DECODED:
        stored["dequantize"] = True
    return stored


def _beside_layers(module: nn.Module, layers: nn.Module, name: str = "") -> list[str]:
    """Return the names of the largest parts with matrices that contain no decoder layers."""
    if module is layers:
        return []
    if all(part is not layers for part in module.modules()):
        return [name] if any(isinstance(part, nn.Linear) for part in module.modules()) else []
    names: list[str] = []
    for child, part in module.named_children():
        names += _beside_layers(part, layers, f"{name}.{child}" if name else child)
    return names
