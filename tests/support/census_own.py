"""What types need besides the sizes in `census`: tests/data/census.yaml."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers as hf
import yaml

from tests.support.tiny_parts import CLIP, pixels


def clip() -> Any:
    """Another tower that stands in for one of timm."""
    config = hf.CLIPVisionConfig(**CLIP)
    config.model_args = {"embed_dim": 32}
    return config


def resnet() -> Any:
    """A tower that stands in where a type's own needs timm: `[B, 32, 4, 4]`."""
    config = hf.ResNetConfig(
        embedding_size=16, hidden_sizes=[32], depths=[1], layer_type="basic", downsample_in_first_stage=True
    )
    config.hidden_size, config.vocab_size, config.vocab_offset, config.rms_norm_eps = 32, 16, 150, 1e-6
    return config


class Loader(yaml.SafeLoader):
    """Of values that YAML has no types for."""


TOWERS = {"clip": clip, "resnet": resnet}
Loader.add_constructor("!tower", lambda loader, node: TOWERS[loader.construct_scalar(node)]())
Loader.add_constructor("!pixels", lambda loader, node: partial(pixels, *loader.construct_sequence(node)))
for tag, dtype in (("!tensor", torch.int64), ("!int32", torch.int32), ("!bool", torch.bool)):
    Loader.add_constructor(
        tag, lambda loader, node, dtype=dtype: torch.tensor(loader.construct_sequence(node, deep=True), dtype=dtype)
    )
OWN: dict[str, dict[str, Any]] = yaml.load(
    (Path(__file__).parents[1] / "data/census.yaml").read_text(encoding="utf-8"), Loader
)
