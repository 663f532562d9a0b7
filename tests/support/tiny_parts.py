"""What the builders of tiny models share: sizes, towers, prompts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

IMAGE = 100  # image token id; never generated in the tests (see `SUPPRESS`)
LAYERS = 6
SUPPRESS = [IMAGE, 101, 102, 103]
VOCABULARY = 200

TEXT: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128}
TEXT |= {"num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2}
TEXT |= {"max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
PATCHES = {"image_size": 32, "patch_size": 8}
CLIP = {**VISION, **PATCHES, "model_type": "clip_vision_model", "num_hidden_layers": 3, "projection_dim": 32}
SIGLIP = {**VISION, **PATCHES, "model_type": "siglip_vision_model", "vision_use_head": False}
PIXTRAL = {**VISION, "model_type": "pixtral", "num_attention_heads": 2, "patch_size": 8, "head_dim": 16}


@dataclass(frozen=True)
class Tiny:
    """A family's model and one prompt.

    `grown` is the value that per-token inputs (token types) take for generated tokens.
    """

    model: Any
    inputs: dict[str, Tensor]
    grown: dict[str, int] = field(default_factory=dict)
    boundaries: tuple[int, ...] = (1, LAYERS // 2, LAYERS - 1)  # K to test
    image_token: int = IMAGE

    @property
    def image(self) -> Tensor:
        return self.inputs["input_ids"] == self.image_token

    @property
    def silent(self) -> list[int]:
        return SUPPRESS


def prompt(images: int = 16, before: int = 5, after: int = 9, seed: int = 0) -> Tensor:
    """`[1, S]` random text with `images` image tokens behind `before` text tokens."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 90, (1, before + images + after), generator=generator)
    ids[:, before : before + images] = IMAGE
    return ids


def pixels(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def build(config: Any, model_class: Any, attention: str = "sdpa", scale: float = 7.0) -> Any:
    config._attn_implementation = attention
    torch.manual_seed(0)
    model = model_class(config).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if parameter.ndim > 1:
            parameter.mul_(scale)
    model.generation_config.pad_token_id = 0
    return model


def qwen_inputs(ids: Tensor, grid: tuple[int, int, int] = (1, 8, 8), seed: int = 0) -> dict[str, Tensor]:
    """Markers around the image, patches for `grid`, token types as the processor gives them."""
    first, last = (ids[0] == IMAGE).nonzero().flatten()[[0, -1]].tolist()
    ids[0, first - 1], ids[0, last + 1] = 102, 103
    patches = pixels(grid[1] * grid[2], 3 * 2 * 8 * 8, seed=seed)
    kinds = (ids == IMAGE).int()
    return with_mask(ids, pixel_values=patches, image_grid_thw=torch.tensor([grid]), mm_token_type_ids=kinds)


def with_mask(ids: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **inputs}
