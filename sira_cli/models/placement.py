"""Where a model is, and in how many bits: devices, precision, quantization, threads; matrices packed for a CPU."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import platform
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import BitsAndBytesConfig
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from sira_cli.core.families import text_stack
from sira_cli.errors import SettingsError
from sira_cli.models.sizes import BYTES

SHARE = 0.8  # of a GPU's free memory is for weights; caches and activations need the rest
INPUTS, OUTPUTS = 64, 32  # a 4-bit matrix has multiples of these where bitsandbytes packs it for AVX512-BF16
HALVES = (torch.bfloat16, torch.float16)
_log = logging.getLogger(__name__)


def devices_of(model: Any) -> list[torch.device]:
    """Return the devices of a model's weights, beginning with that of its inputs."""
    return sorted({weight.device for weight in model.parameters()}, key=lambda each: (each != model.device, str(each)))


def pick_device(name: str) -> str:
    """Return the device for `auto` or a torch name."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = [*(f"cuda:{number}" for number in range(gpus)), *["mps"] * torch.backends.mps.is_available(), "cpu"]
    if name == "auto":
        return known[0]
    if (device := "cuda:0" if name == "cuda" else name) not in known:
        raise SettingsError(f"device {name} does not exist here: expected auto, {', '.join(known)}")
    return device


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
    children = module.named_children()
    return [found for own, part in children for found in _beside_layers(part, layers, f"{name}.{own}".lstrip("."))]


def computes_in(dtype: torch.dtype) -> bool:
    """Return whether this processor has arithmetic for a 16-bit type, and yes if torch cannot determine it."""
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
    needed = packed or 2 * sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    free = psutil.virtual_memory().available
    numbers = f"float32 takes {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
    _log.info("this processor has no arithmetic for the checkpoint's %s; %s", own, numbers)
    return torch.float32 if needed <= free else "auto"


CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # variables by which a user chooses
SMALL = 50_000_000  # weights; with fewer, threads wait for each other longer than they work


def use_threads(model: Any) -> None:
    """Let torch use as many threads as suit a model on a CPU, at most one per physical core; a user's choice wins."""
    if model.device.type == "cpu" and not any(os.environ.get(name) for name in CHOSEN):
        own = torch.get_num_threads()
        small = sum(weight.numel() for weight in model.parameters()) < SMALL
        torch.set_num_threads(1 if small else min(own, psutil.cpu_count(logical=False) or own))


LARGEST = torch.finfo(torch.float16).max
ITEMSIZE = torch.float16.itemsize  # bytes of a packed number


class HalfLinear(nn.Module):
    """A linear layer with float32 arithmetic on a matrix in float16, by FBGEMM, which torch includes.

    A bfloat16 matrix loses nothing: float16 has more digits, down to 2^-14; below, the error is at most 2^-25. MKL's
    product with two rows reads the matrix twice, FBGEMM's once, and half the bytes. `weight` is the matrix until it is
    packed; then a tensor of its shape and precision without memory.
    """

    def __init__(self, original: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = original.in_features, original.out_features
        self.weight, self.bias = original.weight, original.bias

    def drop_weight(self) -> Tensor:
        """Return the matrix, and keep only its shape and precision."""
        weight = self.weight.data
        nothing = torch.full((1, 1), torch.nan, dtype=weight.dtype).expand_as(weight)
        kept: Any = nn.Parameter(nothing, requires_grad=False)
        kept._is_hf_initialized = True  # else transformers would fill it with random numbers
        self.weight = kept
        return weight

    def pack(self, weight: Tensor) -> None:
        """Pack the matrix `[out, in]`; one with numbers beyond float16 stays as it is."""
        self.packed: Any = weight
        if weight.abs().max() <= LARGEST:
            self.packed = torch.ops.quantized.linear_prepack_fp16(weight, None)

    def forward(self, rows: Tensor) -> Tensor:
        """Return `[..., out]`."""
        whole = isinstance(self.packed, Tensor)
        found: Tensor = (linear if whole else torch.ops.quantized.linear_dynamic_fp16)(rows, self.packed)
        return found if self.bias is None else found.add_(self.bias)


class Packing(ConversionOps):
    """Replaces a model's linear layers by packed ones, in threads, one per core, while more are read."""

    def __init__(self, model: Any) -> None:
        self._model = model
        for path, part in list(model.named_modules()):
            if type(part) is nn.Linear:  # the forward of a subclass may differ
                parent, _, name = path.rpartition(".")
                setattr(model.get_submodule(parent), name, HalfLinear(part))
        cores = psutil.cpu_count(logical=False) or 1  # a packing is single-threaded in torch
        self._threads = ThreadPoolExecutor(cores, "sira-pack")
        self._places = Semaphore(cores + 1)  # matrices that wait take memory
        self._begun: dict[HalfLinear, Future[None]] = {}

    def add(self, layer: HalfLinear, weight: Tensor) -> None:
        """Begin to pack a layer; wait first if all threads have work."""
        self._places.acquire()
        self._begun[layer] = self._threads.submit(layer.pack, weight)
        self._begun[layer].add_done_callback(lambda _: self._places.release())

    def convert(self, input_dict: dict[str, Any], *args: Any, **options: Any) -> dict[str, Any]:
        """Begin to pack matrices that `from_pretrained` has read."""
        for name, read in input_dict.items():
            weight: Tensor = read[0] if isinstance(read, list) else read
            layer = self._model.get_submodule(name.rpartition(".")[0])
            if weight.shape != layer.drop_weight().shape:
                raise ValueError(f"{name} has shape {list(weight.shape)}; expected {list(layer.weight.shape)}")
            self.add(layer, weight)
            options["missing_keys"].discard(name)
        return {}

    def finish(self) -> None:
        """Pack the remaining matrices, such as a tied output matrix, and wait for all."""
        embeddings = self._model.get_input_embeddings().weight
        for layer in self._model.modules():
            if isinstance(layer, HalfLinear) and layer not in self._begun:
                self.add(layer, layer.weight.data if layer.weight is embeddings else layer.drop_weight())
        self._threads.shutdown()
        for each in self._begun.values():
            each.result()


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether matrices can be packed: in float32, on a CPU for which torch has FBGEMM (not on ARM)."""
    return (dtype, device.type) == (torch.float32, "cpu") and torch.backends.quantized.engine in ("x86", "fbgemm")


def packed_bytes(model: Any) -> int:
    """Return the size of a model's weights with packed matrices, the others in float32."""
    packed, embeddings = matrices(model), model.get_input_embeddings().weight
    tied = any(part.weight is embeddings for part in packed)  # as matrix and as table
    return weight_bytes(model, torch.float32, packed, ITEMSIZE) + 4 * int(embeddings.numel()) * tied


NAME = "sira-packed"


@register_quantization_config(NAME)
class PackedConfig(QuantizationConfigMixin):
    """The quantization config of packed models, for `from_pretrained`."""

    def __init__(self) -> None:
        self.quant_method: Any = NAME


@register_quantizer(NAME)
class _PackedReader(HfQuantizer):
    """Packs each matrix as soon as it is read, so that no second copy of all weights is in memory."""

    def _process_model_before_weight_loading(self, model: Any, **options: Any) -> None:
        self._packing = Packing(model)

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> Any:
        self._packing.finish()
        del self._packing  # threads cannot be copied with the model
        return model

    def param_needs_quantization(self, model: Any, param_name: str, **options: Any) -> bool:
        path, _, name = param_name.rpartition(".")
        return name == "weight" and isinstance(model.get_submodule(path), HalfLinear)

    def get_quantize_ops(self) -> ConversionOps:
        return self._packing

    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False
