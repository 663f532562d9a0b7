"""Tiny LLaVA-1.5 with weights in 4 or 8 bits, in the formats of published checkpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.vllm.models import write_llava

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4}
LINEAR = re.compile(r"language_model\..*_proj\.weight$")
GROUP = 32  # input rows that share a scale, AWQ
BLOCK = 128  # rows and columns that share a scale, FP8 in blocks
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of 4-bit columns within 32 bits, AWQ
LARGEST = torch.finfo(torch.float8_e4m3fn).max

Packed = dict[str, Tensor]  # of a matrix, by the ends of their names


def awq(weight: Tensor) -> Packed:
    """4 bits with a scale and a zero point for each group of inputs."""
    columns = weight.T.float()  # [in, out]
    groups = columns.unflatten(0, (-1, GROUP))  # [in / 32, 32, out]
    low = groups.amin(1)
    scales = ((groups.amax(1) - low) / 15).half()  # [in / 32, out]
    zeros = (-low / scales.float()).round().clamp(0, 15)
    rounded = (groups / scales.float()[:, None] + zeros[:, None]).round().clamp(0, 15)
    return {"qweight": _packed(rounded.flatten(0, 1)), "qzeros": _packed(zeros), "scales": scales}


def _packed(numbers: Tensor) -> Tensor:
    """Put eight numbers of 4 bits of a row into one of 32: `[I, O]` -> `[I, O / 8]`."""
    eights = numbers.long().unflatten(1, (-1, 8))[..., list(ORDER)]
    words = (eights << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(words < 2**31, words, words - 2**32).int()


def fp8_rows(weight: Tensor) -> Packed:
    """8 bits with a scale for each output, in the format of compressed-tensors."""
    scale = weight.float().abs().amax(1, keepdim=True) / LARGEST
    rounded = (weight.float() / scale).to(torch.float8_e4m3fn)
    return {"weight": rounded, "weight_scale": scale}


def fp8_blocks(weight: Tensor) -> Packed:
    """8 bits with a scale for each block."""
    blocks = weight.float().unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))  # [O / 128, 128, I / 128, 128]
    scale = blocks.abs().amax((1, 3)) / LARGEST  # [O / 128, I / 128]
    rounded = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
    return {"weight": rounded.flatten(2).flatten(0, 1), "weight_scale_inv": scale}


DYNAMIC = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
CHANNEL = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False}
LAYERS = {"targets": ["Linear"], "weights": CHANNEL, "input_activations": DYNAMIC, "output_activations": None}
# Of each format: what packs a matrix, and `quantization_config` in config.json.
FORMATS: dict[str, tuple[Callable[[Tensor], Packed], dict[str, Any]]] = {
    "AWQ": (
        awq,
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": GROUP,
            "version": "gemm",
            "zero_point": True,
            "modules_to_not_convert": ["vision_tower", "multi_modal_projector"],
        },
    ),
    "FP8, compressed-tensors": (
        fp8_rows,
        {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": LAYERS},
            "ignore": ["lm_head", "re:vision_tower.*", "re:multi_modal_projector.*"],
        },
    ),
    "FP8 in blocks": (
        fp8_blocks,
        {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
        },
    ),
}


def write(folder: Path, name: str) -> None:
    """Write a checkpoint of a format."""
    pack, config = FORMATS[name]
    write_llava(folder, torch.bfloat16, **SIZES)
    packed = {}
    kept = []
    for key, weight in load_file(folder / "model.safetensors").items():
        if not LINEAR.search(key):
            packed[key] = weight
            kept.append(key.removesuffix(".weight"))
            continue
        for end, tensor in pack(weight).items():
            packed[key.removesuffix("weight") + end] = tensor.contiguous()
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
    described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if name == "FP8 in blocks":
        config = config | {"modules_to_not_convert": kept}  # by whole names
    described["quantization_config"] = config
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
