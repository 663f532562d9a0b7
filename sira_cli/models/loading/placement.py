"""The placement of a model: on one device, or with `auto` on several GPUs if one is too small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sira_cli.core.families import text_stack
from sira_cli.errors import SettingsError
from sira_cli.models.loading.quantization import BYTES

SHARE = 0.8  # of a GPU's free memory is for weights; caches and activations need the rest


def devices_of(model: Any) -> list[torch.device]:
    """Return the devices of a model's weights, beginning with that of its inputs."""
    return sorted({weight.device for weight in model.parameters()}, key=lambda each: (each != model.device, str(each)))


def pick_device(name: str) -> str:
    """Return the device for `auto` or a torch name."""
    if name == "auto":
        if torch.cuda.is_available():
            return "cuda:0"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingsError(f"no device named {name!r}; expected auto, cpu, cuda, cuda:1 or mps") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise SettingsError(f"device {name} is not supported; expected auto, cpu, cuda, cuda:1 or mps")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SettingsError(f"device {name} does not exist: torch sees {torch.cuda.device_count()} CUDA devices")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise SettingsError("device mps does not exist: it needs a Mac with Apple silicon")
    return name if name != "cuda" else "cuda:0"


def place(device: str, model: Any, dtype: torch.dtype | None, quantization: str | None) -> dict[str, Any]:
    """Return the options of `from_pretrained` that place a model."""
    one = pick_device(device)
    unknown = model is None or getattr(model.config, "quantization_config", None) is not None
    if device != "auto" or unknown or one != "cuda:0" or torch.cuda.device_count() == 1:
        return {"device_map": one}
    free = [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())]
    return share_out(weight_bytes(model, dtype, quantization), free)


def share_out(needed: int, free: Sequence[int]) -> dict[str, Any]:
    """Return the options of `from_pretrained` for a model of `needed` bytes on GPUs with `free` bytes."""
    if needed <= SHARE * free[0]:
        return {"device_map": "cuda:0"}
    if needed > SHARE * sum(free):
        raise SettingsError(
            f"the weights take {needed / 1e9:.1f} GB, more than {SHARE:.0%} of the {sum(free) / 1e9:.1f} GB that are "
            f"free on {len(free)} GPUs: give `quantization=` 4bit, or use a smaller model"
        )
    return {"device_map": "auto", "max_memory": dict(enumerate(free))}  # the CPU is not among them


def weight_bytes(model: Any, dtype: torch.dtype | None, quantization: str | None) -> int:
    """Return the size of a model's weights in memory; arguments as for `place`."""
    fewer: dict[int, float] = {}
    if quantization is not None:
        for part in text_stack(model).layers.modules():
            if type(part) is nn.Linear:
                fewer[id(part.weight)] = BYTES[quantization]

    def each(weight: nn.Parameter) -> float:
        return fewer.get(id(weight), (dtype or weight.dtype).itemsize)

    return int(sum(weight.numel() * each(weight) for weight in model.parameters()))
