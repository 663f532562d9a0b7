"""Weights of the decoder layers in 4 or 8 bits: on CPUs by kernels of torch, elsewhere by bitsandbytes.

The vision tower and projector are small, and suffer most from coarse numbers. bitsandbytes does not reach the output
matrix, whose logits are contrasted; on CPUs it has 8 bits.
"""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig

from sira_cli.core.families import text_stack
from sira_cli.errors import SettingsError
from sira_cli.models.loading.few_bits import columns_together
from sira_cli.models.loading.reading_packed import PackedConfig

LEAST_SHARE = 0.5  # minimum share of the decoder layers' weights that a quantization must reach to be useful
BITSANDBYTES, TORCH = ("8bit", "4bit"), ("int8", "int4")  # names, the one with the most bits first


def check_quantization(name: str | None, device: str) -> None:
    """Check the name of a quantization, and that the device and the installed packages can do it.

    Args:
        name: of the quantization.
        device: as `pick_device` returns it.

    Raises:
        SettingsError: the quantization does not exist here.
    """
    if name is None:
        return
    if name in TORCH:
        if torch.device(device).type != "cpu":
            raise SettingsError(f"quantization {name} is for CPUs: on {device} give 4bit or 8bit")
        if name == "int4" and columns_together() is None:
            raise SettingsError("torch has no fast product with 4 bits for this processor: give int8")
        return
    if name not in BITSANDBYTES:
        raise SettingsError(f"no quantization named {name!r}; expected int8 or int4 (CPUs), 8bit or 4bit")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise SettingsError(f"quantization {name} needs bitsandbytes: pip install 'sira-cli[quant]'; on CPUs give int4")


def usable_quantizations(device: str) -> list[str]:
    """Return the fast quantizations on a device (`pick_device`), the one with the most bits first."""
    found = []
    for name in TORCH if torch.device(device).type == "cpu" else BITSANDBYTES:
        with suppress(SettingsError):
            check_quantization(name, device)
            found.append(name)
    return found


def quantization_config(name: str, model: Any) -> BitsAndBytesConfig | PackedConfig:
    """Return the config of a quantization for transformers.

    Args:
        name: `int8` or `int4` (see `few_bits`), `4bit` (QLoRA's: normal floats, computed in bfloat16, their constants
            quantized again; Dettmers et al. 2023, arXiv:2305.14314) or `8bit` (LLM.int8(); Dettmers et al. 2022,
            arXiv:2208.07339).
        model: the model, possibly without its weights; None: it cannot be built without them.

    Raises:
        SettingsError: its structure is not known, its checkpoint is quantized, or most weights are experts, which are
            not quantized.
    """
    if model is None:
        raise SettingsError(
            "quantization needs the language model's layers, which are not known, because the checkpoint's own code "
            "makes this model: leave out `quantization=`"
        )
    if getattr(model.config, "quantization_config", None) is not None:
        raise SettingsError("the weights in this checkpoint are quantized: leave out `quantization=`")
    layers = text_stack(model).layers
    reached = sum(part.weight.numel() for part in layers.modules() if type(part) is nn.Linear)
    weights = sum(weight.numel() for weight in layers.parameters())
    if reached < LEAST_SHARE * weights:
        raise SettingsError(
            f"quantization reaches {reached / weights:.0%} of the weights of {type(model).__name__}: the others are "
            "experts, which are not quantized. Leave out `quantization=`, or use a smaller model"
        )
    if name in TORCH:
        return PackedConfig(name)
    return BitsAndBytesConfig(
        load_in_4bit=name == "4bit",
        load_in_8bit=name == "8bit",
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
    children = module.named_children()
    return [found for own, part in children for found in _beside_layers(part, layers, f"{name}.{own}".lstrip("."))]
