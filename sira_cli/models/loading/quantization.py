"""Weights of the decoder layers in 8 or 4 bits, by bitsandbytes.

The vision tower and projector are small, and suffer most from coarse numbers; bitsandbytes does not reach the output
matrix, whose logits are contrasted.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig

from sira_cli.core.families import text_stack
from sira_cli.errors import SettingsError

LEAST_SHARE = 0.5  # minimum share of the decoder layers' weights that a quantization must reach to be useful
BYTES = {"8bit": 1.0, "4bit": 0.5}  # of a weight in the decoder layers
INPUTS, OUTPUTS = 64, 32  # a 4-bit matrix has multiples of these where bitsandbytes packs it for AVX512-BF16


def check_quantization(name: str | None) -> None:
    """Check that bitsandbytes is installed for a quantization."""
    if name is not None and importlib.util.find_spec("bitsandbytes") is None:
        raise SettingsError(f"quantization {name} needs bitsandbytes: pip install 'sira-cli[quant]'")


def quantization_config(name: str, model: Any, device: str) -> BitsAndBytesConfig:
    """Return the config of a quantization for transformers."""
    if model is None:
        raise SettingsError(
            "quantization needs the language model's layers, which are not known, because the checkpoint's own code "
            "makes this model: leave out `quantization=`"
        )
    if getattr(model.config, "quantization_config", None) is not None:
        raise SettingsError("the weights in this checkpoint are quantized: leave out `quantization=`")
    layers = text_stack(model).layers
    matrices = [part for part in layers.modules() if type(part) is nn.Linear]
    reached = sum(part.weight.numel() for part in matrices)
    weights = sum(weight.numel() for weight in layers.parameters())
    if reached < LEAST_SHARE * weights:
        raise SettingsError(
            f"quantization reaches {reached / weights:.0%} of the weights of {type(model).__name__}: the others are "
            "experts, which are not quantized. Leave out `quantization=`, or use a smaller model"
        )
    if name == "4bit" and device == "cpu":
        _check_packing(matrices)
    return BitsAndBytesConfig(
        load_in_4bit=name == "4bit",
        load_in_8bit=name == "8bit",
        llm_int8_skip_modules=_beside_layers(model, layers),
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=True,
    )


def _check_packing(matrices: list[nn.Linear]) -> None:
    """Refuse matrices that bitsandbytes quantizes, but fails to multiply on a CPU with AVX512-BF16."""
    native: Any = importlib.import_module("bitsandbytes.functional")  # without types
    odd = [part for part in matrices if part.in_features % INPUTS or part.out_features % OUTPUTS]
    if odd and native.has_avx512bf16():
        raise SettingsError(
            f"on this processor bitsandbytes multiplies 4-bit matrices with multiples of {INPUTS} inputs and {OUTPUTS} "
            f"outputs; this model has one with {odd[0].in_features} and {odd[0].out_features}: give `quantization=` "
            "8bit, or leave it out"
        )


def _beside_layers(module: nn.Module, layers: nn.Module, name: str = "") -> list[str]:
    """Return the names of the largest parts with matrices that contain no decoder layers."""
    if module is layers:
        return []
    if all(part is not layers for part in module.modules()):
        return [name] if any(isinstance(part, nn.Linear) for part in module.modules()) else []
    children = module.named_children()
    return [found for own, part in children for found in _beside_layers(part, layers, f"{name}.{own}".lstrip("."))]
