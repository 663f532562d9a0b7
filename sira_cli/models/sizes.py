"""The memory that a model takes, from its shape alone: weights, caches, and the activations of a prompt.

`sizes.yaml`, made by `python -m tools.sizes`, has the shapes of the shipped presets' models, so that nothing has to be
fetched to tell whether a model fits.
"""

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

LEAST_SHARE = 0.5  # minimum share of the decoder layers' weights that a quantization must reach to be useful
BYTES = {"8bit": 1.0, "4bit": 0.5}  # of a quantized weight
PROCESS = 450_000_000  # bytes of a process with torch and transformers, before it loads a model (measured: 0.42 GB)
LOGITS = 6  # float32 numbers per vocabulary entry: see `models/memory.py`
TEXT_TOKENS = 40  # of a prompt: the template, and a short question


@dataclass(frozen=True)
class ModelSize:
    """The numbers that decide a model's memory. One number is a weight, or an element of a cache.

    Attributes:
        weights: all weights.
        in_layers: those of the decoder layers.
        layers: those in the matrices of the decoder layers, which a quantization reaches.
        column: keys and values of one token, in all layers.
        state: states of recurrent layers, of one text.
        image_tokens: of a photograph of 12 megapixels, under the preset's limits.
        patches: rows of that photograph in the tower.
        widest: numbers per token in the widest decoder layer while it runs.
        widest_tower: numbers per patch in the widest layer of the tower.
        vocabulary: number of entries.
        k_share: K / L.
    """

    weights: int
    in_layers: int
    layers: int
    column: int
    state: int
    image_tokens: int
    patches: int
    widest: int
    widest_tower: int
    vocabulary: int
    k_share: float

    @property
    def prompt(self) -> int:
        """Tokens of a prompt with one photograph."""
        return self.image_tokens + TEXT_TOKENS

    def weight_bytes(self, bytes_each: float, bytes_in_layers: float | None = None) -> int:
        """Return the bytes of the weights."""
        layers = self.layers * (bytes_each if bytes_in_layers is None else bytes_in_layers)
        return int((self.weights - self.layers) * bytes_each + layers)

    def cache_bytes(self, new_tokens: int, bytes_each: int) -> int:
        """Return the bytes of both streams' caches at the end of a text under SIRA, for one picture."""
        columns = self.prompt + new_tokens + self.k_share * (TEXT_TOKENS + new_tokens)
        return int((self.column * columns + self.state * (1 + self.k_share)) * bytes_each)

    def activation_bytes(self, bytes_each: int) -> int:
        """Return the bytes that the prompt of one photograph takes while it runs, besides the caches."""
        rows = max(self.patches * self.widest_tower, self.prompt * self.widest)
        return int(rows * bytes_each) + LOGITS * 4 * self.vocabulary

    def needed(self, new_tokens: int, bytes_each: int, bytes_in_layers: float | None = None) -> int:
        """Return the bytes of a process that captions one picture at a time; arguments as above."""
        parts = (self.cache_bytes(new_tokens, bytes_each), self.activation_bytes(bytes_each))
        return PROCESS + self.weight_bytes(bytes_each, bytes_in_layers) + sum(parts)


@functools.cache
def _shipped() -> dict[str, ModelSize]:
    content: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("sizes.yaml").read_text(encoding="utf-8"))
    return {name: ModelSize(**values) for name, values in content.items()}


def size_of(preset: Preset) -> ModelSize | None:
    """Return the size of a shipped preset's model; None: it is not known."""
    return _shipped().get(preset.name)


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
        import torch

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


def _presets() -> list[Preset]:
    return [presets.read(path) for path in presets.SHIPPED.glob("*.yaml")]


def downwards(preset: Preset) -> Iterator[Preset]:
    """Yield the preset, then smaller shipped ones of its family, the largest first."""
    yield preset
    own = size_of(preset)
    sizes = [(size.weights, each.name, each) for each in _presets() if (size := size_of(each)) is not None]
    for weights, _, each in sorted(sizes, key=lambda row: row[:2], reverse=True):
        if each.family == preset.family and own is not None and weights < own.weights:
            yield each


def smallest_that_fits(memory: Memory) -> tuple[str, int] | None:
    """Return the name and the bytes of the shipped preset that takes the least memory; None: it does not fit."""
    size, name = min((size, preset.name) for preset in _presets() if (size := needed(preset)) is not None)
    return (name, size) if size <= memory.usable else None


def check_default_fits(preset: Preset, device: str) -> None:
    """Check that the default preset fits into this machine's memory."""
    memory = memory_for_models(device)
    takes = needed(preset)
    if takes is None or takes <= memory.usable:
        return
    instead = "no other one fits either; `preset=` demo needs no download, but knows drawn scenes only"
    if (least := smallest_that_fits(memory)) is not None:
        instead = f"the smallest that fits is `preset=` {least[0]}, {least[1] / 1e9:.1f} GB"
    given = f"`preset=` {preset.name}"
    if preset.load.quantization is not None:
        given += f" `quantization=` {preset.load.quantization}"
    raise SettingsError(
        f"the default preset {preset.name} takes about {takes / 1e9:.1f} GB of memory, and this machine has "
        f"{memory.total / 1e9:.1f} GB: {instead}. To try it all the same, add {given}; "
        "`sira doctor` shows what runs here"
    )
