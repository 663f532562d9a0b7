"""The speed of a machine, by the products that decide a model's time: a matrix times one row, two rows, many rows.

A decoding step reads every weight once, for one row (the shared layers) or two (the late ones); a prompt takes many
rows at once. So a few products of one large matrix tell roughly how long a picture takes, without a model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from sira_cli.models.loading.few_bits import FewBitsLinear
from sira_cli.models.loading.sizes import ModelSize

ROWS, COLUMNS = 11_008, 2_048  # the widest matrix of Qwen2.5-VL-3B, too large for a processor's cache
MANY = 64  # rows of a prompt at once; from here on the time per row hardly changes
PROMPT = 512  # rows of a prompt where they are so many that a quantized matrix is dequantized for them
SECONDS = 0.3  # for each of the three


@dataclass(frozen=True)
class Speed:
    """Seconds per weight of a product with one, two and many rows.

    Attributes:
        name: of the precision or quantization.
        one: with one row.
        two: with two rows.
        many: with many rows, per row.
    """

    name: str
    one: float
    two: float
    many: float

    def layers_prefill(self, size: ModelSize) -> float:
        """Return the seconds of the decoder layers for a prompt with one photograph."""
        return size.used * size.prompt * self.many

    def layers_step(self, size: ModelSize) -> float:
        """Return the seconds of the decoder layers for a step under SIRA: the late ones have two rows."""
        return size.used * ((1 - size.k_share) * self.one + size.k_share * self.two)


def picture_seconds(size: ModelSize, new_tokens: int, layers: Speed, tower: Speed, head: Speed) -> float:
    """Return the seconds of a text about one photograph under SIRA.

    Args:
        size: of the model.
        new_tokens: tokens of the text.
        layers, tower, head: speed of the decoder layers, the picture tower, and the output matrix.
    """
    prefill = size.tower * size.patches * tower.many + layers.layers_prefill(size)
    return prefill + (new_tokens - 1) * layers.layers_step(size) + new_tokens * size.head * head.two


def measure_speed(
    name: str, product: Callable[[Tensor], Tensor], like: Tensor, weights: int, many: int = MANY
) -> Speed:
    """Time a matrix product with one row, two rows and many rows.

    Args:
        name: of the precision or quantization.
        product: takes rows `[R, d]`.
        like: `[d]`, a row in the right precision on the right device.
        weights: numbers of the matrix.
        many: number of many rows.
    """
    seconds = {rows: _timed(partial(product, like.expand(rows, -1).contiguous())) for rows in (1, 2, many)}
    return Speed(name, seconds[1] / weights, seconds[2] / weights, seconds[many] / weights / many)


@torch.no_grad()
def measure_plain(device: torch.device, dtype: torch.dtype) -> Speed:
    """Time the products of a matrix without quantization."""
    layer = nn.Linear(COLUMNS, ROWS, bias=False, device=device, dtype=dtype)
    row = torch.randn(COLUMNS, device=device, dtype=dtype)
    return measure_speed(str(dtype).removeprefix("torch."), layer, row, layer.weight.numel())


@torch.no_grad()
def measure_few_bits(name: str, kind: Callable[[nn.Linear], FewBitsLinear], dtype: torch.dtype) -> Speed:
    """Time the products of a quantized matrix with rows of a type on the CPU."""
    layer = kind(nn.Linear(COLUMNS, ROWS, bias=False))
    layer.pack(layer.drop_weight())
    row = torch.randn(COLUMNS, dtype=dtype)
    return measure_speed(name, layer, row, ROWS * COLUMNS, PROMPT)


def _timed(work: Callable[[], Tensor]) -> float:
    """Return the shortest of several times of some work: other programs can only lengthen it."""
    found: list[float] = []
    while len(found) < 2 or sum(found) < SECONDS:
        start = time.perf_counter()
        work().sum().item()  # waits for the device
        found.append(time.perf_counter() - start)
    return min(found)
