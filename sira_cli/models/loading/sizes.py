"""The memory that a model takes, from its shape alone: weights, caches, and the activations of a prompt.

`sizes.yaml`, made by `python -m tools.sizes`, has the shapes of the shipped presets' models, so that nothing has to be
fetched to tell whether a model fits.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sira_cli.models.loading.preset import Preset

PROCESS = 450_000_000  # bytes of a process with torch and transformers, before it loads a model (measured: 0.42 GB)
LOGITS = 6  # float32 numbers per vocabulary entry: see `models/loading/memory.py`
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
    content: dict[str, dict[str, Any]] = yaml.safe_load(
        Path(__file__).with_name("sizes.yaml").read_text(encoding="utf-8")
    )
    return {name: ModelSize(**values) for name, values in content.items()}


def size_of(preset: Preset) -> ModelSize | None:
    """Return the size of a shipped preset's model; None: it is not known."""
    return _shipped().get(preset.name)
