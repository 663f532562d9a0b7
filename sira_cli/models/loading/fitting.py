"""Check which shipped presets fit into this machine's memory, before anything is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import torch

from sira_cli.errors import SettingsError
from sira_cli.models.loading import presets
from sira_cli.models.loading.preset import Preset
from sira_cli.models.loading.quantization import BYTES, LEAST_SHARE
from sira_cli.models.loading.sizes import size_of

USABLE = 0.85  # share of a device's memory that one program can have: the system and a desktop take the rest


@dataclass(frozen=True)
class Memory:
    """Memory for models, in bytes: of all GPUs together, else of the machine."""

    total: int
    free: int

    @property
    def usable(self) -> int:
        """Maximum for a model with its caches and pictures."""
        return int(USABLE * self.total)


def memory_for_models(device: str) -> Memory:
    """Return the memory of a device (`pick_device`): of all GPUs that `auto` may use, else the machine's.

    A Mac's GPU takes the machine's memory.
    """
    if device.startswith("cuda"):
        each = [torch.cuda.mem_get_info(index) for index in range(torch.cuda.device_count())]
        return Memory(sum(total for _, total in each), sum(free for free, _ in each))
    memory = psutil.virtual_memory()
    return Memory(memory.total, memory.available)


def needed(preset: Preset) -> int | None:
    """Return the bytes that one picture at a time takes in 16 bits, with the caches of SIRA."""
    size, quantization = size_of(preset), preset.load.quantization
    if size is None or (quantization is not None and size.layers < LEAST_SHARE * size.in_layers):
        return None
    itemsize = 4 if preset.load.dtype == "float32" else 2
    in_layers = None if quantization is None else BYTES[quantization]
    return size.needed(preset.generation.max_new_tokens, itemsize, in_layers)


def downwards(preset: Preset) -> Iterator[Preset]:
    """Yield the preset, then smaller shipped ones of its family, the largest first."""
    yield preset
    own = size_of(preset)
    shipped = [presets.read(path) for path in presets.SHIPPED.glob("*.yaml")]
    sizes = [(size.weights, each.name, each) for each in shipped if (size := size_of(each)) is not None]
    for weights, _, each in sorted(sizes, key=lambda row: row[:2], reverse=True):
        if each.family == preset.family and own is not None and weights < own.weights:
            yield each


def check_default_fits(preset: Preset, device: str) -> None:
    """Check that the default preset fits into this machine's memory."""
    memory = memory_for_models(device)
    takes = needed(preset)
    if takes is None or takes <= memory.usable:
        return
    instead = "no smaller one fits either; `preset=` demo needs no download"
    for candidate in downwards(preset):
        size = needed(candidate)
        if size is not None and size <= memory.usable:
            instead = f"`preset=` {candidate.name} takes {size / 1e9:.1f} GB and fits"
            break
    given = f"`preset=` {preset.name}"
    if preset.load.quantization is not None:
        given += f" `quantization=` {preset.load.quantization}"
    raise SettingsError(
        f"the default preset {preset.name} takes about {takes / 1e9:.1f} GB of memory, and this machine has "
        f"{memory.total / 1e9:.1f} GB: {instead}. To try it all the same, add {given}; "
        "`sira doctor` shows what runs here"
    )
