"""Matrices in 8 or 4 bits on a CPU, by kernels of torch for few rows; many rows take them dequantized, part by part."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sira_cli.core.families import text_stack
from sira_cli.models.loading.packed import HalfLinear, KindOf, PackedLinear
from sira_cli.models.loading.precision import computes_in

PART = 2**22  # numbers that are dequantized at once: they stay in a processor's cache
BLOCKS = (64, 32)  # columns that torch's 4-bit kernels keep together, with AVX512 and with AVX2
COLUMNS = 16  # inputs that torch's 8-bit kernel takes at once
GROUP = 64  # weights with one scale in 4 bits


class FewBitsLinear(PackedLinear):
    """A linear layer whose matrix is quantized.

    Rows are rounded to bfloat16 for a kernel: with others torch's are not vectorized. Many rows are multiplied in their
    own precision, or in float32 if this processor does not compute in it.

    Attributes:
        exact: multiply in float32 with the numbers that the quantized ones stand for, in any number of rows.
    """

    few: int  # rows up to which the kernel is the faster way
    parts_of_matrix: tuple[str, ...]  # attributes that `pack` makes
    exact = False

    @abstractmethod
    def kernel(self, rows: Tensor) -> Tensor:
        """Multiply a few rows `[R, in]` in bfloat16."""

    @abstractmethod
    def parts(self, dtype: torch.dtype) -> Iterator[tuple[int, Tensor, Tensor | None]]:
        """Yield the matrix part by part.

        Returns:
            Each part's first output, its numbers `[in, N]`, and factors of its outputs `[N]`.
        """

    def product(self, rows: Tensor) -> Tensor:
        """Multiply `[..., in]` with the matrix."""
        flat = rows.reshape(-1, self.in_features)
        if len(flat) <= self.few and not self.exact:
            found = self.kernel(flat.to(torch.bfloat16).contiguous())
        else:
            found = self._many(flat)
        return found.view(*rows.shape[:-1], self.out_features).to(rows.dtype)

    def _many(self, rows: Tensor) -> Tensor:
        halved = rows.dtype != torch.float32 and _has_bfloat16() and not self.exact
        rows = rows.to(torch.bfloat16 if halved else torch.float32)
        found = rows.new_empty(len(rows), self.out_features)
        for start, part, factors in self.parts(rows.dtype):
            outputs = found[:, start : start + part.shape[1]]
            if factors is None:
                outputs.copy_(rows @ part)
            else:
                torch.mul(rows @ part, factors, out=outputs)
        return found


class Int8Linear(FewBitsLinear):
    """Whole numbers from -127 to 127, with a scale per output."""

    few = 12
    bytes_each = 1.0
    parts_of_matrix = ("numbers", "scales")

    @staticmethod
    def fits(layer: nn.Linear) -> bool:
        """Return whether the kernel can multiply a layer's matrix: others it reads beyond their end."""
        return layer.in_features % COLUMNS == 0

    def pack(self, weight: Tensor) -> None:
        """Quantize the matrix `[out, in]`."""
        self.numbers = torch.empty(weight.shape, dtype=torch.int8)
        self.scales = torch.empty(len(weight), dtype=torch.bfloat16)
        for start in range(0, len(weight), step := _step(weight.shape[1])):
            part = weight[start : start + step].to(torch.float32, copy=True)
            scales = part.abs().amax(dim=1).div_(127).clamp_(min=1e-30).bfloat16()
            self.scales[start : start + step] = scales
            self.numbers[start : start + step] = part.div_(scales[:, None]).round_().clamp_(-127, 127)

    def kernel(self, rows: Tensor) -> Tensor:
        """Multiply a few rows."""
        found: Tensor = torch.ops.aten._weight_int8pack_mm(rows, self.numbers, self.scales)
        return found

    def parts(self, dtype: torch.dtype) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the whole numbers, and their scales as factors."""
        for start in range(0, self.out_features, step := _step(self.in_features)):
            part, scales = self.numbers[start : start + step], self.scales[start : start + step]
            yield start, part.to(dtype).T, scales.to(dtype)


class Int4Linear(FewBitsLinear):
    """Numbers in 4 bits, with a scale and a zero for each `GROUP` of an output."""

    few = 40
    bytes_each = 0.5 + 4 / GROUP
    parts_of_matrix = ("packed", "constants")

    @staticmethod
    def fits(layer: nn.Linear) -> bool:
        """Return whether a layer's matrix has only whole groups and blocks."""
        return layer.in_features % GROUP == 0 and layer.out_features % max(BLOCKS) == 0

    def pack(self, weight: Tensor) -> None:
        """Quantize the matrix `[out, in]`."""
        outputs, inputs = weight.shape
        self.packed = torch.empty(outputs, inputs // 2, dtype=torch.uint8)
        self.constants = torch.empty(inputs // GROUP, outputs, 2, dtype=torch.bfloat16)  # scale and zero
        step = max(BLOCKS) * max(1, _step(inputs) // max(BLOCKS))
        for start in range(0, outputs, step):
            part = weight[start : start + step].to(torch.float32, copy=True).view(-1, inputs // GROUP, GROUP)
            low, high = part.aminmax(dim=2)
            scales = (high - low).div_(15).clamp_(min=1e-30).bfloat16()
            zeros = (low + 8 * scales.float()).bfloat16()  # of the number 8
            numbers = part.sub_(zeros[..., None]).div_(scales[..., None]).add_(8).round_().clamp_(0, 15)
            self.packed[start : start + step] = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
                numbers.view(-1, inputs).int(), 1
            )
            self.constants[:, start : start + step] = torch.stack([scales.T, zeros.T], dim=2)

    def kernel(self, rows: Tensor) -> Tensor:
        """Multiply a few rows."""
        found: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.packed, GROUP, self.constants)
        return found

    def parts(self, dtype: torch.dtype) -> Iterator[tuple[int, Tensor, None]]:
        """Yield dequantized numbers."""
        block = columns_together()
        assert block is not None
        step = block * max(1, _step(self.in_features) // block)
        for start in range(0, self.out_features, step):
            part = _unpacked(self.packed[start : start + step], block, dtype)
            scales, zeros = self.constants[:, start : start + step].float().unbind(2)  # [in / GROUP, N]
            zeros -= 8 * scales
            grouped = part.view(-1, GROUP, part.shape[1])
            torch.addcmul(zeros.to(dtype)[:, None], grouped, scales.to(dtype)[:, None], out=grouped)
            yield start, part, None


class Int8Table(nn.Embedding):
    """Embeddings that are the rows of an output matrix in 8 bits."""

    numbers: Tensor
    scales: Tensor

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """Return `[..., d]` of token ids."""
        found = self.numbers[input].to(self.weight.dtype)
        return found.mul_(self.scales[input, None].to(found.dtype))


def share_table(model: Any, dtype: torch.dtype | None = None) -> None:
    """Let embeddings that are tied to an output matrix in 8 bits read that matrix, and drop their own table.

    Args:
        model: with packed matrices.
        dtype: precision of the embeddings; None: the table's.
    """
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    if isinstance(head, Int8Linear) and head.weight is table.weight:
        head.drop_weight(dtype)
        table.weight, table.numbers, table.scales = head.weight, head.numbers, head.scales
        plain = type(table) is nn.Embedding  # a subclass may scale what this one reads, as Gemma's does
        table.__class__ = Int8Table if plain else type("Int8Table", (type(table), Int8Table), {})


@contextmanager
def exact_products(model: nn.Module) -> Iterator[None]:
    """Multiply in float32 with what quantized matrices stand for, inside the block."""
    layers = [part for part in model.modules() if isinstance(part, FewBitsLinear)]
    try:
        for layer in layers:
            layer.exact = True
        yield
    finally:
        for layer in layers:
            layer.exact = False


def kinds(model: Any, quantization: str | None, *, half: bool) -> KindOf:
    """Return the kind of each linear layer of a model, for `put_packed`.

    The vision tower and projector are small, and suffer most from coarse numbers. The output matrix has 8 bits.

    Args:
        model: possibly without its weights.
        quantization: `int8` or `int4` for the decoder layers; None: none.
        half: pack other matrices in float16, for arithmetic in float32.

    Returns:
        A function of a layer's path and the layer; one whose shape does not fit has more bits.
    """
    head = model.get_output_embeddings()
    layers = set() if quantization is None else {*text_stack(model).layers.modules(), head}

    def kind_of(path: str, layer: nn.Linear) -> type[PackedLinear] | None:
        if layer in layers:
            if quantization == "int4" and layer is not head and Int4Linear.fits(layer):
                return Int4Linear
            if Int8Linear.fits(layer):
                return Int8Linear
        return HalfLinear if half else None

    return kind_of


@functools.cache
def columns_together() -> int | None:
    """Return the number of columns that torch keeps together in 4 bits; None: its kernel is not vectorized here."""
    numbers = torch.arange(max(BLOCKS) * GROUP, device="cpu").view(-1, GROUP).remainder(127).remainder(16)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers.int(), 1)
    found = [block for block in BLOCKS if torch.equal(_unpacked(packed, block, numbers.dtype), numbers.T)]
    return found[0] if found else None


def _unpacked(packed: Tensor, block: int, dtype: torch.dtype) -> Tensor:
    """Return the numbers from 0 to 15, `[in, out]`, of a packed matrix."""
    stored = packed.view(len(packed) // block, -1, block // 2).transpose(0, 1)  # [in, out / block, block / 2]
    found = torch.empty(*stored.shape[:2], block, dtype=dtype, device=packed.device)
    found[..., : block // 2] = stored & 15
    found[..., block // 2 :] = stored >> 4
    return found.view(len(found), -1)


def _step(inputs: int) -> int:
    """Return the number of outputs of a part."""
    return max(1, PART // inputs)


@functools.cache
def _has_bfloat16() -> bool:
    return computes_in(torch.bfloat16)
