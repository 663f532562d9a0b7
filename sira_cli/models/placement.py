"""Where a model is, and in how many bits: devices, precision, quantization, threads."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import platform
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn
from transformers import BitsAndBytesConfig

from sira_cli.core.families import text_stack
from sira_cli.errors import SettingsError, install
from sira_cli.models.sizes import BYTES, LEAST_SHARE

SHARE = 0.8  # of a GPU's free memory is for weights; caches and activations need the rest
INPUTS, OUTPUTS = 64, 32  # a 4-bit matrix has multiples of these where bitsandbytes packs it for AVX512-BF16
HALVES = (torch.bfloat16, torch.float16)
_log = logging.getLogger(__name__)


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
    """Return the options of `from_pretrained` that place a model: on several GPUs where the first is too small."""
    one = pick_device(device)
    unknown = model is None or getattr(model.config, "quantization_config", None) is not None
    if device != "auto" or unknown or one != "cuda:0" or torch.cuda.device_count() == 1:
        return {"device_map": one}
    free = [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())]
    fewer = matrices(text_stack(model).layers) if quantization is not None else []
    needed = weight_bytes(model, dtype, fewer, BYTES.get(quantization or "", 0))
    if needed <= SHARE * free[0]:
        return {"device_map": one}
    if needed > SHARE * sum(free):
        raise SettingsError(
            f"the weights take {needed / 1e9:.1f} GB, more than {SHARE:.0%} of the {sum(free) / 1e9:.1f} GB that are "
            f"free on {len(free)} GPUs: give `quantization=` 4bit, or use a smaller model"
        )
    return {"device_map": "auto", "max_memory": dict(enumerate(free))}  # the CPU is not among them


def matrices(part: nn.Module) -> list[nn.Linear]:
    """Return the plain linear layers; the forward of a subclass may differ."""
    return [module for module in part.modules() if type(module) is nn.Linear]


def weight_bytes(model: Any, dtype: torch.dtype | None, others: list[nn.Linear], bytes_each: float) -> int:
    """Return the size of a model's weights in memory; some matrices take other bytes per number."""
    fewer = {id(part.weight) for part in others}
    each = ((id(weight) in fewer, weight) for weight in model.parameters())
    return int(sum(w.numel() * (bytes_each if other else (dtype or w.dtype).itemsize) for other, w in each))


def check_quantization(name: str | None) -> None:
    """Check that bitsandbytes is installed for a quantization."""
    if name is not None and importlib.util.find_spec("bitsandbytes") is None:
        raise SettingsError(f"quantization {name} needs bitsandbytes: {install('quant')}")


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
    reached = sum(part.weight.numel() for part in matrices(layers)) / sum(each.numel() for each in layers.parameters())
    if reached < LEAST_SHARE:
        raise SettingsError(
            f"quantization reaches {reached:.0%} of the weights of {type(model).__name__}: the others are "
            "experts, which are not quantized. Leave out `quantization=`, or use a smaller model"
        )
    odd = [part for part in matrices(layers) if part.in_features % INPUTS or part.out_features % OUTPUTS]
    on_cpu = name == "4bit" and device == "cpu"
    if odd and on_cpu and importlib.import_module("bitsandbytes.functional").has_avx512bf16():
        raise SettingsError(
            f"on this processor bitsandbytes multiplies 4-bit matrices with multiples of {INPUTS} inputs and {OUTPUTS} "
            f"outputs; this model has one with {odd[0].in_features} and {odd[0].out_features}: give `quantization=` "
            "8bit, or leave it out"
        )
    in_4bit = {"quant_type": "nf4", "compute_dtype": torch.bfloat16, "use_double_quant": True}
    return BitsAndBytesConfig(
        **{f"load_in_{name}": True, "llm_int8_skip_modules": _beside_layers(model, layers)},
        **{f"bnb_4bit_{key}": value for key, value in in_4bit.items()},
    )


def _beside_layers(module: nn.Module, layers: nn.Module, name: str = "") -> list[str]:
    """Return the names of the largest parts with matrices that contain no decoder layers."""
    if module is layers:
        return []
    if all(part is not layers for part in module.modules()):
        return [name] if any(isinstance(part, nn.Linear) for part in module.modules()) else []
    children = module.named_children()
    return [found for own, part in children for found in _beside_layers(part, layers, f"{name}.{own}".lstrip("."))]


def computes_in(dtype: torch.dtype) -> bool:
    """Return whether this processor has arithmetic for a 16-bit type. Without it every number is converted first.

    If torch cannot determine it, as without oneDNN, the answer is yes.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call] # not annotated upstream
        return True
    if dtype == torch.bfloat16:
        if platform.machine().lower() in ("x86_64", "amd64"):  # torch's answer includes processors that only convert
            return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def on_processor(own: torch.dtype | None, folder: Path, packed: int | None = None) -> torch.dtype | str:
    """Return the precision of `auto` for a model on the CPU; `packed`: its bytes if matrices can be packed."""
    if own not in HALVES or computes_in(own):
        return "auto"
    name = str(own).removeprefix("torch.")
    needed = packed or 2 * sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    free = psutil.virtual_memory().available
    if needed > free:
        too_large = f"float32 would take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        _log.info("%s, though this processor has no arithmetic for it: %s", name, too_large)
        return "auto"
    _log.info("float32 instead of the checkpoint's %s, for which this processor has no arithmetic", name)
    return torch.float32


CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # variables by which a user chooses
SMALL = 50_000_000  # weights; with fewer, threads wait for each other longer than they work


def use_threads(model: Any) -> None:
    """Let torch use as many threads as suit a model on a CPU, at most one per physical core; a user's choice wins."""
    if model.device.type == "cpu" and not any(os.environ.get(name) for name in CHOSEN):
        own = torch.get_num_threads()
        small = sum(weight.numel() for weight in model.parameters()) < SMALL
        torch.set_num_threads(1 if small else min(own, psutil.cpu_count(logical=False) or own))
