"""Packing of matrices one by one while transformers reads them, by its interface for quantization."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from sira_cli.models.loading.few_bits import FewBitsLinear, kinds, share_table
from sira_cli.models.loading.kept_weights import keep, origin_of, path_of, restore
from sira_cli.models.loading.packed import PackedLinear, Packing, pack_rest, put_packed

NAME = "sira-packed"


@register_quantization_config(NAME)
class PackedConfig(QuantizationConfigMixin):
    """The quantization config of packed models, for `from_pretrained`.

    Args:
        quantization, half: as for `kinds`.
        folder: of the checkpoint, whose quantized matrices are kept in the cache; None: they are not.
        stored: the checkpoint's precision.
    """

    def __init__(
        self,
        quantization: str | None = None,
        *,
        half: bool = True,
        folder: str | None = None,
        stored: str | None = None,
    ) -> None:
        self.quant_method: Any = NAME
        self.quantization, self.half, self.folder, self.stored = quantization, half, folder, stored


@register_quantizer(NAME)
class PackedReader(HfQuantizer):
    """Packs each matrix as soon as it is read, so that no second copy of all weights is in memory."""

    def __init__(self, quantization_config: PackedConfig, **options: Any) -> None:
        super().__init__(quantization_config, **options)
        self._packing: Packing | None = None
        self._restored: list[FewBitsLinear] = []
        self._cached: tuple[Path, str] | None = None

    def _process_model_before_weight_loading(self, model: Any, **options: Any) -> None:
        self._packing = Packing()
        how: Any = self.quantization_config
        self._dtype = model.dtype
        put_packed(model, kinds(model, how.quantization, half=how.half))
        if how.quantization is None or how.folder is None:
            return
        self._cached = path_of(Path(how.folder), how.quantization, self._dtype), origin_of(Path(how.folder))
        self._restored = restore(model, *self._cached)
        for layer in self._restored:
            self._packing.skip(layer)
            # In the checkpoint's own precision a matrix is mapped into memory, and not read.
            unread = torch.empty_like(layer.weight, dtype=getattr(torch, how.stored), device="meta")
            layer.weight = nn.Parameter(unread, requires_grad=False)
        if any(model.get_submodule(name.rpartition(".")[0]) in self._restored for name in model.all_tied_weights_keys):
            model.get_input_embeddings().weight = model.get_output_embeddings().weight

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> Any:
        assert self._packing is not None
        table = model.get_input_embeddings().weight
        for layer in self._restored:
            if layer.weight is not table:
                layer.drop_weight(self._dtype)
        pack_rest(model, self._packing)
        share_table(model, self._dtype)
        if self._cached is not None and not self._restored:
            keep(model, *self._cached)
        self._packing = None  # threads cannot be copied with the model
        self._restored = []
        return model

    def param_needs_quantization(self, model: Any, param_name: str, **options: Any) -> bool:
        """Return whether the parameter is a matrix to pack."""
        path, _, name = param_name.rpartition(".")
        assert self._packing is not None
        layer = model.get_submodule(path)
        return name == "weight" and isinstance(layer, PackedLinear) and layer not in self._packing

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
