"""The memory that a model takes, from its shape alone: weights, caches, and the activations of a prompt.

`sizes.yaml`, made by `python -m tools.sizes`, has the shapes of the shipped presets' models: nothing is fetched."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from sira_cli.errors import SettingsError
from sira_cli.models import presets
from sira_cli.models.preset import Preset

BYTES = {"8bit": 1.0, "4bit": 0.5}  # of a quantized weight
PROCESS = 450_000_000  # bytes of a process with torch and transformers, before it loads a model (measured: 0.42 GB)
LOGITS = 6  # float32 numbers per vocabulary entry and text: both streams', their contrast, the picking of a token
TEXT_TOKENS = 40  # of a prompt: the template, and a short question


@dataclass(frozen=True)
class ModelSize:
    """The numbers that decide a model's memory. One number is a weight, or an element of a cache."""

    weights: int  # all weights
    layers: int  # those in the matrices of the decoder layers, which a quantization reaches
    column: int  # keys and values of one token, in all layers
    state: int  # states of recurrent layers, of one text
    image_tokens: int  # of a photograph of 12 megapixels, under the preset's limits
    patches: int  # rows of that photograph in the tower
    widest: int  # numbers per token in the widest decoder layer while it runs
    widest_tower: int  # numbers per patch in the widest layer of the tower
    vocabulary: int  # number of entries
    k_share: float  # K / L

    def cache_bytes(self, new_tokens: int, bytes_each: int) -> int:
        """Return the bytes of both streams' caches at the end of a text under SIRA, for one picture."""
        text = TEXT_TOKENS + new_tokens
        columns = self.image_tokens + text + self.k_share * text
        return int((self.column * columns + self.state * (1 + self.k_share)) * bytes_each)

    def needed(self, new_tokens: int, bytes_each: int, bytes_in_layers: float | None = None) -> int:
        """Return the bytes of a process that captions one picture at a time."""
        in_layers = bytes_each if bytes_in_layers is None else bytes_in_layers
        weights = int((self.weights - self.layers) * bytes_each + self.layers * in_layers)
        prompt = max(self.patches * self.widest_tower, (self.image_tokens + TEXT_TOKENS) * self.widest) * bytes_each
        return PROCESS + weights + self.cache_bytes(new_tokens, bytes_each) + prompt + LOGITS * 4 * self.vocabulary


@functools.cache
def _shipped() -> dict[str, dict[str, Any]]:
    return yaml.safe_load(Path(__file__).with_name("sizes.yaml").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def size_of(preset: Preset) -> ModelSize | None:
    """Return the size of a shipped preset's model; None: it is not known."""
    size = _shipped().get(preset.name)
    return None if size is None else ModelSize(**size)


USABLE = 0.85  # share of a device's memory that one program can have: the system and a desktop take the rest


@dataclass(frozen=True)
class DeviceMemory:
    """Memory for models, in bytes: of all GPUs together, else of the machine."""

    total: int
    free: int

    @property
    def usable(self) -> int:
        """Maximum for a model with its caches and pictures."""
        return int(USABLE * self.total)


def memory_for_models(device: str) -> DeviceMemory:
    """Return the memory of a device (`pick_device`): of all GPUs, else the machine's, which a Mac's GPU takes too."""
    if device.startswith("cuda"):
        import torch

        gpus = [torch.cuda.mem_get_info(index) for index in range(torch.cuda.device_count())]
        return DeviceMemory(sum(total for _, total in gpus), sum(free for free, _ in gpus))
    memory = psutil.virtual_memory()
    return DeviceMemory(memory.total, memory.available)


def needed(preset: Preset) -> int | None:
    """Return the bytes that one picture at a time takes in 16 bits, with the caches of SIRA; None: not known.

    For a model without a known shape, that is its files and 15 %.
    """
    size = size_of(preset)
    quantization = preset.load.quantization
    if size is None:
        if quantization or not preset.download_gb:
            return None
        return int(1.15e9 * preset.download_gb)
    itemsize = 4 if preset.load.dtype == "float32" else 2
    in_layers = None if quantization is None else BYTES[quantization]
    return size.needed(preset.generation.max_new_tokens, itemsize, in_layers)


def downwards(preset: Preset) -> Iterator[Preset]:
    """Yield the preset, then smaller shipped ones of its family, the largest first."""
    yield preset
    size = size_of(preset)
    if size is None:
        return
    smaller = []
    for other in presets.shipped():
        other_size = size_of(other)
        if other.family == preset.family and other_size is not None and other_size.weights < size.weights:
            smaller.append((other_size.weights, other.name, other))
    for _, _, other in sorted(smaller, key=lambda row: row[:2], reverse=True):
        yield other


def smallest_that_fits(memory: DeviceMemory) -> tuple[str, int] | None:
    """Return the name and the bytes of the shipped preset that takes the least memory; None: it does not fit."""
    sizes = [(needed(preset), preset.name) for preset in presets.shipped()]
    size, name = min((size, name) for size, name in sizes if size is not None)
    return (name, size) if size <= memory.usable else None


def check_default_fits(preset: Preset, device: str) -> None:
    """Check that the default preset fits into this machine's memory."""
    memory = memory_for_models(device)
    takes = needed(preset)
    if takes is None or takes <= memory.usable:
        return
    instead = "no other one fits either; `preset=` demo needs no download, but knows drawn scenes only"
    smallest = smallest_that_fits(memory)
    if smallest is not None:
        name, size = smallest
        instead = f"the smallest that fits is `preset=` {name}, {size / 1e9:.1f} GB"
    raise SettingsError(
        f"the default preset {preset.name} takes about {takes / 1e9:.1f} GB of memory, and this machine has "
        f"{memory.total / 1e9:.1f} GB: {instead}. To try it all the same, add `preset=` {preset.name}; `sira doctor` "
        "shows what runs here"
    )
