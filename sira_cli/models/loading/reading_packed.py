"""Packing of matrices one by one while transformers reads them, by its interface for quantization."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from sira_cli.models.loading.packed import HalfLinear, Packing, pack_rest, put_packed

NAME = "sira-packed"


@register_quantization_config(NAME)
class PackedConfig(QuantizationConfigMixin):
    """The quantization config of packed models, for `from_pretrained`."""

    def __init__(self) -> None:
        self.quant_method: Any = NAME


@register_quantizer(NAME)
class PackedReader(HfQuantizer):
    """Packs each matrix as soon as it is read, so that no second copy of all weights is in memory."""

    def __init__(self, quantization_config: PackedConfig, **options: Any) -> None:
        super().__init__(quantization_config, **options)
        self._packing: Packing | None = None

    def _process_model_before_weight_loading(self, model: Any, **options: Any) -> None:
        self._packing = Packing()
        put_packed(model)

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> Any:
        assert self._packing is not None
        pack_rest(model, self._packing)
        self._packing = None  # threads cannot be copied with the model
        return model

    def param_needs_quantization(self, model: Any, param_name: str, **options: Any) -> bool:
        """Return whether the parameter is a matrix to pack."""
        path, _, name = param_name.rpartition(".")
        return name == "weight" and isinstance(model.get_submodule(path), HalfLinear)

    def get_quantize_ops(self) -> ConversionOps:
        """Return the operation on each matrix."""
        assert self._packing is not None
        return _Pack(self._packing)

    def is_serializable(self) -> bool:
        """Return whether the model can be saved."""
        return False

    @property
    def is_trainable(self) -> bool:
        """Whether it can be trained."""
        return False


class _Pack(ConversionOps):
    def __init__(self, packing: Packing) -> None:
        self._packing = packing

    def convert(self, input_dict: dict[str, Any], *args: Any, **options: Any) -> dict[str, Any]:
        model, missing = options["model"], options["missing_keys"]
        for name, read in input_dict.items():
            weight: Tensor = read[0] if isinstance(read, list) else read
            layer = model.get_submodule(name.rpartition(".")[0])
            if weight.shape != layer.weight.shape:
                raise ValueError(f"{name} has shape {list(weight.shape)}; expected {list(layer.weight.shape)}")
            layer.drop_weight()
            self._packing.add(layer, weight)
            missing.discard(name)
        return {}
