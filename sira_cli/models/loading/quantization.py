"""Weights in 4 or 8 bits, by bitsandbytes, in the decoder layers only.

The vision tower and projector are small, and suffer most from coarse numbers; the output matrix is not quantized,
because its logits are contrasted.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig

from sira_cli.core.families import text_stack
from sira_cli.errors import SettingsError

LEAST_SHARE = 0.5  # minimum share of the decoder layers' weights that bitsandbytes must reach to be useful


def check_quantization(name: str | None) -> None:
    """Check the name of a quantization, and that bitsandbytes is installed.

    Raises:
        SettingsError: the name is not `4bit` or `8bit`, or bitsandbytes is not installed.
    """
    if name is None:
        return
    if name not in ("4bit", "8bit"):
        raise SettingsError(f"no quantization named {name!r}; expected 4bit or 8bit")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise SettingsError("quantization needs bitsandbytes: pip install 'sira-cli[quant]'")


def quantization_config(name: str, model: Any) -> BitsAndBytesConfig:
    """Return the config of a quantization for transformers.

    Args:
        name: `4bit` (QLoRA's: normal floats, computed in bfloat16, their constants quantized again; Dettmers et al.
            2023, arXiv:2305.14314) or `8bit` (LLM.int8(); Dettmers et al. 2022, arXiv:2208.07339).
        model: the model, possibly without its weights; None: it cannot be built without them.

    Raises:
        SettingsError: its structure is not known, or most weights are experts, which bitsandbytes does not quantize.
    """
    if model is None:
        raise SettingsError(
            "quantization needs the language model's layers, which are not known, because the checkpoint's own code "
            "makes this model: leave out `quantization=`"
        )
    layers = text_stack(model).layers
    reached = sum(part.weight.numel() for part in layers.modules() if type(part) is nn.Linear)
    weights = sum(weight.numel() for weight in layers.parameters())
    if reached < LEAST_SHARE * weights:
        raise SettingsError(
            f"quantization reaches {reached / weights:.0%} of the weights of {type(model).__name__}: the others are "
            "experts, which bitsandbytes does not quantize. Leave out `quantization=`, or use a smaller model"
        )
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
