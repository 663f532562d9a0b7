"""The devices of a model: where its weights go, and whether they fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sira_cli.core.families import text_stack
from sira_cli.errors import SettingsError
from sira_cli.models.sizes import BYTES

SHARE = 0.8  # of a GPU's free memory is for weights; caches and activations need the rest


def devices_of(model: Any) -> list[torch.device]:
    """Return the devices of a model's weights, beginning with that of its inputs."""
    devices = {weight.device for weight in model.parameters()}
    return sorted(devices, key=lambda device: (device != model.device, str(device)))


def pick_device(name: str) -> str:
    """Return the device for `auto` or a torch name."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [f"cuda:{number}" for number in range(gpus)]
    if torch.backends.mps.is_available():
        devices.append("mps")
    devices.append("cpu")
    if name == "auto":
        return devices[0]
    device = "cuda:0" if name == "cuda" else name
    if device not in devices:
        raise SettingsError(f"device {name} does not exist here: expected auto, {', '.join(devices)}")
    return device


@dataclass(frozen=True)
class Placement:
    """Arguments of `from_pretrained`: a device, or `auto` for several GPUs, each with a maximum in bytes."""

    device_map: Any
    max_memory: dict[int, int] | None = None


def place(device: str, model: Any, dtype: torch.dtype | None, quantization: str | None) -> Placement:
    """Return the devices for a model: several GPUs where the first is too small.

    Args:
        device: `auto`, or a torch name, which is obeyed.
        model: the model without weights; None if it is unknown.
        dtype: the precision of its weights; None: the checkpoint's.
        quantization: `8bit` or `4bit`, of the matrices in its decoder layers.

    Raises:
        SettingsError: all GPUs together are too small.
    """
    picked = pick_device(device)
    unknown = model is None or getattr(model.config, "quantization_config", None) is not None
    if device != "auto" or unknown or picked != "cuda:0" or torch.cuda.device_count() == 1:
        return Placement(picked)
    free = [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())]
    fewer = matrices(text_stack(model).layers) if quantization is not None else []
    needed = weight_bytes(model, dtype, fewer, BYTES.get(quantization or "", 0))
    if needed <= SHARE * free[0]:
        return Placement(picked)
    if needed > SHARE * sum(free):
        raise SettingsError(
            f"the weights take {needed / 1e9:.1f} GB, more than {SHARE:.0%} of the {sum(free) / 1e9:.1f} GB that are "
            f"free on {len(free)} GPUs: give `quantization=` 4bit, or use a smaller model"
        )
    return Placement("auto", dict(enumerate(free)))  # the CPU is not among them


def matrices(part: nn.Module) -> list[nn.Linear]:
    """Return the plain linear layers; the forward of a subclass may differ."""
    return [module for module in part.modules() if type(module) is nn.Linear]


def weight_bytes(model: Any, dtype: torch.dtype | None, others: list[nn.Linear], bytes_each: float) -> int:
    """Return the size of a model's weights in memory; some matrices take other bytes per number."""
    fewer = {id(part.weight) for part in others}
    total = 0.0
    for weight in model.parameters():
        itemsize = bytes_each if id(weight) in fewer else (dtype or weight.dtype).itemsize
        total += weight.numel() * itemsize
    return int(total)
