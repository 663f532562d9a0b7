"""Matrices in float16 for float32 arithmetic on a CPU, by FBGEMM: half the bytes to read, packed while they load."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Semaphore
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from sira_cli.models.placement import matrices, weight_bytes

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
        self.in_features = original.in_features
        self.out_features = original.out_features
        self.weight = original.weight
        self.bias = original.bias

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
        multiply = linear if whole else torch.ops.quantized.linear_dynamic_fp16
        products: Tensor = multiply(rows, self.packed)
        return products if self.bias is None else products.add_(self.bias)


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
        for packing in self._begun.values():
            packing.result()


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether matrices can be packed: in float32, on a CPU for which torch has FBGEMM (not on ARM)."""
    return (dtype, device.type) == (torch.float32, "cpu") and torch.backends.quantized.engine in ("x86", "fbgemm")


def packed_bytes(model: Any) -> int:
    """Return the size of a model's weights with packed matrices, the others in float32."""
    packed = matrices(model)
    embeddings = model.get_input_embeddings().weight
    size = weight_bytes(model, torch.float32, packed, ITEMSIZE)
    if any(part.weight is embeddings for part in packed):  # in memory as packed matrix and as table
        size += 4 * int(embeddings.numel())
    return size


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
