"""What can be known of a model from its config.json alone, without its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForImageTextToText

from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import Fork
from sira_cli.models.hub import find_config
from sira_cli.models.reading import reading
from sira_cli.models.weights import read_config


@dataclass(frozen=True)
class ModelFacts:
    """L, the paper's K = L/2, the id of the image token, and the size of the weights."""

    layers: int
    k: int
    image_token: int
    gigabytes: float


def inspect_model(model: str, revision: str = "main", *, offline: bool = False) -> ModelFacts:
    """Build the model without weights and look.

    Raises:
        ModelNotFoundError: its config.json is not here and cannot be fetched.
        UnsupportedModelError: SIRA cannot follow it exactly.
    """
    folder = find_config(model, revision, offline=offline)
    with reading(folder), torch.device("meta"):
        config = read_config(folder)
        lvlm: Any = AutoModelForImageTextToText.from_config(config, trust_remote_code=False)
    fork = Fork(lvlm, SiraConfig())
    weights = sum(parameter.numel() for parameter in lvlm.parameters())
    bytes_each = (config.dtype or torch.float32).itemsize
    (image_token,) = SiraConfig().image_tokens.resolve(config).ids
    return ModelFacts(fork.layers, fork.k, image_token, weights * bytes_each / 1e9)
