"""Quantized weights by bitsandbytes: which matrices, and what cannot be quantized."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig

from sira_cli.core.families import text_stack
from sira_cli.errors import SettingsError
from sira_cli.models.placement import matrices

INPUTS = 64  # a 4-bit matrix has multiples of these where bitsandbytes packs it for AVX512-BF16
OUTPUTS = 32


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
